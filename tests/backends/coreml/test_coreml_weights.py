"""A package's weights are ours to the last bit, each stored once; what the Neural Engine does not take is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import coreml_tiny
import numpy as np
import pytest
from coreml_tiny import Emitted
from made_grids import lpbq

from edgeforge.backends.coreml import decoder, mil, package
from edgeforge.backends.coreml.interpret.program import Op, Stored
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError, UnsupportedError
from edgeforge.graph import edit
from edgeforge.quantize.weights.grid import per_channel

DOWN = "model.layers.1.mlp.down_proj.weight"


def _stored(emitted: Emitted, name: str, function: str = "decode") -> Op:
    """The op that expands a weight."""
    return next(op for op in coreml_tiny.program(emitted)[function].ops if op.name == mil.spell(name, set()))


def _held(op: Op, name: str) -> np.ndarray:
    """An argument of an op."""
    value = op.arguments[name][0]
    return value.read() if isinstance(value, Stored) else np.asarray(value)


def _array(emitted: Emitted, name: str) -> np.ndarray:
    array = edit.constant(emitted.model.graph.initializers[name])
    assert array is not None
    return array


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_and_steps_are_ours(bits: int, tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    table = coreml_tiny.table(model, bits)
    emitted = coreml_tiny.emit(tmp_path, made, model, table)
    for name, entry in table.items():
        codes = entry.quantize(_array(emitted, name))
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name or "v_proj" in name else 0
        pieces = [f"{name}/h{i}" for i in range(heads)] or [name]
        ops = [_stored(emitted, piece) for piece in pieces]
        assert {op.outputs[0].type for op in ops} == {"FLOAT16"}
        np.testing.assert_array_equal(np.concatenate([_held(op, "data") for op in ops]), codes)
        scales = np.concatenate([_held(op, "scale") for op in ops])
        assert scales.dtype == np.float16
        np.testing.assert_array_equal(scales.reshape(-1), entry.scale)


def test_tables_and_their_codes_are_ours(tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    palettes = coreml_tiny.palettes(model, 4, 8)
    emitted = coreml_tiny.emit(tmp_path, made, model, palettes=palettes)
    op = _stored(emitted, DOWN)
    np.testing.assert_array_equal(_held(op, "indices"), palettes[DOWN].codes)
    np.testing.assert_array_equal(_held(op, "lut").reshape(4, 16), palettes[DOWN].tables)
    query = "model.layers.0.self_attn.q_proj.weight"
    for head in range(4):
        op = _stored(emitted, f"{query}/h{head}")
        np.testing.assert_array_equal(_held(op, "indices"), palettes[query].codes[head * 8 : head * 8 + 8])
        np.testing.assert_array_equal(_held(op, "lut").ravel(), palettes[query].tables[head])


def test_an_offset_is_kept(tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    array = edit.constant(model.graph.initializers[DOWN])
    assert array is not None
    entry = dataclasses.replace(per_channel(array, 0, 8, half=True), signed=False,
                                zero_point=np.full(len(array), 120, np.int64))
    emitted = coreml_tiny.emit(tmp_path, made, model, Table({DOWN: entry}))
    op = _stored(emitted, DOWN)
    np.testing.assert_array_equal(_held(op, "data"), entry.quantize(array))
    assert (_held(op, "offset") == 120).all()
    assert min(coreml_tiny.decibels(emitted, "float32")) > 100


def test_every_weight_is_stored_once(tmp_path: Path) -> None:
    emitted = coreml_tiny.emit(tmp_path, *coreml_tiny.graph("llama"))
    assert emitted.sharing.share <= 1.001
    assert emitted.sharing.total == coreml_tiny.file(emitted).stat().st_size
    parameters = sum(_array(emitted, str(n)).size for n in emitted.model.graph.initializers if n.endswith("weight"))
    assert 2 * parameters < emitted.sharing.total < 2 * parameters + 12000, "records and the norms' second halves"


def test_weights_that_are_not_shared_are_counted(tmp_path: Path) -> None:
    """The build's gate (`gates.shared_bytes`) holds this figure against its limit."""
    _, model = coreml_tiny.graph("llama")
    functions = decoder.build(model.clone(), Table(), {}, {"decode": 1}, 48)
    other = model.clone()
    for name, value in list(other.graph.initializers.items()):
        value.name = f"{name}_other"
    functions |= {"prefill": decoder.build(other, Table(), {}, {"prefill": 8}, 48)["prefill"]}
    assert package.write(functions, "decode", tmp_path / "twice.mlpackage", {}).share > 1.5


def _entry(array: np.ndarray, **changes: object) -> Encoding:
    return dataclasses.replace(per_channel(array, 0, 8, half=True), **changes)  # type: ignore[arg-type]


def test_what_the_neural_engine_does_not_take_is_refused(tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("llama")
    array = edit.constant(model.graph.initializers[DOWN])
    assert array is not None
    steps = _entry(array).scale * np.float32(1.0001)
    for entry, message in [
            (lpbq(array, 0, 16), f"{DOWN}: its steps are no float16 numbers"),
            (_entry(array, bits=3), f"{DOWN}: codes of 3 bits"),
            (_entry(array, scale=steps), f"{DOWN}: its steps are no float16 numbers")]:
        with pytest.raises(UnsupportedError, match=message) as caught:
            decoder.write(model.clone(), Table({DOWN: entry}), {}, {"decode": 1}, 48, tmp_path / "a.mlpackage")
        assert caught.value.hint
    assert not list(tmp_path.iterdir())
    palettes = coreml_tiny.palettes(model, 4, 16)
    with pytest.raises(EdgeForgeError, match="outputs 0 to 8 cut through a group of 16"):
        decoder.write(model.clone(), Table(), palettes, {"decode": 1}, 48, tmp_path / "a.mlpackage")
    assert made.decoder.head_dim == 8


def test_a_value_beyond_float16_is_refused(tmp_path: Path) -> None:
    _, model = coreml_tiny.graph("llama")
    changed = model.clone()
    value = changed.graph.initializers[DOWN]
    array = edit.constant(value)
    assert array is not None
    huge = array.copy()
    huge[3, 2] = 1e5
    value.const_value = coreml_tiny.ir.tensor(huge, name=DOWN)
    with pytest.raises(UnsupportedError, match=rf"{DOWN}: values up to 100000, and float16 ends at 65504"):
        decoder.write(changed, Table(), {}, {"decode": 1}, 48, tmp_path / "a.mlpackage")


def test_a_package_is_not_overwritten(tmp_path: Path) -> None:
    _, model = coreml_tiny.graph("llama")
    (tmp_path / "a.mlpackage").mkdir()
    for name, message in (("a.mlpackage", "is there already"), ("a.mlmodel", "a Core ML package ends in .mlpackage")):
        with pytest.raises(EdgeForgeError, match=message):
            decoder.write(model.clone(), Table(), {}, {"decode": 1}, 48, tmp_path / name)
