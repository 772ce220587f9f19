"""A static decoder graph as a torch module that torch.export can read: our nodes by their ONNX semantics, our weights
as Core AI's own compressed constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge import torch_ops
from edgeforge.backends.coreml.weights import Format, half
from edgeforge.encoding import Encoding
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.quantize.weights.palette import Palette

_FLOAT16, _FOUR = 16, 4
_WIDE = {"RMSNormalization", "LayerNormalization", "Softmax"}
"""sums of float16 squares overflow: computed in float32 whatever flows around them, as Apple's own modules do"""
Held: TypeAlias = "Tensor | Codes | Table | Any"


class GraphModule(torch.nn.Module):
    """forward: the graph's inputs in order -> its outputs in order. floats: what flows; weights expand to float16."""

    def __init__(self, graph: ir.Graph, formats: Mapping[str, Format], floats: torch.dtype) -> None:
        """UnsupportedError: a weight in a format that Core AI does not take (named)."""
        super().__init__()
        self._graph, self._floats = graph, floats
        self._places: dict[ir.Value, str] = {}
        self._numbers: dict[ir.Value, Any] = {}
        for index, (name, value) in enumerate(graph.initializers.items()):
            array = edit.constant(value)
            if array is None:
                raise ValueError(f"{name} has no value")
            if array.dtype.kind != "f":
                self._numbers[value] = array  # shapes and axes: read while tracing, so no tensors
                continue
            self._places[value] = f"constant_{index}"
            self.add_module(self._places[value], _constant(name, array, formats.get(name)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        values: dict[ir.Value, Any] = dict(zip(self._graph.inputs, inputs, strict=True))
        for node in self._graph:
            read = [None if v is None else values[v] if v in values else self._given(v) for v in node.inputs]
            if node.op_type in _WIDE:
                made = tuple(t.to(self._floats) for t in torch_ops.evaluate(
                    node, [None if t is None else t.float() for t in read]))
            else:
                made = torch_ops.evaluate(node, read)
            values.update(zip(node.outputs, made, strict=False))
        return tuple(values[v] for v in self._graph.outputs)

    def _given(self, value: ir.Value) -> Any:
        if value in self._numbers:
            return self._numbers[value]
        return cast(Tensor, getattr(self, self._places[value])()).to(self._floats)

    def example(self) -> tuple[Tensor, ...]:
        """Arguments of forward."""
        kinds = [torch.int32 if v.dtype in (ir.DataType.INT32, ir.DataType.INT64) else self._floats
                 for v in self._graph.inputs]
        return tuple(torch.zeros([int(d) for d in edit.known_dims(v)], dtype=kind)
                     for v, kind in zip(self._graph.inputs, kinds, strict=True))


class Plain(torch.nn.Module):
    """A float16 constant."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("value", torch.from_numpy(array))

    def forward(self) -> Tensor:
        return cast(Tensor, self.value)


class Codes(torch.nn.Module):
    """(codes - zero point) * step; the steps' shape says which share one."""

    def __init__(self, codes: np.ndarray, steps: np.ndarray, zeros: np.ndarray | None, four: str) -> None:
        """four: torch's name of a 4-bit type; empty for 8 bits."""
        super().__init__()
        self.register_buffer("codes", torch.from_numpy(codes))
        self.register_buffer("steps", torch.from_numpy(steps))
        self.register_buffer("zeros", None if zeros is None else torch.from_numpy(zeros))
        self._four = getattr(torch, four) if four else None

    def forward(self) -> Tensor:
        return cast(Tensor, torch.ops.coreai.constexpr_blockwise_shift_scale(
            self.codes, self.steps, self.zeros, None, self._four))


class Table(torch.nn.Module):
    """Entries of tables [groups, 1.., entries, 1]. The converter finds 4- and 6-bit codes by the buffers' names."""

    def __init__(self, codes: np.ndarray, tables: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("indices", torch.from_numpy(codes))
        self.register_buffer("lut", torch.from_numpy(tables))

    def forward(self) -> Tensor:
        return cast(Tensor, torch.ops.coreai.lut_to_dense(self.indices, self.lut, 0))


def _constant(name: str, array: np.ndarray, form: Format | None) -> torch.nn.Module:
    if isinstance(form, Palette):
        ones = [1] * (form.codes.ndim - 1)
        return Table(form.codes, half(name, form.tables).reshape(len(form.tables), *ones, 1 << form.bits, 1))
    if not isinstance(form, Encoding) or form.bits >= _FLOAT16:
        return Plain(half(name, array))
    steps = form.steps()
    if form.block is None:
        view = [-1 if form.scale.ndim and a == form.axis else 1 for a in range(array.ndim)]
        steps, zeros = steps.reshape(view), form.zero_point.reshape(view)
    else:
        zeros = form.zero_point
    if not np.array_equal(steps.astype(np.float16).astype(np.float32), steps):
        raise UnsupportedError(f"{name}: its steps are no float16 numbers", "quantize it for this chip")
    kind = np.int8 if form.signed else np.uint8
    four = form.dtype if form.bits == _FOUR else ""
    return Codes(form.quantize(array).astype(kind), steps.astype(np.float16),
                 zeros.astype(kind) if zeros.any() else None, four)
