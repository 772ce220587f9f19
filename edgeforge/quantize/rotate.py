"""Rotation of the residual stream: exact on the float model, and no channel is an outlier afterwards.

With an orthogonal Q every RMS-normalised decoder computes the same function when the stream x becomes Q'x:
embeddings and the matrices that write into the stream are multiplied by Q', those that read it by Q, once the
norms' gains are folded into the readers (QuaRot, arXiv 2404.00456; SliceGPT, arXiv 2401.15024). A massive
activation (29,000 in one channel of SmolLM2, against 1 elsewhere) is spread over all channels, so that one
16-bit grid resolves the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

Matrix = npt.NDArray[np.float64]

_VIEWS = ("Unsqueeze", "Squeeze", "Reshape")


def orthogonal(size: int) -> Matrix:
    """Hadamard of the largest power of two in size, times (Kronecker) a DCT-II of the odd rest."""
    odd = size
    hadamard = np.ones((1, 1))
    while odd % 2 == 0:
        odd //= 2
        hadamard = np.kron(hadamard, np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2))
    rows, columns = np.mgrid[0:odd, 0:odd]
    dct = np.cos(np.pi * rows * (2 * columns + 1) / (2 * odd)) * np.sqrt(2 / odd)
    dct[0] /= np.sqrt(2)
    return np.kron(hadamard, dct)


@dataclass
class _Stream:
    """Who touches the residual stream."""

    tables: list[ir.Value] = field(default_factory=list)
    writers: list[ir.Node] = field(default_factory=list)
    readers: list[tuple[ir.Node, ir.Value]] = field(default_factory=list)
    """a Conv and the gain of the norm in front of it"""


def rotate(model: ir.Model) -> int:
    """Rotates the residual stream of a conv1x1 decoder in place; returns its width.

    Raises:
        UnsupportedError: something other than RMS norms, additions and 1x1 convolutions touches the stream
            (named): a norm behind the writer, a scaled embedding, a parameter with other readers.
    """
    gathers = [n for n in model.graph if n.op_type == "Gather" and n.inputs[0] is not None
               and n.inputs[0].is_initializer()]
    if len(gathers) != 1:
        raise UnsupportedError(f"rotation needs one embedding table, the graph has {len(gathers)}")
    stream = _walk(gathers[0])
    _own_parameters(stream)
    width = edit.known_dims(gathers[0].outputs[0])[-1]
    if not isinstance(width, int):
        raise UnsupportedError("the embedding's width is open")
    q = orthogonal(width)
    for table in stream.tables:
        _set(table, _get(table) @ q)
    for node in stream.writers:
        weight = _parameter(node, 1)
        _set(weight, (q.T @ _matrix(weight)).reshape(_get(weight).shape))
        if len(node.inputs) > 2:
            bias = _parameter(node, 2)
            _set(bias, q.T @ _get(bias))
    for node, gain in stream.readers:
        weight = _parameter(node, 1)
        _set(weight, (_matrix(weight) * _get(gain) @ q).reshape(_get(weight).shape))
    for gain in {id(g): g for _, g in stream.readers}.values():
        _set(gain, np.ones_like(_get(gain)))
    return width


def _walk(gather: ir.Node) -> _Stream:
    """Follows the stream from the embedding through additions; notes writers and readers."""
    stream = _Stream(tables=[_parameter(gather, 0)])
    todo, seen = [gather.outputs[0]], {gather.outputs[0]}
    while todo:
        value = todo.pop()
        for use in value.uses():
            node = use.node
            if node.op_type in _VIEWS and use.idx == 0:
                following = node.outputs[0]
            elif node.op_type == "Add":
                other = node.inputs[1 - use.idx]
                if other not in seen:
                    stream.writers.append(_writer(other, node))
                following = node.outputs[0]
            elif node.op_type == "RMSNormalization" and use.idx == 0:
                stream.readers += _readers(node)
                continue
            else:
                raise UnsupportedError(f"{node.outputs[0].name}: {node.op_type} reads the residual stream",
                                       "leave `rotate` out of quantize.transforms for this model")
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return stream


def _writer(value: ir.Value | None, add: ir.Node) -> ir.Node:
    turn = edit.producer(value, "Transpose")
    conv = edit.producer(turn.inputs[0], "Conv") if turn is not None else None
    if conv is None or turn is None:
        raise UnsupportedError(f"{add.outputs[0].name}: what is added to the residual stream is not a projection",
                               "leave `rotate` out of quantize.transforms for this model")
    return conv


def _readers(norm: ir.Node) -> list[tuple[ir.Node, ir.Value]]:
    gain = _parameter(norm, 1)
    found = []
    for use in norm.outputs[0].uses():
        turn = use.node
        for further in turn.outputs[0].uses():
            if turn.op_type != "Transpose" or further.node.op_type != "Conv":
                raise UnsupportedError(f"{norm.outputs[0].name} is read by {further.node.op_type}, not a projection",
                                       "leave `rotate` out of quantize.transforms for this model")
            found.append((further.node, gain))
    return found


def _own_parameters(stream: _Stream) -> None:
    for node in [*stream.writers, *(n for n, _ in stream.readers)]:
        weight = _parameter(node, 1)
        if len(list(weight.uses())) != 1:
            raise UnsupportedError(f"{weight.name} is shared: rotating it would change another layer")


def _parameter(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None or not value.is_initializer():
        raise UnsupportedError(f"{node.outputs[0].name}: input {index} of {node.op_type} is not a parameter")
    return value


def _get(value: ir.Value) -> Matrix:
    array = edit.constant(value)
    if array is None:
        raise ValueError(f"{value.name} is not a constant")
    return array.astype(np.float64)


def _matrix(value: ir.Value) -> Matrix:
    array = _get(value)
    return array.reshape(array.shape[0], -1)


def _set(value: ir.Value, array: Matrix) -> None:
    value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
