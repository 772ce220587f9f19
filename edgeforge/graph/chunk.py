"""`tensor.chunk(n)`: the exporter writes a sequence and picks from it; compilers want slices."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.graph import edit


class SliceChunks(ir.passes.InPlacePass):
    """SequenceAt(SplitToSequence(x, size), i) -> Slice(x, i*size, (i+1)*size). Pre: constants are initializers.

    Chunks of unequal size, or of an open dimension, are left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return edit.rewrite(model, ("SequenceAt",), lambda node: _slice(model.graph, node))


def _slice(graph: ir.Graph, pick: ir.Node) -> bool:
    split = edit.producer(pick.inputs[0], "SplitToSequence")
    index = edit.ints(pick.inputs[1])
    sizes = edit.ints(split.inputs[1]) if split is not None and len(split.inputs) > 1 else None
    source = split.inputs[0] if split is not None else None
    if split is None or source is None or index is None or sizes is None:
        return False
    shape = edit.known_dims(source)
    attribute = split.attributes.get("axis")
    axis = (attribute.as_int() if attribute is not None else 0) % len(shape)
    width, size = shape[axis], sizes[0]
    if not isinstance(width, int) or len(set(sizes)) != 1:
        return False
    start = index[0] % -(-width // size) * size
    stop = min(start + size, width)
    bounds = [edit.int_vector(graph, [v]) for v in (start, stop, axis)]
    out = pick.outputs[0]
    cut = edit.node_before(pick, "Slice", [source, *bounds], f"{out.name}/slice",
                           [stop - start if a == axis else d for a, d in enumerate(shape)])
    edit.take_over(out, cut)
    return True
