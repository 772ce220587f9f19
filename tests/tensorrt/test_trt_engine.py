"""Engines built for real, without a GPU, and what is asserted of them; and what the builder refuses, by module path."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
import trt_tiny as t
from onnx import TensorProto, helper, numpy_helper

from edgeforge.backends.ending import ChildFailed
from edgeforge.backends.failed import FAILURE, recorded
from edgeforge.backends.tensorrt import checks, describe, header, layers, weights
from edgeforge.backends.tensorrt.emit import Emitted, emit
from edgeforge.backends.tensorrt.engine import build_engine, load_engine
from edgeforge.backends.tensorrt.job import LAYERS, LOG, EngineJob
from edgeforge.encodings import Table
from edgeforge.errors import CompilerError
from edgeforge.gates import Check, judged
from edgeforge.graph import edit, store
from edgeforge.graph.optimize import optimize
from edgeforge.targets import TRT

pytest.importorskip("tensorrt_rtx")

LIMITS = {"shared_bytes": 1.05}
GRIDS: dict[str, Mapping[str, int | bool | None]] = {
    "float16": {}, "int4-64": {"bits": 4, "block": 64}, "int4-128": {"bits": 4, "block": 128}, "int8": {"bits": 8},
    "int8-int8": {"bits": 8, "read": True}, "fp8": {"bits": 8, "fp8": True},
    "fp8-fp8": {"bits": 8, "read": True, "fp8": True}}


def _checks(built: t.Built) -> dict[str, Check]:
    return {c.name: c for c in judged(checks.structure(built.engine, built.emitted, built.profiles), LIMITS)}


def _failed(found: Mapping[str, Check]) -> list[str]:
    return [c.name.removeprefix("compile: ") for c in found.values() if not c.passed]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Built]:
    root, model = tmp_path_factory.mktemp("engines"), t.floats("llama")
    return {name: t.build(root / name, model.clone(), t.table(model, **options), ("SM89" if "fp8" in name else "SM86",))
            for name, options in GRIDS.items()}


@pytest.mark.parametrize("grids", GRIDS)
def test_everything_that_can_be_asserted_holds(built: dict[str, t.Built], grids: str) -> None:
    found = _checks(built[grids])
    assert _failed(found) == []
    for width in t.WIDTHS:
        assert found[f"compile: AR-{width}: attention kernels"].value == 2
        assert found[f"compile: AR-{width}: caches copied"].threshold == 0
        if grids != "float16":
            word = grids.partition("-")[0]
            assert found[f"compile: AR-{width}: {word} weights that stayed so"].value > 300_000


@pytest.mark.parametrize("grids", GRIDS)
def test_weights_are_stored_once_in_bytes(built: dict[str, t.Built], grids: str) -> None:
    """The file holds kernels too, some megabytes; the builder counts constants, and the header has the same number."""
    one = built[grids]
    assert one.engine.weights_bytes <= 1.02 * one.emitted.weight_bytes
    assert one.engine.weights_bytes >= one.emitted.weight_bytes
    stated = int.from_bytes(one.engine.path.read_bytes()[56:64], "little")
    assert stated == one.engine.weights_bytes


def test_fp8_is_multiplied_by_fp8(built: dict[str, t.Built]) -> None:
    """Every product of both profiles is one kernel that reads codes on both sides; that the weight is one in the file
    too is what the bytes say."""
    layers = built["fp8-fp8"].engine.dump().layers
    read = {n: [x for x in layers if x.profile == n and any(c.dtype == "FP8" for c in x.constants)] for n in (0, 1)}
    assert [len(read[n]) for n in (0, 1)] == [9, 9]
    assert {x.kind for n in (0, 1) for x in read[n]} == {"gemm"}
    assert {i.dtype for n in (0, 1) for x in read[n] for i in x.inputs} == {"FP8"}


def test_a_single_row_reads_fp8_as_it_is(tmp_path: Path) -> None:
    """At sizes where TensorRT would unpack the weight first (rows.py); tiny products it takes apart anyway."""
    model = _real_sizes()
    assert _failed(_checks(t.build(tmp_path / "m", model, t.table(model, 8, fp8=True), ("SM89",)))) == []


FORMS: dict[str, Mapping[str, int | bool | None]] = {n: GRIDS[n] for n in ("float16", "int8", "int8-int8")}
FAMILIES = ("llama", "llama-tied", "qwen2", "qwen3", "phi3-partial", "phi", "stablelm-parallel", "granite", "smollm3",
            "olmo2", "gemma2", "gemma3")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_weights_once(tmp_path: Path, family: str) -> None:
    """One layer at sizes where TensorRT lays weights out for each profile, if the graph lets it."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
             "num_hidden_layers": 1, "sliding_window": t.CONTEXT}
    own = {"layer_types": ["sliding_attention"]} if family == "gemma3" else {}
    made = tiny.adapt(tiny.model(family, **t.SIZES | sizes | own), TRT, t.CONTEXT, t.PREFILL)
    model = optimize(made.model, TRT)
    for name, options in FORMS.items():
        tied = [p.weight.name for p in weights.products(model.graph) if len(list(p.weight.uses())) > 1]
        grids = Table({n: e for n, e in t.table(model, **options).items() if n not in tied})  # untied before it has any
        one = t.build(tmp_path / name, model.clone(), grids)
        found = _checks(one)
        assert one.engine.weights_bytes <= 1.005 * one.emitted.weight_bytes, name
        assert _failed(found) == [], name
        for width in t.WIDTHS:
            assert found[f"compile: AR-{width}: attention kernels"].value == one.emitted.attentions, name
        assert one.emitted.attentions == (family != "gemma2"), name


