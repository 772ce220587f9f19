"""The interpreter's reading of a package against coremltools' own, and what it refuses."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coreml_tiny
import numpy as np
import pytest
from coreml_tiny import Emitted

from edgeforge.backends.coreml import describe, mil, package
from edgeforge.backends.coreml.interpret import constants
from edgeforge.backends.coreml.interpret.program import Op, Stored
from edgeforge.backends.coreml.interpret.run import Interpreter
from edgeforge.errors import EdgeForgeError, UnsupportedError

RNG = np.random.default_rng(5)


def _codes(bits: int, signed: bool, shape: tuple[int, ...]) -> np.ndarray:
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return RNG.integers(low, high, shape).astype(mil.integers(bits, signed))


def _half(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float16)


def _cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    scale = "constexpr_blockwise_shift_scale"
    for bits, signed in ((4, True), (4, False), (8, True), (8, False)):
        data = _codes(bits, signed, (6, 10, 1, 1))
        yield f"{bits}{signed}", scale, {"data": data, "scale": _half(6, 1, 1, 1)}
        yield f"{bits}{signed} blocks and offsets", scale, {
            "data": data, "scale": _half(6, 5, 1, 1), "offset": _codes(bits, signed, (6, 5, 1, 1))}
    for bits in (1, 2, 3, 4, 6, 8):
        codes = _codes(bits, False, (6, 11, 1, 1))
        yield f"table {bits}", "constexpr_lut_to_dense", {"indices": codes, "lut": _half(3, 1, 1, 1, 1 << bits, 1)}
    yield "vectors", "constexpr_lut_to_dense", {
        "indices": _codes(4, False, (6, 10)), "lut": _half(2, 5, 16, 3), "vector_axis": np.int32(0)}
    mask = RNG.integers(0, 2, (7, 9)).astype(mil.integers(1, False))
    ones = int(np.count_nonzero(np.asarray(mask, np.uint8)))
    yield "sparse", "constexpr_sparse_to_dense", {"nonzero_data": _half(ones), "mask": mask}


CASES = {name: (kind, given) for name, kind, given in _cases()}


@pytest.mark.parametrize("name", CASES)
def test_constants_expand_as_coremltools_expands_them(name: str, tmp_path: Path) -> None:
    """Through the file: packed, written, read and unpacked by two programs."""
    kind, given = CASES[name]
    with mil.function({"x": ((1,), mil.FLOAT16)}) as made:
        var = getattr(mil.mb, kind)(**given, name="held")
        expected = np.asarray(var.op.materialized_val_inference())
        moved = mil.mb.reshape(x=var, shape=[expected.size])
        made.set_outputs([mil.mb.mul(x=moved, y=made.inputs["x"], name="y")])
    path = tmp_path / "a.mlpackage"
    package.write({"main": made}, "main", path, {})
    found = Interpreter.open(path).run("main", {"x": np.ones(1)})["y"]
    assert expected.dtype == np.float16
    np.testing.assert_array_equal(found, expected.astype(np.float32).ravel())


def test_sparse_constants_may_be_compressed_twice() -> None:
    """Their two outputs go on into sparse_to_dense; against the dense forms of the same codes."""
    mask = RNG.integers(0, 2, (4, 6)).astype(np.uint8)
    codes = RNG.integers(0, 16, (4, 6)).astype(np.uint8)
    kept = codes[mask.astype(bool)]
    table = _half(2, 1, 16, 1)
    dense = constants.expand("constexpr_lut_to_dense", {"indices": codes, "lut": table})[0]
    _, values = constants.expand("constexpr_lut_to_sparse", {
        "indices_mask": mask, "indices_nonzero_data": kept, "lut": table})
    whole = constants.expand("constexpr_sparse_to_dense", {"nonzero_data": values, "mask": mask})[0]
    np.testing.assert_array_equal(whole, np.where(mask, dense, np.float16(0)))
    scale = _half(4, 1)
    dense = constants.expand("constexpr_blockwise_shift_scale", {"data": codes, "scale": scale})[0]
    _, values = constants.expand("constexpr_sparse_blockwise_shift_scale", {
        "data_mask": mask, "nonzero_data": kept, "scale": scale})
    np.testing.assert_array_equal(values, dense[mask.astype(bool)])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    made, model = coreml_tiny.graph("llama")
    return coreml_tiny.emit(tmp_path_factory.mktemp("llama"), made, model, coreml_tiny.table(model, 4))


def test_coremltools_reads_the_package(llama: Emitted) -> None:
    """Its own reader of programs finds the same ops and the same constants."""
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.models.utils import load_spec

    spec = load_spec(str(llama.package))
    theirs = load(spec, spec.specificationVersion, str(coreml_tiny.file(llama).parent))
    for name, function in coreml_tiny.program(llama).items():
        ops = [op for op in theirs.functions[name].operations if op.op_type != "const"]
        mine = [op for op in function.ops if op.type != "const"]
        assert [op.op_type for op in ops] == [op.type for op in mine]
        for op, own in zip(ops, mine, strict=True):
            assert [o.shape for o in own.outputs] == [tuple(o.shape) for o in op.outputs]
            if op.op_type == "constexpr_blockwise_shift_scale":
                for key in ("data", "scale"):
                    np.testing.assert_array_equal(_held(own, key), np.asarray(op.inputs[key].val))


def _held(op: Op, key: str) -> np.ndarray:
    value = op.arguments[key][0]
    return value.read() if isinstance(value, Stored) else np.asarray(value)


def test_coremltools_is_the_pinned_one() -> None:
    """mil.py reaches behind its face: another version has to be looked at first."""
    import coremltools

    assert coremltools.__version__ == "9.0"
    assert {s: opset.value for s, opset in mil.OPSETS.items()} == {9: 9, 10: 10}


def test_importing_coremltools_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", "import edgeforge.backends.coreml.mil"], capture_output=True,
                          text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_rounding_shows_an_overflow(tmp_path: Path) -> None:
    with mil.function({"x": ((4,), mil.FLOAT16)}) as made:
        square = mil.mb.mul(x=made.inputs["x"], y=made.inputs["x"])
        made.set_outputs([mil.mb.mul(x=square, y=np.float16(0.5), name="y")])
    path = tmp_path / "a.mlpackage"
    package.write({"main": made}, "main", path, {})
    feeds = {"x": np.array([1, 255, 256, 300])}
    assert np.isinf(Interpreter.open(path, "float16").run("main", feeds)["y"]).tolist() == [False, False, True, True]
    assert Interpreter.open(path, "float32").run("main", feeds)["y"].tolist() == [0.5, 32512.5, 32768, 45000]


def test_what_is_wrong_with_a_package_or_a_call_is_said(llama: Emitted, tmp_path: Path) -> None:
    with pytest.raises(EdgeForgeError, match="is not a Core ML package"):
        Interpreter.open(tmp_path)
    interpreter = Interpreter.open(llama.package)
    with pytest.raises(EdgeForgeError, match="no function 'encode'"):
        interpreter.run("encode", {})
    with pytest.raises(EdgeForgeError, match="input input_ids is missing"):
        interpreter.run("decode", {})
    with pytest.raises(EdgeForgeError, match=r"input input_ids is \(1, 2\), and the function takes \(1, 1\)"):
        interpreter.run("decode", {"input_ids": np.zeros((1, 2))})


@pytest.mark.parametrize(("damage", "said"), [
    (lambda raw: None, "Manifest.json: No such file"), (lambda raw: "{", "its Manifest.json is damaged"),
    (lambda raw: "[]", "its Manifest.json is damaged"),
    (lambda raw: raw.replace("rootModelIdentifier", "root"), "its Manifest.json is damaged: KeyError"),
    (lambda raw: raw.replace("model.mlmodel", "other.mlmodel"), "other.mlmodel is missing"),
    (lambda raw: raw.replace("CoreML/weights", "CoreML/more"), "more is missing"),
])
def test_a_package_is_read_by_its_manifest(damage: Callable[[str], str | None], said: str, llama: Emitted,
                                           tmp_path: Path) -> None:
    """As Apple's frameworks do: without it a folder is no package."""
    broken = tmp_path / "broken.mlpackage"
    shutil.copytree(llama.package, broken)
    made = damage((broken / package.MANIFEST).read_text(encoding="utf-8"))
    (broken / package.MANIFEST).unlink()
    if made is not None:
        (broken / package.MANIFEST).write_text(made, encoding="utf-8")
    with pytest.raises(EdgeForgeError, match=said):
        Interpreter.open(broken)
    with pytest.raises(EdgeForgeError, match=said):
        describe.describe([broken])


