"""Products that read the same value become one, and a Split behind it: q, k and v; gate and up. What a checkpoint holds
as one product and cuts by Slices (Phi3's qkv_proj, gate_up_proj) is cut the same way.

TensorRT merges them by itself, and then lays the merged weight out anew for each optimization profile: prefill and
decode no longer share it (SmolLM2's shapes on 1.7.1, float16 and W8A8: 1.49 x the bytes; merged here: 1.00). It also
takes a merged product apart again when a Split of its last axis follows, so the parts are cut along an axis of their
own. A merged weight is named after its parts, in the order of the graph, joined by '+'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.backends.tensorrt.weights import Packed, Product, products
from edgeforge.graph import edit
from edgeforge.graph.edit import Dim

_Kind = tuple[ir.Value, str, int | None]


def merge(model: ir.Model, packed: dict[str, Packed]) -> dict[str, Packed]:
    """In place. Post: no two products of the same form (codes, block, or neither) read one value, and no product is cut
    by Slices of its last axis.

    A weight that something else reads too (a tied embedding) stays by itself. Before weights.write.

    Args:
        packed: weights that are codes, by name.

    Returns:
        packed, with merged weights under their new names.
    """
    _cut_fused(model.graph)
    groups: dict[_Kind, list[Product]] = {}
    for product in products(model.graph):
        if len(list(product.weight.uses())) == 1 and len(list(product.turn.outputs[0].uses())) == 1:
            groups.setdefault(_kind(product, packed), []).append(product)
    found = dict(packed)
    for group in (g for g in groups.values() if len(g) > 1):
        name = _merge(model.graph, group)
        parts = [found.pop(n) for p in group if (n := str(p.weight.name)) in found]
        if parts:
            found[name] = _joined(parts)
    common.RemoveUnusedNodesPass()(model)
    return found


def _cut_fused(graph: ir.Graph) -> None:
    """Slices that take a product apart, whole and without overlap, become what `_cut` writes."""
    for product in products(graph):
        whole = product.node.outputs[0]
        slices = _slices(whole)
        if slices:
            readers = list(slices.values())
            first = next(node for node in graph if node in readers)
            parts = _cut(graph, first, whole, [str(n.outputs[0].name) for n in readers], [b - a for a, b in slices])
            for node, part in zip(readers, parts, strict=True):
                edit.take_over(node.outputs[0], part)


def _slices(whole: ir.Value) -> dict[tuple[int, int], ir.Node]:
    """What reads it, by first and last output and in their order; nothing unless Slices do that tile its last axis."""
    uses, shape = [use.node for use in whole.uses()], edit.known_dims(whole)
    if whole.is_graph_output() or any(node.op_type != "Slice" for node in uses):
        return {}
    bounds = [edit.slice_bounds(node) or {} for node in uses]
    if len(uses) < 2 or any(set(b) != {len(shape) - 1} for b in bounds):
        return {}
    found = dict(sorted(zip((b[len(shape) - 1] for b in bounds), uses, strict=True), key=lambda pair: pair[0]))
    tiles = [start for start, _ in found] + [shape[-1]] == [0] + [stop for _, stop in found]
    return found if tiles and len(found) == len(uses) else {}


def _kind(product: Product, packed: dict[str, Packed]) -> _Kind:
    mine = packed.get(str(product.weight.name))
    return (product.x, "float", None) if mine is None else (product.x, mine.codes.dtype.name, mine.block)


def _joined(parts: Sequence[Packed]) -> Packed:
    return Packed(np.concatenate([p.codes for p in parts]), np.concatenate([p.scale for p in parts]), parts[0].block)


def _merge(graph: ir.Graph, group: Sequence[Product]) -> str:
    """One product, its weight [sum of N, K] float still; every part's reader gets its slice under the old name."""
    first = group[0]
    arrays = [a for p in group if (a := edit.constant(p.weight)) is not None]
    widths = [len(a) for a in arrays]
    stem = str(first.weight.name).rpartition(".")[0]
    names = [str(p.weight.name) for p in group]
    name = edit.fresh(graph, "+".join(names))
    weight = edit.initializer(graph, name, np.concatenate(arrays))
    turned = edit.node_before(first.node, "Transpose", [weight], f"{name}/Transpose",
                              [arrays[0].shape[1], sum(widths)], [ir.AttrInt64s("perm", [1, 0])])
    lead = edit.known_dims(first.x)[:-1]
    whole = edit.node_before(first.node, "MatMul", [first.x, turned], edit.fresh(graph, f"{stem}/merged"),
                             [*lead, sum(widths)])
    parts = _cut(graph, first.node, whole, [str(p.node.outputs[0].name) for p in group], widths)
    for product, part in zip(group, parts, strict=True):
        edit.take_over(product.node.outputs[0], part)
    return name


def _cut(graph: ir.Graph, anchor: ir.Node, whole: ir.Value, names: Sequence[str],
         widths: Sequence[int]) -> list[ir.Value]:
    """[1, S, sum] -> [1, S, pieces, size] -> Split of the pieces -> [1, S, n] each; size divides every width."""
    size = math.gcd(*widths)
    lead = edit.known_dims(whole)[:-1]
    pieces = [n // size for n in widths]

    def view(value: ir.Value, name: str, tail: list[int]) -> ir.Value:
        target = [d if isinstance(d, int) else -1 for d in (*lead, *tail)]
        return edit.node_before(anchor, "Reshape", [value, edit.int_vector(graph, target)], name, [*lead, *tail])

    grouped = view(whole, f"{whole.name}/pieces", [sum(pieces), size])
    shapes: dict[str, Sequence[Dim]] = {f"{name}/pieces": [*lead, n, size]
                                        for name, n in zip(names, pieces, strict=True)}
    cut = edit.nodes_before(anchor, "Split", [grouped, edit.int_vector(graph, pieces)], shapes,
                            [ir.AttrInt64("axis", len(lead))])
    return [view(part, f"{name}/part", [n]) for part, name, n in zip(cut, names, widths, strict=True)]