def _real_sizes() -> ir.Model:
    """One layer as wide as SmolLM2's: what TensorRT does with a product hangs on its size."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536}
    made = tiny.adapt(tiny.model("llama", **t.SIZES | sizes | {"num_hidden_layers": 1}), TRT, t.CONTEXT, t.PREFILL)
    return optimize(made.model, TRT)


def test_turing(tmp_path: Path) -> None:
    """The reasons of limits.py: float16 and codes by codes hold; of 8-bit weights alone o_proj's are unpacked, in
    prefill, and int4 ends it."""
    model = _real_sizes()
    for name, options in (("float16", {}), ("int8-int8", {"bits": 8, "read": True})):
        one = t.build(tmp_path / name, model.clone(), t.table(model, **options), ("SM75",))
        assert _failed(_checks(one)) == [], name
    alone = t.build(tmp_path / "int8", model.clone(), t.table(model, 8), ("SM75",))
    assert _failed(_checks(alone)) == ["AR-16: weights unpacked before their product"]
    (layer,) = [x for x in alone.engine.dump().layers if x.unpacks]
    assert "model.layers.0.self_attn.o_proj.weight/dq:DequantizeLinear" in layer.onnx
    with pytest.raises(ChildFailed, match="HW-specific datatypes: int4"):
        t.build(tmp_path / "int4", model.clone(), t.table(model, 4, 64), ("SM75",))


@pytest.mark.parametrize("alone", [True, False])
def test_a_product_that_reads_float16_in_w8a8_for_turing(tmp_path: Path, alone: bool) -> None:
    """Where 8 bits of what it reads would be too few, a product has int8 weights alone; Turing unpacks o_proj's."""
    model = _real_sizes()
    source = next(str(p.x.name) for p in weights.products(model.graph) if "o_proj" in str(p.weight.name))
    grids = Table({n: e for n, e in t.table(model, 8, read=True).items() if n != source})
    emitted = emit(model, grids, t.CONTEXT, alone)
    assert ("model.layers.0.self_attn.o_proj.weight" in emitted.packed) == alone
    path, profiles = store.save(emitted.model, tmp_path), emitted.profiles(t.WIDTHS)
    engine = build_engine(EngineJob(path, ("SM75",), profiles, tmp_path / "engine"), 120)
    said = _failed(_checks(t.Built(emitted, engine, profiles)))
    assert said == (["AR-16: weights unpacked before their product"] if alone else [])


def test_the_header_names_the_gpus(built: dict[str, t.Built], tmp_path: Path) -> None:
    assert built["float16"].engine.header == header.Header("1.7.1.116", ("SM86",))
    model = t.floats("llama", 1)
    both = t.build(tmp_path / "both", model, Table(), ("SM75", "SM80", "SM86", "SM89", "SM120", "SM121"))
    assert both.engine.header is not None
    assert both.engine.header.compute == both.engine.compute


def test_the_account_of_several_gpus_is_the_oldest_ones(tmp_path: Path) -> None:
    """What checks.py says of it. From Ampere on the builder plans alike: each GPU's own account is the same text."""
    model = t.floats("llama", 1)
    grids = t.table(model, 8)
    def built_for(*compute: str) -> t.Built:
        return t.build(tmp_path / "+".join(compute), model.clone(), grids, compute)
    both, turing = built_for("SM121", "SM80"), built_for("SM120", "SM75")
    accounts = [(one.engine.folder / LAYERS).read_text() for one in (both, built_for("SM80"), built_for("SM121"))]
    assert accounts[0] == accounts[1] == accounts[2]
    assert not _failed(_checks(both))
    assert _failed(_checks(turing)) == ["AR-16: weights unpacked before their product"]
    named = [_checks(one)["compile: GPUs whose layers the builder names"].note for one in (both, turing)]
    assert named == ["SM80; nothing is said of SM121", "SM75; nothing is said of SM120"]


