"""Products of activations by a weight, whatever op spells them: Conv, Gemm, or MatMul with a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge.graph import edit
from edgeforge.graph.views import perm
from edgeforge.quantize import roles
from edgeforge.quantize.parameters import read

_TURNS = {"Transpose", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class Product:
    """One node, the value that it reads, and the parameter that it reads it with.

    turned: the parameter passes a Transpose on its way, so it lies [outputs, inputs].
    stream: what is added to the output, when that is all that happens to it.
    turns: the changes of layout between the output and that Add, each with what it reads.
    """

    node: ir.Node
    source: ir.Value
    weight: ir.Value
    turned: bool
    stream: ir.Value | None
    turns: tuple[tuple[ir.Node, ir.Value], ...]

    @property
    def name(self) -> str:
        return str(self.weight.name)

    @property
    def outputs_axis(self) -> int:
        """The weight's axis of output channels."""
        return 0 if self.node.op_type == "Conv" or self.turned else 1

    @property
    def inputs_axis(self) -> int:
        return 1 - self.outputs_axis

    @property
    def inputs(self) -> int:
        """Inputs that one output is made from, a kernel's taps counted."""
        shape = edit.known_dims(self.weight)
        return int(np.prod([int(d) for i, d in enumerate(shape) if i != self.outputs_axis]))

    def matrix(self) -> Tensor:
        """The weight as [inputs, outputs], float32."""
        return self.flat(read(self.weight).float())

    def flat(self, found: Tensor) -> Tensor:
        """The weight's own layout as [inputs, outputs]."""
        flat = found.reshape(len(found), -1) if self.node.op_type == "Conv" else found
        return (flat.T if self.outputs_axis == 0 else flat).contiguous()

    def restored(self, matrix: Tensor) -> Tensor:
        """[inputs, outputs] in the weight's own layout."""
        laid = matrix.T if self.outputs_axis == 0 else matrix
        return laid.reshape([int(d) for d in edit.known_dims(self.weight)]).contiguous()

    @property
    def reading(self) -> tuple[object, ...]:
        """What `rows` depends on besides the value: of one value, products with the same reading have the same rows."""
        if self.node.op_type != "Conv":
            return ("rows", self.node.op_type == "Gemm" and _flag(self.node, "transA"))
        kernel = tuple(int(d) for d in edit.known_dims(self.weight)[2:])
        return ("taps", kernel, *(tuple(v) for v in _geometry(self.node, len(kernel))))

    def rows(self, value: Tensor) -> Tensor:
        """What was read, as [tokens, inputs]."""
        if self.node.op_type != "Conv":
            flat = value.reshape(-1, value.shape[-1])
            return flat.T if self.node.op_type == "Gemm" and _flag(self.node, "transA") else flat
        kernel = [int(d) for d in edit.known_dims(self.weight)[2:]]
        if all(k == 1 for k in kernel) and not _moved(self.node):
            return value.movedim(1, -1).reshape(-1, value.shape[1])
        return _taps(self.node, value, kernel)

    def outputs_of(self, value: Tensor) -> Tensor:
        """What was made, as [tokens, outputs]."""
        last = value.movedim(1, -1) if self.node.op_type == "Conv" else value
        return last.reshape(-1, last.shape[-1])

    def joined(self, value: Tensor) -> Tensor:
        """The stream's value as [tokens, outputs], laid as the output is."""
        for turn, before in reversed(self.turns):
            value = (value.permute(*np.argsort(perm(turn)).tolist()) if turn.op_type == "Transpose" else
                     value.reshape(_sizes(before)))
        return self.outputs_of(value)


def products(graph: ir.Graph) -> Iterator[Product]:
    """Every product of the graph whose weight is a parameter that nothing else reads, in graph order."""
    for node in graph:
        found = _product(node)
        if found is not None and all(v is None or edit.only_user(v) for v in (found.weight, node.inputs[1])):
            yield found


def _product(node: ir.Node) -> Product | None:
    if node.op_type not in ("Conv", "MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    source, weight = node.inputs[:2]
    if source is None or weight is None or source.is_initializer() or not roles.is_real(source):
        return None
    turn = edit.producer(weight, "Transpose")
    turned = turn is not None
    if turn is not None:
        weight = turn.inputs[0]
    if weight is None or not weight.is_initializer() or weight.shape is None:
        return None
    if node.op_type == "Conv":
        return Product(node, source, weight, False, *_stream(node)) if not turned and _readable(node, weight) else None
    if len(weight.shape) != 2:
        return None
    turned = turned != (node.op_type == "Gemm" and _flag(node, "transB"))
    return Product(node, source, weight, turned, *_stream(node))


def _readable(conv: ir.Node, weight: ir.Value) -> bool:
    """Can the inputs of each of conv's outputs be laid out as rows?"""
    padded = conv.attributes.get("auto_pad")
    plain = padded is None or padded.as_string() == "NOTSET"
    return plain and _group(conv) == 1 and weight.shape is not None and len(weight.shape) <= 4


def _stream(node: ir.Node) -> tuple[ir.Value | None, tuple[tuple[ir.Node, ir.Value], ...]]:
    """What one Add joins the node's output with, and the changes of layout before it, when each can be undone."""
    value, turns = node.outputs[0], list[tuple[ir.Node, ir.Value]]()
    while (reader := edit.only_user(value)) is not None and reader.op_type in _TURNS:
        if reader.op_type != "Transpose" and (edit.dims(value) is None or _sizes(value).count(-1) > 1):
            return None, ()
        turns.append((reader, value))
        value = reader.outputs[0]
    if reader is None or reader.op_type != "Add":
        return None, ()
    other = reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]
    same = other is not None and not other.is_initializer() and edit.dims(other) == edit.dims(value)
    return (other, tuple(turns)) if same else (None, ())


def _sizes(value: ir.Value) -> list[int]:
    """The value's shape, -1 where a size is open."""
    return [d if isinstance(d, int) else -1 for d in edit.known_dims(value)]


def _flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())


def _group(node: ir.Node) -> int:
    attribute = node.attributes.get("group")
    return 1 if attribute is None else attribute.as_int()


def _list(node: ir.Node, name: str, default: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return default if attribute is None else [int(v) for v in attribute.as_ints()]


def _moved(node: ir.Node) -> bool:
    """Does a 1x1 convolution skip or pad positions?"""
    return any(s != 1 for s in _list(node, "strides", [])) or any(_list(node, "pads", []))


def _geometry(node: ir.Node, rank: int) -> tuple[list[int], list[int], list[int]]:
    """pads, strides and dilations of a convolution over so many dimensions."""
    return (_list(node, "pads", [0] * 2 * rank), _list(node, "strides", [1] * rank),
            _list(node, "dilations", [1] * rank))


def _taps(node: ir.Node, value: Tensor, kernel: list[int]) -> Tensor:
    """Every position's receptive field, in the order of the weight's own inputs and taps."""
    rank = len(kernel)
    pads, strides, dilations = _geometry(node, rank)
    sides = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    value = torch.nn.functional.pad(value, sides)
    if rank == 1:
        value, kernel, strides, dilations = value[..., None, :], [1, *kernel], [1, *strides], [1, *dilations]
    taps = torch.nn.functional.unfold(value, tuple(kernel), dilation=tuple(dilations), stride=tuple(strides))
    return taps.movedim(1, -1).reshape(-1, taps.shape[1])
