"""What a build does when something is wrong: says what, where and what to do, and leaves nothing half-made."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from builds import cli, leftovers, variant
from tiny_build import Built

from edgeforge import pipeline, recipe
from edgeforge.errors import CompilerError, EdgeForgeError, GateError
from edgeforge.pipeline import Event
from edgeforge.stages.plan import STAGES

BEFORE_QUANTIZE = ["adapt", "optimize", "text", "transform", "calibrate"]


def test_a_failed_gate_stops_the_build_with_code_3_and_keeps_what_came_before(built: Built) -> None:
    path = variant(built, "gate", gates={"quantize_db": 150})
    events: list[Event] = []
    with pytest.raises(GateError, match=r"gate after quantize failed:\n  quantize: logits"):
        pipeline.build(recipe.load(path), events.append)
    assert [e.stage for e in events if e.kind == "cached"] == BEFORE_QUANTIZE
    assert not (built.cache.parent / "gate").exists()
    assert not leftovers(built.cache.parent)
    again = cli("build", path)
    assert again.returncode == 3
    assert "Traceback" not in again.stderr


def test_a_changed_quantize_key_reruns_from_quantize_only(built: Built) -> None:
    path = variant(built, "refined", quantize={"refine": 2})
    events: list[Event] = []
    pipeline.build(recipe.load(path), events.append)
    assert [e.stage for e in events if e.kind == "cached"] == BEFORE_QUANTIZE
    assert [e.stage for e in events if e.kind == "done"] == ["quantize", "export", "split", "compile", "bundle"]


def test_a_limit_of_time_changes_nothing_that_was_made(built: Built) -> None:
    events: list[Event] = []
    pipeline.build(recipe.load(variant(built, "patient", compile={"timeout_s": 1e6})), events.append)
    assert [e.stage for e in events if e.kind == "done"] == ["bundle"]


def test_an_8_bit_embedding_gets_its_requantize_node(built: Built) -> None:
    """Without the node its grid would spread into 16-bit arithmetic, and the placement gate would refuse."""
    path = variant(built, "embedding8", quantize={"embedding": 8})
    events: list[Event] = []
    bundle = pipeline.build(recipe.load(path), events.append)
    assert [e.stage for e in events if e.kind == "cached"] == ["adapt", "optimize", "text"]
    assert (bundle / "device" / "part_1_of_3.bin").is_file()


def test_a_compiler_that_hangs_is_stopped_and_named(built: Built) -> None:
    path = variant(built, "hang", target={"chip": "snapdragon-8-gen-2"}, compile={"timeout_s": 0.2})
    with pytest.raises(CompilerError, match=r"part_1_of_3.*did not finish") as caught:
        pipeline.build(recipe.load(path), lambda event: None)
    assert caught.value.exit_code == 1
    failed = Path(shlex.split(caught.value.hint.partition("edgeforge bisect ")[2])[0])
    assert failed.parent.parent == built.cache / "failed"
    assert (failed / "compile.log").is_file()
    assert str(failed / "compile.log") in caught.value.hint
    assert not (built.cache.parent / "hang").exists()
    assert not leftovers(built.cache.parent)


def test_truncated_weights_are_an_error_before_any_work(built: Built, checkpoint_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint_folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    path = variant(built, "truncated", model=str(broken))
    done = cli("build", path)
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (built.cache.parent / "truncated").exists()


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"target": {"chip": "snapdragon-8-gen3"}}, "did you mean 'snapdragon-8-gen-3'"),
        ({"target": {"prefil": 4}}, "did you mean 'prefill'"),
        ({"quantize": {"kv": 7}}, "quantize.kv"),
        ({"target": {"prefill": 127}}, "context 256 is too short"),
    ],
)
def test_a_wrong_recipe_is_a_usage_error(built: Built, changes: dict[str, object], wanted: str) -> None:
    done = cli("build", variant(built, "wrong", **changes))
    assert done.returncode == 2
    assert wanted in done.stderr.replace("\n", " ")


def test_an_out_that_cannot_be_written_is_one_clear_line(built: Built, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("build", variant(built, "nowhere", out=str(tmp_path / "file" / "out")))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr.replace("\n", "")


def test_another_chip_reruns_only_what_the_chip_decides(built: Built) -> None:
    events: list[Event] = []
    pipeline.build(recipe.load(variant(built, "elite", target={"chip": "snapdragon-8-elite"})), events.append)
    assert [e.stage for e in events if e.kind == "done"] == ["compile", "bundle"]


def test_a_context_beyond_the_models_is_refused_at_once(built: Built) -> None:
    done = cli("build", variant(built, "long", target={"context": 1024}))
    assert done.returncode == 2
    assert "made for 512" in done.stderr


def test_a_folder_that_no_build_made_is_never_replaced(built: Built) -> None:
    path = variant(built, "precious")
    precious = built.cache.parent / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(EdgeForgeError, match="not an EdgeForge bundle"):
        pipeline.build(recipe.load(path), lambda event: None)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_json_output_is_one_object_a_line(built: Built) -> None:
    done = cli("build", built.recipe, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert rows[-1] == {"event": "built", "out": str(built.bundle)}
    assert {r["stage"] for r in rows[:-1]} == {s.name for s in STAGES}


def test_run_says_what_is_missing(tmp_path: Path) -> None:
    done = cli("run", tmp_path, "Hello")
    assert done.returncode == 1
    assert "manifest.json" in done.stderr


def test_run_answers(built: Built) -> None:
    done = cli("run", built.bundle, "Hello", "--max-tokens", 4)
    assert done.returncode == 0
    assert done.stdout.strip()


def test_run_refuses_a_prompt_that_does_not_fit(built: Built) -> None:
    done = cli("run", built.bundle, "word " * 400)
    assert done.returncode == 1
    assert "256" in done.stderr