def test_the_manifest_says_where_the_model_lies(llama: Emitted, tmp_path: Path) -> None:
    moved = tmp_path / "moved.mlpackage"
    shutil.copytree(llama.package, moved)
    (moved / package.DATA).rename(moved / "Data" / "elsewhere")
    text = (moved / package.MANIFEST).read_text(encoding="utf-8")
    (moved / package.MANIFEST).write_text(text.replace("com.apple.CoreML/", "elsewhere/"), encoding="utf-8")
    _run_once(moved)


def test_a_constant_of_another_shape_than_declared_is_named(llama: Emitted) -> None:
    interpreter = Interpreter.open(llama.package)
    function = interpreter.functions["decode"]
    index, op = next((i, o) for i, o in enumerate(function.ops) if o.type == "const"
                     and len(o.outputs[0].shape) == 1 and o.outputs[0].type == "FLOAT16")
    wrong = dataclasses.replace(op.outputs[0], shape=(1, *op.outputs[0].shape))
    ops = list(function.ops)
    ops[index] = dataclasses.replace(op, outputs=(wrong,))
    interpreter.functions["decode"] = dataclasses.replace(function, ops=tuple(ops))
    with pytest.raises(EdgeForgeError, match=r"const makes \(\d+,\), and the package says \(1, \d+\)"):
        interpreter.run("decode", {i.name: np.zeros(i.shape) for i in function.inputs})


