"""The straight line through the whole house, on a tiny random Llama with the real compiler and the real Genie."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from edgeforge_runtime import contract
from edgeforge_runtime.manifest import LOGITS, Manifest
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec
from tiny_build import Built

from edgeforge.backends.qnn.binary import read_binaries
from edgeforge.backends.qnn.genie import genie_tokens
from edgeforge.encodings import FILE, Table
from edgeforge.graph import edit, store
from edgeforge.quantize import roles
from edgeforge.stages.plan import STAGES

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
WIDTHS = ("prompt_ar32_cl256", "token_ar1_cl256")


def test_every_stage_ran_and_its_gate_held(built: Built) -> None:
    done = [e for e in built.events if e.kind == "done"]
    assert [e.stage for e in done] == [s.name for s in STAGES]
    checks = [c for e in done for c in e.checks]
    assert all(c.passed for c in checks)
    assert sum(c.threshold is not None for c in checks) > 30


def test_genie_decodes_our_own_loops_tokens(built: Built) -> None:
    """libGenie, which nobody here wrote, and our runtime over the same binaries on the emulator: token for token."""
    ids = TextCodec(built.bundle / "tokenizer").encode_chat(QUESTION)
    assert genie_tokens(built.bundle / "x86", ids, 16, 300) == _greedy(built.bundle, "htp", ids, 16)


def test_emulator_and_cpu_agree_on_the_first_token_distribution(built: Built) -> None:
    ids = TextCodec(built.bundle / "tokenizer").encode_chat(QUESTION)
    with Session.open(built.bundle, "htp") as htp, Session.open(built.bundle, "cpu", exact=True) as cpu:
        a, b = htp.prompt(ids), cpu.prompt(ids)
    assert np.corrcoef(a, b)[0, 1] > 0.999


def test_device_binaries_carry_our_graph_names_and_the_chip(built: Built) -> None:
    found = read_binaries(sorted((built.bundle / "device").glob("*.bin")))
    assert [sorted(g.name for g in b.graphs) for b in found] == [
        [f"{w}_{i}_of_3" for w in WIDTHS] for i in (1, 2, 3)]
    assert {(b.soc_model, b.dsp_arch) for b in found} == {(57, 75)}
    assert all(g.shared_bytes for b in found for g in b.graphs)


def test_the_bundles_targets_keep_the_contract(built: Built) -> None:
    manifest = Manifest.load(built.bundle)
    assert set(manifest.targets) == {"cpu", "htp"}
    for target in manifest.targets.values():
        contract.check(manifest.model, target)
    assert manifest.model.eos == (2,)


def test_parts_hand_over_on_one_grid(built: Built) -> None:
    """What leaves a part is read by the next on the same scale and zero point, at both widths."""
    for graph in Manifest.load(built.artifact("split")).targets["cpu"].graphs:
        made = {t.name: t for p in graph.parts for t in p.outputs}
        read = [t for p in graph.parts for t in p.inputs if t.name in made]
        assert len(read) == 2
        for tensor in read:
            assert tensor == made[tensor.name]


def test_prefill_and_decode_hold_the_same_weights_and_encodings(built: Built) -> None:
    parts = built.artifact("split") / "parts"
    for i in (1, 2, 3):
        wide, narrow = (store.load(parts / f"{w}_{i}_of_3").graph.initializers for w in WIDTHS)
        codes = [n for n in wide if not n.startswith("const.")]
        assert codes
        for name in codes:
            a, b = wide[name].const_value, narrow[name].const_value
            assert a is not None
            assert b is not None
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_heads_hold_the_codes_of_the_whole_projection(built: Built) -> None:
    whole = store.load(built.artifact("quantize")).graph.initializers
    heads = store.load(built.artifact("split") / "parts" / f"{WIDTHS[0]}_2_of_3").graph.initializers
    name = "model.layers.1.self_attn.q_proj.weight"
    codes = whole[name].const_value
    assert codes is not None
    sliced = [heads[f"{name}/h{h}"].const_value for h in range(4)]
    np.testing.assert_array_equal(codes.numpy(), np.concatenate([s.numpy() for s in sliced if s is not None]))


def test_aimet_encodings_name_every_parameter_of_the_onnx_beside_them(built: Built) -> None:
    folder = built.artifact("export")
    document = json.loads((folder / "model.encodings").read_text())
    named = {e["name"] for e in document["param_encodings"]}
    graph = store.load(folder).graph
    real = {v.name for v in graph.initializers.values() if v.uses() and roles.is_real(v)}
    assert document["version"] == "1.0.0"
    assert named == real


def test_vectors_replay_on_the_bundles_own_model(built: Built) -> None:
    from edgeforge_runtime.executors import open_executor

    from edgeforge.export import record

    manifest = Manifest.load(built.bundle)
    target = manifest.targets["cpu"]
    executor = open_executor(target, built.bundle, exact=True, threads=1)
    for label, graph in (("ar32", target.graphs[0]), ("ar1_0", target.graphs[1])):
        call = record.load(built.bundle / "vectors" / "whole" / label, graph.ar)
        made = executor.run(graph, call.inputs)
        assert np.abs(made[LOGITS].astype(int) - call.outputs[LOGITS]).max() <= 2
    executor.close()


def test_a_second_build_does_nothing_and_never_loads_torch(built: Built) -> None:
    code = (
        "import sys; from edgeforge import pipeline, recipe; from pathlib import Path; kinds = []\n"
        f"pipeline.build(recipe.load(Path({str(built.recipe)!r})), lambda e: kinds.append(e.kind))\n"
        "assert set(kinds) == {'cached'}, kinds\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_report_says_what_was_not_seen(built: Built) -> None:
    report = json.loads((built.bundle / "report.json").read_text())
    assert "device" in " ".join(report["not_seen"])
    assert [s["name"] for s in report["stages"]] == [s.name for s in STAGES[:-1]]
    page = (built.bundle / "report.html").read_text()
    assert "Not seen" in page
    assert "FAIL" not in page


def test_every_encoding_has_its_value_in_some_part_and_every_real_value_an_encoding(built: Built) -> None:
    folder = built.artifact("split")
    table = Table.load(folder / FILE)
    printed: set[str] = set()
    bare: list[str] = []
    for part in sorted((folder / "parts").iterdir()):
        graph = store.load(part).graph
        names = edit.names(graph)
        printed |= names
        bare += [n for n in names if n.endswith("/scale") and n.removesuffix("/scale") not in table]
    assert set(table) <= printed
    assert bare == []


@pytest.mark.parametrize("stage", ["adapt", "optimize", "quantize", "split"])
def test_any_stage_can_be_asked(built: Built, stage: str) -> None:
    folder = built.artifact(stage)
    ids = TextCodec(built.bundle / "tokenizer").encode_chat(QUESTION)
    assert len(_greedy(folder, "cpu", ids, 3)) == 3


def _greedy(folder: Path, on: str, ids: list[int], count: int) -> list[int]:
    with Session.open(folder, on) as session:
        logits = session.prompt(ids)
        tokens = [int(logits.argmax())]
        while len(tokens) < count:
            tokens.append(int(session.step(tokens[-1]).argmax()))
    return tokens
