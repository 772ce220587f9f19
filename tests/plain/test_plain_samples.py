"""Samples and graphs on which no figure means anything: told for what they are, not as a gate passed or failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import plain_models as models
import pytest
from builds import cli

from edgeforge import check, gates, pipeline, recipe
from edgeforge.calibrate.samples import Samples
from edgeforge.errors import GateError
from edgeforge.stages.plain.original import judged

RNG = np.random.default_rng(4)


def graph(folder: Path, body: str, outputs: str = "float[1,8] y") -> Path:
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,8] x) => ({outputs}) {{ {body} }}'
    path = folder / "f.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def varied(count: int) -> np.ndarray:
    return RNG.uniform(1, 2, (count, 1, 8)).astype(np.float32)


@pytest.mark.parametrize(("body", "bad", "kind"), [
    ("r = Sqrt(x) y = Neg(r)", -1, "NaN"), ("r = Exp(x) y = Neg(r)", 100, "infinity"),
    ("r = Mul(x, x) y = Div(r, r)", 1e30, "NaN")])
def test_a_model_that_overflows_by_itself(tmp_path: Path, body: str, bad: float, kind: str) -> None:
    """Sample 6 of eight; the optimized graph lost nothing, and no gate of the recipe is to be loosened."""
    x = varied(8)
    x[6, 0, 3] = bad
    done = cli("build", models.recipe(tmp_path, graph(tmp_path, body), {"x": x}))
    said = " ".join(done.stderr.split())
    assert done.returncode == 1, said
    assert f"the model answers sample 6 of {tmp_path}/bundle.npz" in said
    assert f"with {kind} in output 'y'" in said
    assert f"{bad:.4g}" in said, "what went in"
    assert "mend or drop the sample" in said
    assert "gate" not in said
    assert "Traceback" not in said


def test_answers_that_differ_are_let_through() -> None:
    apart = judged({"y": varied(2), "n": np.array([[3], [4]])}, Samples({"x": varied(8)}, 8))
    assert apart.passed
    assert (apart.value, apart.unit, apart.note) == (2, "of 2", "")


def test_an_output_that_is_the_same_everywhere_is_no_proof(tmp_path: Path) -> None:
    """It was inf dB, and the bundle was built."""
    path = models.recipe(tmp_path, graph(tmp_path, "n = Neg(x) y = Relu(n)"), {"x": varied(8)})
    with pytest.raises(GateError) as caught:
        pipeline.build(recipe.load(path), lambda event: None)
    assert "optimize: outputs that samples tell apart 0 of 1 (at least 1): y is 0 throughout: give samples" in str(
        caught.value)
    assert "gates." not in caught.value.hint


@pytest.mark.parametrize(("answers", "value", "note"), [
    ({"y": np.zeros((2, 1, 8))}, 0, "y is 0 throughout: give"),
    ({"y": np.tile(np.arange(8.0), (2, 1, 1))}, 0, "y is the same for 2 different samples: give"),
    ({"y": np.zeros((2, 1, 8)), "z": np.arange(2)}, 1, "y is 0 throughout"),
    ({"y": np.full((2, 1), 7, np.int64)}, 0, "y is 7 throughout: give"),
])
def test_what_no_gate_can_judge(answers: dict[str, np.ndarray], value: int, note: str) -> None:
    found = judged(answers, Samples({"x": varied(8)}, 8))
    assert (found.value, found.passed) == (value, value > 0)
    assert found.note.startswith(note)
    assert ("give samples" in found.note) == (value == 0)


def test_one_sample_gives_nothing_to_compare() -> None:
    assert judged({"score": np.ones((1, 1))}, Samples({"x": varied(2)}, 2)).passed
    assert not judged({"map": np.ones((1, 8))}, Samples({"x": varied(2)}, 2)).passed


@pytest.mark.parametrize(("count", "said"), [(1, "one sample, which is both calibrated and measured on"),
                                             (9, "1 of the samples that the gates measure on are calibrated on too")])
def test_figures_from_the_samples_that_were_fitted_to_are_called_so(tmp_path: Path, count: int, said: str) -> None:
    x = varied(count)
    x[-1] = x[0]
    path = models.recipe(tmp_path, graph(tmp_path, "n = Sigmoid(x) y = Mul(x, n)"), {"x": x})
    report = check.examine(recipe.load(path))
    (finding,) = report.findings
    assert (finding.severity, report.exit_code) == ("warning", 0)
    assert str(finding).startswith(f"{tmp_path}/bundle.yaml:1: model.calibration: {said}")
    out = pipeline.build(recipe.load(path), lambda event: None)
    assert "calibrated on too" in (out / "report.html").read_text()
    notes = {c.name: c.note for place in (out.parent / ".edgeforge").glob("*/*") if (place / gates.FILE).exists()
             for c in gates.load(place)}
    assert notes["quantize: y"].endswith("; 1 of them calibrated on too")
    assert "calibrated" not in notes["optimize: y"], "nothing was fitted there"
