"""What TensorRT gets is the model: the emitted ONNX, run by onnxruntime, against the float graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
import trt_tiny as t

from edgeforge.backends.tensorrt import parity, weights
from edgeforge.backends.tensorrt.emit import Emitted, emit
from edgeforge.encodings import Encoding, Table
from edgeforge.errors import UnsupportedError
from edgeforge.gates import Check
from edgeforge.graph import edit, fuse_attention, store
from edgeforge.sections import Gates

DOWN = "model.layers.1.mlp.down_proj.weight"


def _compare(folder: Path, family: str, grids: Table, spoil: Callable[[Emitted], None] | None = None) -> list[Check]:
    source = t.artifact(folder / "quantize", family, grids)
    emitted = emit(t.floats(family), grids, t.CONTEXT)
    if spoil is not None:
        spoil(emitted)
    (folder / "onnx").mkdir()
    return parity.checks(source, grids, emitted, store.save(emitted.model, folder / "onnx"), t.IDS, 1)


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.slow),
                                    *(pytest.param(f, marks=pytest.mark.slow) for f in (
                                        "llama-mqa", "llama-mha", "qwen2", "qwen3", "phi3-partial", "smollm3", "phi",
                                        "granite", "olmo2", "olmo3", "gemma3", "stablelm-parallel"))])
def test_every_family_in_float16(tmp_path: Path, family: str) -> None:
    """Prefill, and decode over the cache that prefill wrote. These models are harsher on float16 than trained ones."""
    prefill, decode = _compare(tmp_path, family, Table())
    assert prefill.value > 50, family
    assert decode.value > 50, family


@pytest.mark.parametrize(("bits", "block"), [(4, 64), (4, 128), (4, None), (8, None)])
def test_packed_weights(tmp_path: Path, bits: int, block: int | None) -> None:
    prefill, decode = _compare(tmp_path, "llama", t.table(t.floats("llama"), bits, block))
    assert prefill.value > 50
    assert decode.value > 50


@pytest.mark.parametrize("fp8", [False, True])
def test_codes_times_codes(tmp_path: Path, fp8: bool) -> None:
    """Twice: without the codes that products read, and with them, which a hair's breadth moves by a whole step."""
    checks = _compare(tmp_path, "llama", t.table(t.floats("llama"), 8, read=True, fp8=fp8))
    assert [c.gate for c in checks] == ["emitted_db"] * 2 + ["emitted_codes_db"] * 2
    for check in checks:
        assert check.value > getattr(Gates(), str(check.gate)), check


def test_fp8_weights_alone(tmp_path: Path) -> None:
    checks = _compare(tmp_path, "llama", t.table(t.floats("llama"), 8, fp8=True))
    assert [c.gate for c in checks] == ["emitted_db"] * 2
    assert min(c.value for c in checks) > 50


def test_8_bit_weights_written_as_float16(tmp_path: Path) -> None:
    """For Turing: the numbers of their grids, so that nothing but the bytes differs."""
    grids = t.table(t.floats("llama"), 8)
    source = t.artifact(tmp_path / "quantize", "llama", grids)
    emitted = emit(t.floats("llama"), grids, t.CONTEXT, alone=False)
    assert emitted.packed == {}
    (tmp_path / "onnx").mkdir()
    checks = parity.checks(source, grids, emitted, store.save(emitted.model, tmp_path / "onnx"), t.IDS, 1)
    assert min(c.value for c in checks) > 50


def _wrong_scale(emitted: Emitted) -> None:
    for value in emitted.model.graph.initializers.values():
        if value.name == "const.attention.unscale":
            value.const_value = ir.tensor(np.array(3.9, np.float16), name=value.name)


def test_a_wrong_rewrite_is_seen(tmp_path: Path) -> None:
    prefill, _ = _compare(tmp_path, "llama", Table(), _wrong_scale)
    assert prefill.value < 45


def test_a_wrong_rewrite_is_seen_through_codes(tmp_path: Path) -> None:
    prefill, *_ = _compare(tmp_path, "llama", t.table(t.floats("llama"), 8, read=True), _wrong_scale)
    assert prefill.value < Gates().emitted_db