@pytest.mark.parametrize(("head", "kernels"), [(16, 1), (256, 1), (8, 0), (264, 0)])
def test_heads_with_a_kernel_and_without(tmp_path: Path, head: int, kernels: int) -> None:
    """Turing's are those of later GPUs; what limits.py refuses, the builder does not finish."""
    made = tiny.adapt(tiny.model("llama", **t.SIZES | {"head_dim": head, "num_hidden_layers": 1}), TRT, t.CONTEXT,
                      t.PREFILL)
    model = optimize(made.model, TRT)
    if not kernels:
        with pytest.raises(ChildFailed, match="not supported by a dedicated kernel") as caught:
            t.build(tmp_path / "m", model, Table(), ("SM75",))
        assert "16 to 256, in steps of 8" in caught.value.hint
        return
    found = _checks(t.build(tmp_path / "m", model, Table(), ("SM75",)))
    assert [found[f"compile: AR-{w}: attention kernels"].value for w in t.WIDTHS] == [kernels] * 2


def _unfused(text: str) -> str:
    return re.sub(r"_ge(mm|mv)_mha_", "_ge\\1_", text)


def test_attention_in_pieces_is_seen(built: dict[str, t.Built], tmp_path: Path) -> None:
    """The builder's account of an engine without such kernels, made of one that has them."""
    one = built["float16"]
    shutil.copytree(one.engine.folder, tmp_path / "engine")
    (tmp_path / "engine" / LAYERS).write_text(_unfused((one.engine.folder / LAYERS).read_text()))
    pieces = t.Built(one.emitted, load_engine(tmp_path / "engine"), one.profiles)
    assert _failed(_checks(pieces)) == ["AR-16: attention kernels", "AR-1: attention kernels"]


def test_an_engine_is_described_without_loading_it(built: dict[str, t.Built], tmp_path: Path) -> None:
    engine = built["int8"].engine
    (facts,) = describe.describe([engine.path])
    assert describe.brief(facts)["compute"] == "SM86"
    short = tmp_path / "short.engine"
    short.write_bytes(engine.path.read_bytes()[:-1])
    with pytest.raises(CompilerError, match="truncated"):
        describe.describe([short])
    short.write_bytes(b"not an engine" * 10)
    with pytest.raises(CompilerError, match="not a TensorRT-RTX engine"):
        describe.describe([short])


def test_a_build_is_deterministic_wherever_it_lies(built: dict[str, t.Built], tmp_path: Path) -> None:
    model = t.floats("llama")
    again = t.build(tmp_path / "again", model, t.table(model, bits=4, block=64))
    assert again.engine.path.read_bytes() == built["int4-64"].engine.path.read_bytes()


def _spoiled(folder: Path, emitted: Emitted) -> list[str]:
    folder.mkdir()
    path, profiles = store.save(emitted.model, folder), emitted.profiles(t.WIDTHS)
    engine = build_engine(EngineJob(path, ("SM86",), profiles, folder / "engine"), 120)
    return _failed(_checks(t.Built(emitted, engine, profiles)))


def test_blocks_that_are_unpacked_first_are_seen(tmp_path: Path) -> None:
    """Blocks of 256, written past `pack`, which would write them as two of 128."""
    model = t.floats("llama")
    emitted = emit(model, Table(), t.CONTEXT)
    graph = emitted.model.graph
    product = next(p for p in weights.products(graph) if str(p.weight.name).endswith("down_proj.weight"))
    name, array = str(product.weight.name), edit.constant(product.weight)
    assert array is not None
    scale = (np.abs(array).max(1, keepdims=True) / 7).astype(np.float16)
    packed = weights.Packed(np.rint(array / scale).astype(ml_dtypes.int4), scale, 256)
    weights.write(graph, {name: packed})
    for value in (v for n in graph for v in n.outputs):
        if value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.FLOAT16)
    found = _spoiled(tmp_path / "m", Emitted(emitted.model, {name: packed}, ()))
    assert "AR-16: weights unpacked before their product" in found


