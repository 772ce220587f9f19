"""test_vectors/ against the code of today: every committed value is computed again, and a wrong formula is noticed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tiny
import torch
import transformers
from edgeforge_runtime import manifest as m
from edgeforge_runtime.cache import KvCache
from edgeforge_runtime.codes import decode, encode
from edgeforge_runtime.feeds import Feeder
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edgeforge import metrics
from edgeforge.adapt import attention, rope
from edgeforge.encodings import Encoding, Table
from edgeforge.export import aimet
from edgeforge.graph import requantize, sha
from edgeforge.graph.optimize import optimize
from edgeforge.quantize import qdq
from edgeforge.targets import HTP, PLAIN
from edgeforge.vectors import check
from edgeforge.vectors import format as sets

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "test_vectors"
sys.path.insert(0, str(ROOT / "scripts" / "golden"))

import maths  # noqa: E402

import models  # noqa: E402

Arrays = dict[str, np.ndarray]
MATHS = {g.graph: g for g in sets.load(GOLDEN / "maths").graphs}


def _grid(name: str) -> Encoding:
    dtype, (scale, zero), low, high = maths.GRIDS[name]
    return Encoding((high - low).bit_length(), dtype.startswith("int"), np.array(scale, np.float32), np.array(zero))


def _rope(**scaling: Any) -> Callable[[Arrays], Arrays]:
    def run(fed: Arrays) -> Arrays:
        config = transformers.LlamaConfig(
            hidden_size=4 * maths.HEAD_DIM, num_attention_heads=4, max_position_embeddings=2048,
            rope_parameters={"rope_theta": float(maths.THETA), "rope_type": "default", **scaling})
        model = nn.Module()
        model.model = nn.Module()
        model.model.rotary_emb = LlamaRotaryEmbedding(config)
        cos, sin = rope.tables(model, 2048).values()
        return {"cos": cos[fed["positions"]], "sin": sin[fed["positions"]]}
    return run


def _quantize(fed: Arrays) -> Arrays:
    return {name: _grid(name).quantize(fed["x"]).astype(spec[0]) for name, spec in maths.GRIDS.items()}


def _runtime_quantize(fed: Arrays) -> Arrays:
    made = {}
    for spec in MATHS["quantize"].outputs:
        codes = encode(spec.declared, fed["x"])
        made[spec.name] = codes.clip(-8, 7) if spec.name == "i4" else codes
    return made


def _dequantize(fed: Arrays) -> Arrays:
    return {f"{name}_real": _grid(name).dequantize(codes) for name, codes in fed.items()}


def _runtime_dequantize(fed: Arrays) -> Arrays:
    return {f"{spec.name}_real": decode(spec.declared, fed[spec.name]) for spec in MATHS["dequantize"].inputs}


def _lpbq_grid(fed: Arrays) -> Encoding:
    blocks = fed["block_scale"].astype(np.int64)
    zeros = np.zeros(blocks.shape, np.int64)
    return Encoding(4, True, fed["scale"], zeros, axis=1, block=16, block_scale=blocks, channel=0)


def _lpbq(fed: Arrays) -> Arrays:
    return {"real": _lpbq_grid(fed).dequantize(fed["codes"])}


def _requantize(fed: Arrays) -> Arrays:
    """A cache output whose grid differs from what it is made from: the node, printed as QDQ, in onnxruntime."""
    shape = ir.Shape(fed["wide"].shape)
    x = ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Relu", [x])
    out = node.outputs[0]
    out.name, out.shape, out.type = "past_key_0_out", shape, ir.TensorType(ir.DataType.FLOAT)
    model = ir.Model(ir.Graph([x], [out], nodes=[node], opset_imports={"": 23}, name="g"), ir_version=10)
    requantize.InsertRequantize()(model)
    node.op_type = "Identity"
    wide = Encoding(16, False, np.array(maths.WIDE[0], np.float32), np.array(maths.WIDE[1]))
    narrow = Encoding(8, False, np.array(maths.NARROW[0], np.float32), np.array(maths.NARROW[1]))
    qdq.quantize(model, Table({"x": wide, "past_key_0_out/wide": wide, "past_key_0_out": narrow}))
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {"x": fed["wide"]})
    return {"narrow": made}


def _mask(fed: Arrays) -> Arrays:
    spec = MATHS["attention_mask"].outputs[0].declared
    ids = m.Tensor(m.IDS, "int32", (1, maths.MASK_AR))
    rows = [m.Tensor(n, "float32", (1, 1, maths.MASK_AR, 1)) for n in (m.COS, m.SIN)]
    graph = m.Graph(maths.MASK_AR, maths.MASK_CL, (m.Part("", "g", (ids, spec, *rows), ()),))
    tables = np.zeros((maths.MASK_CL, 1), np.float32)
    past, first, count = (int(fed[k][0]) for k in ("past", "first", "rows"))
    feeder = Feeder(_model(), {m.COS: tables, m.SIN: tables})
    return {"attention_mask": feeder.feeds(graph, [5] * count, past, first)[m.MASK]}


def _cache(fed: Arrays) -> Arrays:
    specs = MATHS["cache"].outputs
    graph = m.Graph(1, maths.SLOTS + 1, (m.Part("", "g", tuple(m.Tensor(
        s.name, s.dtype, s.shape, 1.0, maths.CACHE_ZERO) for s in specs), ()),))
    cache = KvCache([graph], _model())
    for label, count in (("chunk", 3), ("step", 1)):
        cache.append({s.name: fed[f"{m.new_name(s.name)}.{label}"] for s in specs}, 0, count)
    return cache.view(maths.SLOTS)


def _model() -> m.Model:
    return m.Model("golden", 1, 8, maths.MASK_CL, (), None, 0, HTP.masked, HTP.key_axis, HTP.value_axis)


def _attention(profile: Any) -> Callable[[Arrays], Arrays]:
    def run(fed: Arrays) -> Arrays:
        query, key, value = (torch.from_numpy(fed[k]) for k in ("query", "key", "value"))
        mask = torch.where(torch.arange(6) <= 4 + torch.arange(2)[:, None], 0.0, profile.masked)[None, None]
        if profile.transposed_keys:
            key, value = key.permute(1, 0, 3, 2), value.permute(1, 0, 2, 3)
        attend = transformers.AttentionInterface()[attention.use(profile)]
        return {"out": attend(nn.Module(), query, key, value, mask, scaling=0.25)[0].numpy()}
    return run


def _metrics(fed: Arrays) -> Arrays:
    meter = metrics.LogitMeter()
    meter.add(fed["reference"], fed["actual"], fed["targets"])
    stats = meter.result()
    made = {"sqnr_db": stats.sqnr, "centred_sqnr_db": stats.centred_sqnr, "worst_token_sqnr_db": stats.worst_token_sqnr,
            "kl": stats.kl, "flips": stats.flips, "ppl_reference": stats.ppl_reference, "ppl": stats.ppl}
    return {k: np.array([v]) for k, v in made.items()}


LLAMA3 = {"rope_type": "llama3", **{k: float(v) for k, v in maths.LLAMA3.items()}}
LLAMA3["original_max_position_embeddings"] = 512
CODE: list[tuple[str, Callable[[Arrays], Arrays]]] = [
    ("rope", _rope()), ("rope_llama3", _rope(**LLAMA3)), ("quantize", _quantize), ("quantize", _runtime_quantize),
    ("dequantize", _dequantize), ("dequantize", _runtime_dequantize), ("lpbq", _lpbq), ("requantize", _requantize),
    ("attention_mask", _mask), ("cache", _cache), ("attention", _attention(HTP)), ("attention", _attention(PLAIN)),
    ("metrics", _metrics)]


def _verdicts(name: str, code: Callable[[Arrays], Arrays]) -> list[check.Verdict]:
    graph, folder = MATHS[name], GOLDEN / "maths"
    return [v for call in graph.calls for v in check.compare(
        graph, call, check.outputs(folder, graph, call), code(check.inputs(folder, graph, call)))]


@pytest.mark.parametrize(("name", "code"), CODE)
def test_todays_code_gives_the_committed_values(name: str, code: Callable[[Arrays], Arrays]) -> None:
    verdicts = _verdicts(name, code)
    assert [v for v in verdicts if not v.passed] == []


def test_every_committed_function_has_its_code() -> None:
    assert {name for name, _ in CODE} == set(MATHS)


def test_reals_on_the_lpbq_grid_give_their_codes_back() -> None:
    graph, folder = MATHS["lpbq"], GOLDEN / "maths"
    fed = check.inputs(folder, graph, graph.calls[0])
    real = check.outputs(folder, graph, graph.calls[0])["real"]
    np.testing.assert_array_equal(_lpbq_grid(fed).quantize(real), fed["codes"])


def _half_up(fed: Arrays) -> Arrays:
    """Rounds halves away from zero."""
    made = {}
    for name, (dtype, (scale, zero), low, high) in maths.GRIDS.items():
        y = fed["x"] / np.float32(scale)
        made[name] = np.clip(np.sign(y) * np.floor(np.abs(y) + 0.5) + zero, low, high).astype(dtype)
    return made


def _wrong_sign(fed: Arrays) -> Arrays:
    return {f"{spec.name}_real": (fed[spec.name].astype(np.float64) + spec.zero_point).astype(np.float32) * np.float32(
        spec.scale) for spec in MATHS["dequantize"].inputs}


def _half_precision(fed: Arrays) -> Arrays:
    """The table of C9: position times frequency in float16."""
    frequencies = np.float16(maths.THETA) ** (-np.arange(0, 32, 2).astype(np.float16) / np.float16(32))
    angles = np.outer(fed["positions"].astype(np.float16), frequencies.astype(np.float16)).astype(np.float16)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def _top_left(fed: Arrays) -> Arrays:
    """The mask of is_causal: row r sees r + 1 keys whatever lies in the cache."""
    mask = np.zeros((1, 1, maths.MASK_AR, maths.MASK_CL), np.uint16)
    mask[0, 0][np.tri(maths.MASK_AR, maths.MASK_CL, dtype=bool)] = 65535
    return {"attention_mask": mask}


def _tiled(fed: Arrays) -> Arrays:
    """Query heads over kv heads 0 1 0 1 instead of 0 0 1 1 (C17)."""
    order = [0, 2, 1, 3]
    return {"out": _attention(PLAIN)(fed | {"query": fed["query"][:, order]})["out"][:, :, order]}


def _block_scales_from_zero(fed: Arrays) -> Arrays:
    return _lpbq(fed | {"block_scale": fed["block_scale"] - 1})


@pytest.mark.parametrize(("name", "code"), [
    ("quantize", _half_up), ("dequantize", _wrong_sign), ("rope", _half_precision), ("rope_llama3", _rope()),
    ("attention_mask", _top_left), ("attention", _tiled), ("lpbq", _block_scales_from_zero),
    ("cache", lambda fed: {k: np.where(v == maths.CACHE_ZERO, 0, v).astype(np.uint8) for k, v in _cache(fed).items()}),
    ("requantize", lambda fed: {"narrow": _requantize(fed)["narrow"] - np.uint8(1)}),
    ("metrics", lambda fed: _metrics(fed | {"targets": fed["targets"][::-1]})),
], ids=lambda v: v if isinstance(v, str) else "")
def test_a_broken_formula_is_noticed(name: str, code: Callable[[Arrays], Arrays]) -> None:
    assert not all(v.passed for v in _verdicts(name, code))


def test_aimet_encodings_are_the_committed_ones(tmp_path: Path) -> None:
    table = Table.load(GOLDEN / "aimet" / "table.json")
    aimet.write(tmp_path / "made", table, [n for n in table if n.endswith(".weight")], "golden")
    wanted = json.loads((GOLDEN / "aimet" / "model.encodings").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "made").read_text(encoding="utf-8")) == wanted


@pytest.mark.parametrize(("family", "profile"), [*((f, HTP) for f in models.FAMILIES), ("llama", PLAIN)],
                         ids=lambda v: v if isinstance(v, str) else v.name)
def test_a_decoder_made_of_formulas_gives_the_committed_logits(family: str, profile: Any, tmp_path: Path) -> None:
    """Adapted, optimized, heads apart where the profile wants them; chunks of 8, then single steps."""
    graph = next(g for g in sets.load(GOLDEN / "models").graphs if g.graph == family)
    ids = check.inputs(GOLDEN / "models", graph, graph.calls[0])["input_ids"]
    expected = check.outputs(GOLDEN / "models", graph, graph.calls[0])
    np.testing.assert_array_equal(ids, models.ids(family))
    made = tiny.adapt(models.build(family), profile, tokens=ids.size)
    whole = optimize(made.model, profile)
    if profile.split_heads:
        sha.split_heads(whole, Table())
    rows = tiny.logits(tiny.write(tmp_path, made, whole), ids[0].astype(np.int64))
    (verdict,) = check.compare(graph, graph.calls[0], expected, {"logits": np.concatenate(rows)[None]})
    assert verdict.passed, verdict


@pytest.mark.parametrize(("family", "change"), [
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}), ("llama", {"rms_norm_eps": 1e-2}),
    ("qwen3", {"num_key_value_heads": 4}), ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": 0.5}), ("gemma2", {"query_pre_attn_scalar": 8})])
def test_another_model_is_noticed(family: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights under a config with one thing wrong."""
    changed = models.config(family) | change
    monkeypatch.setattr(models, "config", lambda name: changed)
    graph = next(g for g in sets.load(GOLDEN / "models").graphs if g.graph == family)
    ids = check.inputs(GOLDEN / "models", graph, graph.calls[0])["input_ids"]
    with torch.no_grad():
        logits = models.build(family)(torch.from_numpy(ids).long()).logits.numpy()
    expected = check.outputs(GOLDEN / "models", graph, graph.calls[0])
    (verdict,) = check.compare(graph, graph.calls[0], expected, {"logits": logits})
    assert not verdict.passed


def test_the_formulas_write_the_committed_bytes(tmp_path: Path) -> None:
    """Everything but the logits, which BLAS may sum otherwise elsewhere."""
    sets.write(tmp_path / "maths", "maths", sets.load(GOLDEN / "maths").made_by, maths.graphs())
    here, there = ({p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
                   for root in (tmp_path / "maths", GOLDEN / "maths"))
    assert here == there


def test_the_sets_are_whole_and_small() -> None:
    for name in ("maths", "models"):
        check.inspect(GOLDEN / name)
    assert sum(p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file()) < 300_000


def test_the_hash_is_the_documented_one() -> None:
    """One weight, worked out by hand from README."""
    w = models.weight("model.layers.0.mlp.down_proj.weight", (32, 48), 1.0)
    h = _by_hand("model.layers.0.mlp.down_proj.weight", 5)
    assert w.reshape(-1)[5] == ((h >> 16) - 32768) / 32768 * 2.0**-2


def _by_hand(name: str, index: int) -> int:
    import zlib

    h = (zlib.crc32(name.encode()) + index * 0x9E3779B9) % 2**32
    h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
    return h ^ (h >> 16)