def test_an_op_that_is_not_interpreted_is_named(tmp_path: Path) -> None:
    with mil.function({"x": ((4,), mil.FLOAT16)}) as made:
        made.set_outputs([mil.mb.cumsum(x=made.inputs["x"], axis=0, name="y")])
    path = tmp_path / "a.mlpackage"
    package.write({"main": made}, "main", path, {})
    with pytest.raises(UnsupportedError, match="y: cumsum is not interpreted"):
        Interpreter.open(path).run("main", {"x": np.zeros(4)})


def test_a_damaged_file_of_weights_is_refused(llama: Emitted, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mlpackage"
    shutil.copytree(llama.package, broken)
    weights = broken / package.WEIGHTS
    weights.write_bytes(weights.read_bytes()[: 4000])
    with pytest.raises(EdgeForgeError, match=r"weight.bin (has no blob at byte|ends within the blob)"):
        _run_once(broken)
    weights.write_bytes(b"")
    with pytest.raises(EdgeForgeError, match="no file of Core ML weights"):
        Interpreter.open(broken)


def test_a_damaged_program_is_described_or_refused(llama: Emitted, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mlpackage"
    shutil.copytree(llama.package, broken)
    whole = bytearray((broken / package.MODEL).read_bytes())
    rng, refused = np.random.default_rng(3), 0
    for at in rng.integers(0, len(whole), 80):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        (broken / package.MODEL).write_bytes(damaged)
        try:
            describe.describe([broken])
        except EdgeForgeError:
            refused += 1
    assert refused > 0


def _run_once(path: Path) -> None:
    interpreter = Interpreter.open(path)
    feeds = {i.name: np.zeros(i.shape) for i in interpreter.functions["decode"].inputs}
    interpreter.run("decode", feeds)