def test_caches_that_are_copied_are_seen(tmp_path: Path) -> None:
    """What a scale of 1 does to the Attention node: the reason for the one that FuseAttention writes."""
    emitted = emit(t.floats("llama"), Table(), t.CONTEXT)
    for node in emitted.model.graph:
        if node.op_type == "Attention":
            node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
    assert _spoiled(tmp_path / "m", emitted) == ["AR-16: caches copied", "AR-1: caches copied"]


def _one_node(folder: Path, node: onnx.NodeProto, constants: list[onnx.TensorProto]) -> EngineJob:
    """x [1, 32] float16 -> MatMul with what node makes -> y; node comes first."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, 32]) for n in ("x", "y"))
    product = helper.make_node("MatMul", ["x", node.output[0]], ["y"], "product:MatMul")
    graph = helper.make_graph([node, product], "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11), folder / "m.onnx")
    return EngineJob(folder / "m.onnx", ("SM86",), ({"x": (1, 32)},), folder / "out", folder / "failed")


def test_ops_that_no_family_here_has(tmp_path: Path) -> None:
    """The rest of those that emit lets pass; the families have the others."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 1, 32])
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Relu", ["n"], ["r"]),
             helper.make_node("Unsqueeze", ["r", "axis"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array([1], np.int64), "axis")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11), tmp_path / "m.onnx")
    engine = build_engine(EngineJob(tmp_path / "m.onnx", ("SM86",), ({"x": (1, 32)},), tmp_path / "out"), 60)
    assert engine.path.stat().st_size > 0


def test_a_parse_error_names_the_module(tmp_path: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"],
                            "model.layers.0.mlp.down_proj.weight/dq:DequantizeLinear")
    constants = [numpy_helper.from_array(a, n) for a, n in (
        (np.ones((32, 32), np.int8), "q"), (np.float16(0.1), "s"), (np.int8(3), "z"))]
    job = _one_node(tmp_path, node, constants)
    with pytest.raises(ChildFailed) as caught:
        build_engine(job, 60)
    assert "model.layers.0.mlp.down_proj.weight/dq: DequantizeLinear: " in caught.value.message
    assert "Non-zero zero point is not supported" in caught.value.message
    assert "symmetric codes only" in caught.value.hint
    assert caught.value.ending.nodes == {node.name}
    assert caught.value.ending.kind == "refused"
    assert not job.out.exists()
    known, _ = recorded(job.failure)
    assert known is not None
    assert known.same(caught.value.ending)
    assert (job.failure / LOG).is_file()


def test_a_builder_that_returns_nothing_says_why(tmp_path: Path) -> None:
    """fp8 for an RTX 3090: the parser takes it, the builder returns None."""
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["w"], "w:DequantizeLinear")
    codes = helper.make_tensor("q", TensorProto.FLOAT8E4M3FN, [32, 32], bytes(1024), raw=True)
    job = _one_node(tmp_path, node, [codes, numpy_helper.from_array(np.float16(0.1), "s")])
    with pytest.raises(ChildFailed, match="the builder returned no engine") as caught:
        build_engine(job, 60)
    assert "contains HW-specific datatypes" in caught.value.message
    assert "fp8 before Ada" in caught.value.hint


def test_a_gpu_that_this_version_does_not_know(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["q"], ["w"], "w:Identity")
    job = _one_node(tmp_path, node, [numpy_helper.from_array(np.eye(32, dtype=np.float16), "q")])
    with pytest.raises(ChildFailed, match="knows no SM87, only SM75, SM80"):
        build_engine(EngineJob(job.onnx, ("SM87",), job.profiles, job.out), 60)


def test_limits_stop_the_builder(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["q"], ["w"], "w:Identity")
    job = _one_node(tmp_path, node, [numpy_helper.from_array(np.eye(32, dtype=np.float16), "q")])
    with pytest.raises(ChildFailed, match="did not finish within") as caught:
        build_engine(job, 0.05)
    assert "compile.timeout_s" in caught.value.hint
    assert json.loads((job.failure / FAILURE).read_text(encoding="utf-8"))["kind"] == "hung"
    with pytest.raises(CompilerError, match="no such file"):
        build_engine(EngineJob(tmp_path / "none.onnx", (), job.profiles, job.out), 60)
    with pytest.raises(CompilerError, match="holds no finished engine"):
        load_engine(tmp_path / "nowhere")


def test_an_account_in_another_form_is_said_so(built: dict[str, t.Built]) -> None:
    with pytest.raises(CompilerError, match="said nothing about its layers"):
        layers.parse("")
    text = (built["int8"].engine.folder / "layers.txt").read_text(encoding="utf-8")
    with pytest.raises(CompilerError, match="a layer in a form that is not known: Name: "):
        layers.parse(text.replace("Constants:", "Weights:"))