def test_a_value_that_float16_lacks_is_seen(tmp_path: Path) -> None:
    """Activations of 1e5 are no error of onnxruntime's: they are infinite, and the check says so."""
    def spoil(emitted: Emitted) -> None:
        value = emitted.model.graph.initializers["model.layers.1.input_layernorm.weight"]
        value.const_value = ir.tensor(np.full(128, 60000, np.float16), name=value.name)
    prefill, _ = _compare(tmp_path, "llama", Table(), spoil)
    assert prefill.value == -np.inf
    assert "65504" in prefill.note


def test_the_form_that_tensorrt_takes() -> None:
    model = t.floats("llama")
    emitted = emit(model, t.table(model, 4, 64), t.CONTEXT)
    ops = tiny.op_types(emitted.model.graph)
    assert ops["Attention"] == 2
    assert ops["TensorScatter"] == 4
    assert ops["MatMul"] == 2 * 4 + 1, "q, k, v are one product, gate and up another"
    assert not {"Cast", "Concat", "Softmax"} & set(ops)
    graph = emitted.model.graph
    assert graph.opset_imports[""] == 24
    assert {str(v.dtype) for v in graph.inputs} == {"INT32", "INT64", "FLOAT16"}
    assert {tuple(edit.known_dims(v)) for v in graph.inputs if str(v.name).startswith("past_")} == {(1, 2, 64, 32)}
    merged = "+".join(f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv")
    assert graph.initializers[merged].dtype == ir.DataType.INT4
    assert emitted.weight_bytes < 300_000


def test_the_form_of_fp8() -> None:
    """Codes and zero points in ONNX's own type, and activations of one kind with the weight."""
    model = t.floats("llama", 1)
    graph = emit(model.clone(), t.table(model, 8, read=True, fp8=True), t.CONTEXT).model.graph
    assert graph.initializers["model.layers.0.self_attn.o_proj.weight"].dtype == ir.DataType.FLOAT8E4M3FN
    made = [n for n in graph if n.op_type == "QuantizeLinear"]
    assert len(made) == 5
    assert {n.outputs[0].dtype for n in made} == {ir.DataType.FLOAT8E4M3FN}
    mixed = t.table(model, 8, read=True)
    floats = Table(dict(mixed) | {n: e for n, e in t.table(model, 8, fp8=True).items() if n in mixed})
    assert emit(model.clone(), floats, t.CONTEXT).read == (), "an int8 grid before an fp8 weight is read by nobody"


def test_codes_that_two_nodes_read_are_refused() -> None:
    """A tied table: the quantize stage gives the head a value of its own first (untie.py)."""
    model = t.floats("llama-tied", 1)
    with pytest.raises(UnsupportedError, match="more than one node reads its codes"):
        emit(model, t.table(model, 8), t.CONTEXT)


def test_a_tied_head_in_float16_is_stored_once() -> None:
    emitted = emit(t.floats("llama-tied", 1), Table(), t.CONTEXT)
    tables = [v for v in emitted.model.graph.initializers.values() if v.shape == (t.VOCAB, 128)]
    assert len(tables) == 1


def _with(encoding: Encoding) -> Table:
    return Table({DOWN: encoding})


def _grid(shape: tuple[int, ...], bits: int, axis: int | None, block: int | None = None, zero: int = 0,
          step: float = 0.01) -> Encoding:
    return Encoding(bits, True, np.full(shape, step, np.float32), np.full(shape, zero, np.int64), axis, block)


@pytest.mark.parametrize(("encoding", "said"), [
    (_grid((128,), 8, 0, zero=3), "zero point"), (_grid((128, 4), 8, 1, 64), "a scale a block or"),
    (_grid((128, 32), 4, 1, 8), "blocks of 8"), (_grid((256,), 8, 1), "a scale a block or an input"),
    (_grid((128,), 8, 0, step=1e-7), "no near float16"), (_grid((128,), 2, 0), "weights of 2 bits")])
def test_grids_without_a_product_are_refused_by_module_path(encoding: Encoding, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as caught:
        emit(t.floats("llama"), _with(encoding), t.CONTEXT)
    assert caught.value.message.startswith(f"{DOWN}: ")


@pytest.mark.parametrize(("encoding", "dtype", "block"), [
    (_grid((128,), 4, 0), "int4", 128), (_grid((), 4, None), "int4", 128), (_grid((128, 1), 4, 1, 256), "int4", 128),
    (_grid((128, 2), 4, 1, 128), "int4", 128), (_grid((128, 16), 4, 1, 16), "int4", 16),
    (_grid((), 8, None), "int8", None), (replace(_grid((), 8, None, step=1e-4), e4m3=True), "float8_e4m3fn", None)])
def test_scales_are_written_another_way_and_mean_the_same(encoding: Encoding, dtype: str, block: int | None) -> None:
    weight = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32) * 0.02
    packed = weights.pack("w", weight, encoding)
    assert packed is not None
    assert (packed.codes.dtype.name, packed.block) == (dtype, block)
    scale = packed.scale[:, None] if block is None else packed.scale.repeat(block, 1)
    made = packed.codes.astype(np.float32) * scale.astype(np.float32)
    np.testing.assert_allclose(made, encoding.dequantize(encoding.quantize(weight)), 2e-3, 2**-24)


def test_rows_of_zeros_need_no_scale() -> None:
    weight = np.zeros((4, 32), np.float32)
    weight[0] = 1
    packed = weights.pack("w", weight, Encoding(8, True, np.array([.01, 1e-9, 1e-9, 1e-9], np.float32),
                                                np.zeros(4, np.int64), 0))
    assert packed is not None
    assert (packed.scale > 0).all()


def test_constants_beyond_float16_are_refused_by_name() -> None:
    model = t.floats("llama")
    value = model.graph.initializers["model.norm.weight"]
    value.const_value = ir.tensor(np.full(128, 1e5, np.float32), name=value.name)
    with pytest.raises(UnsupportedError, match=r"^model\.norm\.weight: holds 100000, and float16 ends at 65504"):
        emit(model, Table(), t.CONTEXT)


def test_soft_capped_scores_stay_spelled_out() -> None:
    model = t.floats("gemma2", 1)
    assert not fuse_attention.FuseAttention()(model).modified


@pytest.mark.parametrize("step", [1e-7, 2e-7, 1e5])
def test_a_step_that_float16_lacks_is_refused_before_a_product(step: float) -> None:
    """2e-7 is 3.36 of float16's smallest numbers, and became 3."""
    grids = t.table(t.floats("llama", 1), 8, read=True)
    name = next(n for n in grids if n.endswith("post_attention_layernorm"))
    grids = Table(dict(grids) | {name: Encoding(8, True, np.array(step, np.float32), np.array(0, np.int64))})
    said = re.escape(f"{name}: a scale of {step:.3g} has no near float16")
    with pytest.raises(UnsupportedError, match=f"^{said}") as caught:
        emit(t.floats("llama", 1), grids, t.CONTEXT)
    assert "16 bits" in caught.value.hint


def test_a_fused_product_is_cut_along_an_axis_of_its_own() -> None:
    """No Slice of a product's last axis is left, whichever is its element; the parts keep their names."""
    model = t.floats("phi3", 1)
    sliced = [n for n in model.graph if n.op_type == "Slice" and (by := edit.producer(n.inputs[0], "MatMul"))
              and edit.producer(by.inputs[1], "Transpose")]
    names = {str(n.outputs[0].name) for n in sliced}
    assert len(names) == 5, "q, k, v; gate, up"
    graph = emit(model, Table(), t.CONTEXT).model.graph
    assert not [n for n in graph if n.op_type == "Slice" and edit.producer(n.inputs[0], "MatMul")]
    made = {str(o.name): n.op_type for n in graph for o in n.outputs}
    assert {made.get(name) for name in names} == {"Reshape"}
    assert graph.initializers["model.layers.0.self_attn.qkv_proj.weight"].dtype == ir.DataType.FLOAT16
