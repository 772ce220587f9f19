"""Numbers that no grid holds, met while a model is looked at: named, and no traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from builds import cli
from edgeforge_runtime.manifest import Graph
from onnx_ir.passes import common

from edgeforge.calibrate import observe
from edgeforge.errors import EdgeForgeError
from edgeforge.quantize import sequential
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.grid import Grid

CALL = Graph(2, 2, ())


def model(body: str, **parameters: np.ndarray) -> ir.Model:
    text = f'<ir_version: 10, opset_import: ["" : 23]> g (float[2, 4] x) => (float[2, N] z) {{ {body} }}'
    made = ir.from_onnx_text(text, initializers=[ir.tensor(a, name=n) for n, a in parameters.items()])
    common.ShapeInferencePass()(made)
    return made


def watched(made: ir.Model, x: np.ndarray, folder: Path) -> dict[str, tuple[float, float]]:
    ranges = observe.Ranges()
    observe.ObservingExecutor(made, ranges, folder, 1).run(CALL, {"x": x})
    return ranges.seen


@pytest.mark.parametrize("bad", [-1.0, 0.0], ids=["NaN", "-inf"])
@pytest.mark.parametrize("count", [1, 8], ids=["one of eight", "all"])
def test_the_value_where_it_begins_is_named(bad: float, count: int, tmp_path: Path) -> None:
    """Exp and Relu make something finite of -inf again; ReduceMin and ReduceMax skip NaN."""
    x = np.full((2, 4), 3, np.float32)
    x.flat[:count] = bad
    with pytest.raises(EdgeForgeError, match=r"'l' is not finite on calibration data"):
        watched(model("l = Log(x) e = Exp(l) z = Relu(e)"), x, tmp_path)


def test_both_infinities_at_once(tmp_path: Path) -> None:
    x = np.array([[1, -1, 0, 0], [0, 0, 0, 0]], np.float32)
    with pytest.raises(EdgeForgeError, match="'l' is not finite"):
        watched(model("l = Mul(x, h) m = Mul(l, h) z = Tanh(m)", h=np.array(3e38, np.float32)), 10 * x, tmp_path)


def test_the_largest_numbers_there_are_are_numbers(tmp_path: Path) -> None:
    """Their sum is not; a mask of finfo.min is full of them."""
    x = np.full((2, 4), np.finfo(np.float32).min)
    x[0, 0] = -x[0, 0]
    assert watched(model("z = Tanh(x)"), x, tmp_path) == {"x": (x.min(), x.max()), "z": (-1, 1)}


def test_a_tapped_value(tmp_path: Path) -> None:
    executor = observe.TappedExecutor(model("l = Log(x) z = Relu(l)"), ["l"], lambda n, a: None, tmp_path, 1)
    executor.run(CALL, {"x": np.ones((2, 4), np.float32)})
    with pytest.raises(EdgeForgeError, match="'l' is not finite"):
        executor.run(CALL, {"x": -np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_squares_that_are_not_finite_name_the_product(rounding: str) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    made = model("z = MatMul(x, w)", w=weight)
    with pytest.raises(EdgeForgeError, match=r"what w is multiplied with \(x\) is not finite .*, or too large"):
        sequential.quantize(made, [{"x": torch.full((2, 4), 1e25)}], {"w": Grid(4)},
                            Method("search", rounding, 0, 0, False, False), lambda text: None)


def test_sums_that_cannot_be_solved_name_the_product() -> None:
    """Numbers so small that what is added to the diagonal is rounded away."""
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    made = model("z = MatMul(x, w)", w=weight)
    with pytest.raises(EdgeForgeError, match=r"the sums over what w is multiplied with \(x\) cannot be solved"):
        sequential.quantize(made, [{"x": torch.full((1, 4), 1e-22)}], {"w": Grid(4)},
                            Method("search", "gptq", 0, 0, False, False), lambda text: None)


def test_a_build_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """Of eight samples one is negative, and it is not among those that gates measure on."""
    text = ('<ir_version: 10, opset_import: ["" : 21]> '
            "g (float[1,3,4,4] image) => (float[1,3,4,4] y) { root = Sqrt(image) y = Relu(root) }")
    (tmp_path / "f.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    samples = np.random.default_rng(1).uniform(1, 2, (8, 1, 3, 4, 4)).astype(np.float32)
    samples[1, 0, 0, 0, 0] = -1
    np.savez(tmp_path / "s.npz", image=samples)
    (tmp_path / "r.yaml").write_text(
        f"model: {{onnx: {tmp_path / 'f.onnx'}, calibration: {tmp_path / 's.npz'}}}\n"
        f"out: {tmp_path / 'out' / 'bundle'}\ntarget: {{chip: snapdragon-8-gen-3}}\n", encoding="utf-8")
    done = cli("build", tmp_path / "r.yaml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "'root' is not finite on calibration data" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "bundle").exists()
