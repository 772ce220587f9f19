"""Outlier channel splitting: one huge channel of a gated MLP becomes several small ones. Exact in float.

A channel x_j that reaches p_j is written as n_j channels x_j / n_j, read by copies of one column of the down
projection, so its range falls by n_j and no weight grows (Zhao et al., arXiv 1901.09504). Decoders make their
massive activations (arXiv 2402.17762) in a channel or two of one MLP, on the first token: SmolLM2's layer 11
reaches 3,568 where 99 % of the channels stay below 9. On one 16-bit grid that leaves the others 8 bits, and
is most of what all activations lose (41.6 dB alone, 40.2 together). Scaling the channel into the down
projection instead would cost its weights what the activation gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.quantize.parameters import get, projection, put

_ALIGN = 64
"""channels are added in this number: whole vectors for HTP, whole blocks for block-wise weights"""
_TARGET = 16.0
"""the split channels' new peak, in peaks of the 1 % largest. Those double from one text to the next, so a
range that hugged them would clip; a range of some outlier's size leaves them this much headroom"""
_WORTH = 4.0
"""times that the range must shrink; less than two bits is not worth wider weights"""

_PROJECTIONS = "Conv", "MatMul"
_POINTWISE = {"Transpose", "Sigmoid", "Tanh", "Gelu", "Relu", "Swish", "Mul"}


@dataclass(frozen=True)
class Mlp:
    """gate and up make the product that down reads; values lie between them and carry its channels.

    The product is up's output times what gate becomes, so a channel's factor passes from up to down.
    """

    product: ir.Value
    gate: ir.Node
    up: ir.Node
    down: ir.Node
    values: tuple[ir.Value, ...]


def watched(graph: ir.Graph) -> dict[str, tuple[int, ...]]:
    """The products of all gated MLPs, with the axis by which their peaks are wanted."""
    return {str(mlp.product.name): (len(edit.known_dims(mlp.product)) - 1,) for mlp in mlps(graph)}


def split(model: ir.Model, peaks: Mapping[str, npt.NDArray[np.floating]]) -> list[str]:
    """Widens the MLPs where it pays, in place; returns the names of their products."""
    done = []
    for mlp in mlps(model.graph):
        copies = plan(peaks[str(mlp.product.name)])
        if copies is not None:
            _widen(mlp, copies)
            done.append(str(mlp.product.name))
    return done


def plan(peaks: npt.NDArray[np.floating]) -> npt.NDArray[np.int64] | None:
    """Copies of each channel, or None when no channel is massive."""
    ranked = np.argsort(-peaks, kind="stable")
    target = _TARGET * peaks[ranked[len(peaks) // 100 + 1]]
    if target <= 0 or peaks.max() < _WORTH * target:
        return None
    copies: npt.NDArray[np.int64] = np.maximum(np.ceil(peaks / target), 1).astype(np.int64)
    # What fills up the last vector goes to the next in rank, in halves (or thirds, when there are too few).
    rest = [i for i in ranked if copies[i] == 1]
    for k in range(-(int(copies.sum()) - len(peaks)) % _ALIGN):
        copies[rest[k % len(rest)]] += 1
    return copies


def mlps(graph: ir.Graph) -> Iterator[Mlp]:
    """The gated MLPs whose inner values and parameters nothing else reads."""
    for node in graph:
        product = edit.producer(_through(node.inputs[0]), "Mul") if _projects(node) else None
        if product is not None and len(product.outputs[0].shape or ()) == (4 if node.op_type == "Conv" else 3):
            found = _mlp(product, node)
            if found is not None:
                yield found


def _mlp(product: ir.Node, down: ir.Node) -> Mlp | None:
    """product = up(x) * f(gate(x)), when both factors are read by nothing else."""
    values = _between(down.inputs[0])
    if values is None or not _private(values, down):
        return None
    projections = [n for v in values if (n := edit.producer(v, *_PROJECTIONS)) is not None]
    for side in reversed(product.inputs):
        up = edit.producer(_through(side), *_PROJECTIONS)
        if up is not None and len(projections) == 2:
            gate = next(n for n in projections if n is not up)
            found = Mlp(product.outputs[0], gate, up, down, tuple(values))
            return found if all(map(_own, (gate, up, down))) else None
    return None


def _own(node: ir.Node) -> bool:
    """Are node's parameters read by nothing else?"""
    try:
        projection(node)
    except UnsupportedError:
        return False
    return True


def _projects(node: ir.Node) -> bool:
    """Is it a product with a parameter?"""
    if node.op_type == "Conv":
        return True
    weight = node.inputs[1] if node.op_type == "MatMul" else None
    return weight is not None and (weight.is_initializer() or edit.producer(weight, "Transpose") is not None)


def _through(value: ir.Value | None) -> ir.Value | None:
    turn = edit.producer(value, "Transpose")
    return turn.inputs[0] if turn is not None else value


def _between(value: ir.Value | None) -> list[ir.Value] | None:
    """Every value from value up to the projections it comes from; None when something else lies there."""
    found: list[ir.Value] = []
    todo = [value]
    while todo:
        here = todo.pop()
        node = edit.producer(here)
        if here is None or here in found or here.is_initializer():
            continue
        if node is None or (node.op_type not in _POINTWISE and not _projects(node)):
            return None
        found.append(here)
        if not _projects(node):
            todo += node.inputs
    return found


def _private(values: list[ir.Value], down: ir.Node) -> bool:
    """Does nothing but these values and down read them?"""
    inside = {v.producer() for v in values} | {down}
    leave = any(v.is_graph_output() for v in values)
    return not leave and all(u.node in inside for v in values for u in v.uses())


def _widen(mlp: Mlp, copies: npt.NDArray[np.int64]) -> None:
    width = len(copies)
    # The copies stand behind the originals, so that the first channels keep their places.
    order = np.concatenate([np.arange(width), np.repeat(np.arange(width), copies - 1)])
    gate, up, down = (projection(node) for node in (mlp.gate, mlp.up, mlp.down))
    for made, share in ((gate, np.ones(width)), (up, 1 / copies)):
        made.put((made.matrix() * share[:, None])[order])
        if made.bias is not None:
            put(made.bias, (get(made.bias) * share)[order])
    down.put(down.matrix()[:, order])
    for value in mlp.values:
        shape = edit.known_dims(value)
        if shape.count(width) != 1:
            raise UnsupportedError(f"{value.name}: which of {shape} is the channel axis?")
        edit.set_shape(value, [len(order) if d == width else d for d in shape])
