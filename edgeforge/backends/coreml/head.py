"""The product that makes the logits: for the last token alone, and in pieces that the Neural Engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir
from edgeforge_runtime.manifest import LOGITS
from onnx_ir.passes import common

from edgeforge.backends.coreml import target
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.edit import AR, Dim

_VIEWS = {"Transpose", "Squeeze", "Unsqueeze", "Identity"}
_POINTWISE = {"Add", "Sub", "Mul", "Div", "Tanh"}
_TOKENS = 3
"""axis of a convolution's input"""


def divide(model: ir.Model, table: Table, most: int, every_row: bool = False) -> Table:
    """Rewrites model in place: `logits` [1, 1, vocab] of the last token, or `logits_0`, `logits_1`, ... where vocab is
    more than `most`. Returns the table with the pieces' entries.

    Args:
        every_row: [1, AR, vocab] of all tokens instead: where a prompt's last chunk ends is the caller's knowledge.

    Raises:
        UnsupportedError: something between the head and the logits looks across tokens or words.
    """
    graph = model.graph
    logits = next((v for v in graph.outputs if v.name == LOGITS), None)
    if logits is None:
        raise UnsupportedError(f"the graph has no output {LOGITS!r}", "a language model's graph is compiled here")
    chain = list(_back(logits))
    head = chain[0]
    if not every_row:
        table = _last_token(graph, table, head, chain)
    vocab = _channels(head.inputs[1])
    sizes = target.pieces(vocab, most)
    if len(sizes) == 1:
        return table
    made = Table(table)
    cuts = pairwise(accumulate(sizes, initial=0))
    pieces = [_piece(graph, made, chain, index, start, stop) for index, (start, stop) in enumerate(cuts)]
    place = next(i for i, v in enumerate(graph.outputs) if v is logits)
    graph.outputs[place : place + 1] = pieces
    common.RemoveUnusedNodesPass()(model)
    left = edit.names(graph)
    return Table({name: e for name, e in made.items() if name in left})


def _back(logits: ir.Value) -> Iterator[ir.Node]:
    """The head's convolution and what follows it up to the logits, in graph order."""
    found: list[ir.Node] = []
    node = logits.producer()
    while node is not None and node.op_type != "Conv":
        computed = [v for v in node.inputs[:2] if v is not None and not v.is_initializer()]
        constants = [edit.constant(v) for v in node.inputs if v is not None and v.is_initializer()]
        plain = node.op_type in _VIEWS or (node.op_type in _POINTWISE and
                                           all(c is not None and c.size == 1 for c in constants))
        if not plain or len(computed) != 1:
            raise UnsupportedError(f"{node.outputs[0].name}: {node.op_type} between the head and the logits",
                                   f"only {', '.join(sorted(_VIEWS | _POINTWISE))} with a number are divided")
        found.append(node)
        node = computed[0].producer()
    if node is None:
        raise UnsupportedError(f"{LOGITS}: no convolution makes it")
    return reversed([*found, node])


def _last_token(graph: ir.Graph, table: Table, head: ir.Node, chain: list[ir.Node]) -> Table:
    """The head reads the last token alone; the table with the grid, if any, of what it reads now."""
    x = head.inputs[0]
    if x is None:
        raise ValueError(f"{head.name} lacks its input")
    shape = edit.known_dims(x)
    if shape[_TOKENS] == 1:
        return table
    bounds = [edit.int_vector(graph, v) for v in ([-1], [np.iinfo(np.int32).max], [_TOKENS])]
    last = edit.node_before(head, "Slice", [x, *bounds], f"{x.name}/last", [*shape[:_TOKENS], 1])
    head.replace_input_with(0, last)
    for node in chain:
        out = node.outputs[0]
        edit.set_shape(out, [1 if d == shape[_TOKENS] and isinstance(d, str) and AR in d else d
                             for d in edit.known_dims(out)])
    grid = table.get(str(x.name))
    return table if grid is None else Table({**{n: e for n, e in table.items() if n != x.name}, str(last.name): grid})


def _channels(weight: ir.Value | None) -> int:
    array = edit.constant(weight)
    if array is None:
        raise UnsupportedError(f"{LOGITS}: its weight is no constant")
    return len(array)


def _piece(graph: ir.Graph, table: Table, chain: list[ir.Node], index: int, start: int, stop: int) -> ir.Value:
    """The chain once more, for words start to stop."""
    whole = _channels(chain[0].inputs[1])
    mapped: dict[ir.Value, ir.Value] = {}
    for node in chain:
        inputs = [mapped.get(v, v) if v is not None else None for v in node.inputs]
        if node is chain[0]:
            inputs[1:] = [_cut(graph, table, v, index, start, stop) for v in node.inputs[1:] if v is not None]
        out = node.outputs[0]
        shape: list[Dim] = [stop - start if d == whole else d for d in edit.known_dims(out)]
        name = f"{out.name}_{index}" if out.name == LOGITS else f"{out.name}/h{index}"
        mapped[out] = edit.node_before(chain[-1], node.op_type, inputs, name, shape, list(node.attributes.values()))
    return mapped[chain[-1].outputs[0]]


def _cut(graph: ir.Graph, table: Table, value: ir.Value, index: int, start: int, stop: int) -> ir.Value:
    array = edit.constant(value)
    if array is None:
        raise UnsupportedError(f"{value.name} is not a constant")
    made = edit.initializer(graph, f"{value.name}/h{index}", array[start:stop])
    encoding = table.take(str(value.name), 0, start, stop)
    if encoding is not None:
        table.set(str(made.name), encoding)
    return made
