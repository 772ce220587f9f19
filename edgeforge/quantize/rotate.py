"""Rotation of the residual stream: exact on the float model, and no channel is an outlier afterwards.

With an orthogonal Q every RMS-normalised decoder computes the same function when the stream x becomes Q'x:
embeddings and the matrices that write into the stream are multiplied by Q', those that read it by Q, once the
norms' gains are folded into the readers (QuaRot, arXiv 2404.00456; SliceGPT, arXiv 2401.15024). A massive
activation (29,000 in one channel of SmolLM2, against 1 elsewhere) is spread over all channels, so that one
16-bit grid resolves the rest.

Any Q will do that; `toward` adds a reflection that turns the stream's strongest direction, seen in
calibration, into (1, ..., 1)/sqrt(n). The massive token then has the same value in every channel, the
smallest peak that its norm allows, and always on one side of zero, where an asymmetric grid pays for it
once: on SmolLM2 the stream's range falls from 3,810 to about 1,340.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.untie import UntieEmbedding
from edgeforge.quantize.parameters import Matrix, get, parameter, projection, put

_HINT = "leave `rotate` out of quantize.transforms for this model"
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
    rotation: Matrix = np.kron(hadamard, dct)
    return rotation


def toward(q: Matrix, direction: Matrix | None) -> Matrix:
    """q, then the reflection (Householder) after which direction @ q is flat: the same in every channel."""
    if direction is None:
        return q
    turned = direction @ q / np.linalg.norm(direction)
    flat = np.full(len(q), len(q) ** -0.5)
    normal = turned - flat
    length = np.linalg.norm(normal)
    if length < 1e-9:
        return q
    normal /= length
    reflected: Matrix = q - 2 * np.outer(q @ normal, normal)
    return reflected


@dataclass
class _Stream:
    """Who touches the residual stream."""

    writers: list[tuple[ir.Node, ir.Node | None]] = field(default_factory=list)
    """a projection, and what adds its bias when that is a node of its own"""
    readers: list[tuple[ir.Node, ir.Value]] = field(default_factory=list)
    """a projection and the gain of the norm in front of it"""
    norms: list[ir.Node] = field(default_factory=list)


def rotate(model: ir.Model, direction: Matrix | None = None) -> int:
    """Rotates the residual stream of a decoder in place; returns its width.

    A table that is the head's weight too gets a copy of its own.

    Args:
        direction: the stream's strongest direction, [width]; see `toward`.

    Raises:
        UnsupportedError: something other than RMS norms, additions and projections touches the stream
            (named): a norm behind the writer, a scaled embedding, a parameter with other readers.
    """
    gather = _embedding(model.graph)
    stream = _walk(gather)
    width = edit.known_dims(gather.outputs[0])[-1]
    if not isinstance(width, int):
        raise UnsupportedError("the embedding's width is open")
    UntieEmbedding()(model)
    table = parameter(gather, 0)
    writers = [projection(*nodes) for nodes in stream.writers]
    readers = [(projection(node), gain) for node, gain in stream.readers]
    q = toward(orthogonal(width), direction)
    put(table, get(table) @ q)
    for writer in writers:
        writer.put(q.T @ writer.matrix())
        if writer.bias is not None:
            put(writer.bias, q.T @ get(writer.bias))
    for reader, gain in readers:
        reader.put(reader.matrix() * get(gain) @ q)
    for gain in {id(g): g for _, g in readers}.values():
        put(gain, np.ones_like(get(gain)))
    return width


def watched(graph: ir.Graph) -> list[str]:
    """The stream's values that norms read: what `direction` is found from."""
    return [str(norm.inputs[0].name) for norm in _walk(_embedding(graph)).norms if norm.inputs[0] is not None]


def _embedding(graph: ir.Graph) -> ir.Node:
    gathers = [n for n in graph if n.op_type == "Gather" and n.inputs[0] is not None
               and n.inputs[0].is_initializer()]
    if len(gathers) != 1:
        raise UnsupportedError(f"rotation needs one embedding table, the graph has {len(gathers)}")
    return gathers[0]


def _walk(gather: ir.Node) -> _Stream:
    """Follows the stream from the embedding through additions; notes writers and readers."""
    stream = _Stream()
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
                stream.norms.append(node)
                continue
            else:
                raise UnsupportedError(
                    f"{node.outputs[0].name}: {node.op_type} reads the residual stream", _HINT)
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return stream


def _writer(value: ir.Value | None, add: ir.Node) -> tuple[ir.Node, ir.Node | None]:
    turn = edit.producer(value, "Transpose")
    if turn is not None and (conv := edit.producer(turn.inputs[0], "Conv")) is not None:
        return conv, None
    if (product := edit.producer(value, "MatMul")) is not None:
        return product, None
    if (bias := edit.producer(value, "Add")) is not None:
        for a, b in (bias.inputs, reversed(bias.inputs)):
            if b is not None and b.is_initializer() and (product := edit.producer(a, "MatMul")) is not None:
                return product, bias
    raise UnsupportedError(f"{add.outputs[0].name}: what is added to the residual stream is not a projection", _HINT)


def _readers(norm: ir.Node) -> list[tuple[ir.Node, ir.Value]]:
    gain = parameter(norm, 1)
    found = []
    for use in norm.outputs[0].uses():
        nodes = [u.node for u in use.node.outputs[0].uses()] if use.node.op_type == "Transpose" else [use.node]
        for node in nodes:
            if node.op_type != ("Conv" if use.node.op_type == "Transpose" else "MatMul"):
                raise UnsupportedError(f"{norm.outputs[0].name} is read by {node.op_type}, not a projection", _HINT)
            found.append((node, gain))
    return found
