"""Products: with weights as convolutions on (1, C, 1, S), attention's as matmuls, embeddings as a table's rows."""

from __future__ import annotations

import onnx_ir as ir

from edgeforge.backends.coreml import laid
from edgeforge.backends.coreml.emit import Lowering, Work, path, static
from edgeforge.backends.coreml.laid import Laid
from edgeforge.backends.coreml.mil import mb
from edgeforge.backends.coreml.target import MOST_OUTPUTS
from edgeforge.errors import UnsupportedError

_POINTWISE = {"Add", "Mul", "Div", "Tanh", "Identity"}


def _conv(node: ir.Node, work: Work) -> Laid:
    x, shape = work.read(node), static(node.outputs[0])
    weight = work.weight(node.inputs[1])
    group = node.attributes.get("group")
    if x.rank != laid.RANK or tuple(weight.shape[2:]) != (1, 1) or (group is not None and group.as_int() != 1):
        raise UnsupportedError(f"{path(node)}: a convolution of {list(weight.shape)}", "1x1 convolutions are lowered")
    if shape[1] > MOST_OUTPUTS:
        raise UnsupportedError(f"{path(node)}: {shape[1]} outputs of one product, and the Neural Engine takes "
                               f"{MOST_OUTPUTS}", "only the head that makes the logits is divided")
    given = {"bias": work.weight(node.inputs[2])} if len(node.inputs) > 2 and node.inputs[2] is not None else {}
    order = laid.natural(laid.RANK)
    made = mb.conv(x=work.arranged(x, order), weight=weight, pad_type="valid", **given, name=work.named(node))
    return Laid(made, order, shape)


def _matmul(node: ir.Node, work: Work) -> Laid:
    """As it is where rows are read by a softmax; else transposed, as the convolution that follows wants it."""
    x, y, shape = work.read(node, 0), work.read(node, 1), static(node.outputs[0])
    rank = len(shape)
    x, y = x.lifted(rank), y.lifted(rank)
    if any(d != 1 for d in shape[:-2]):
        raise UnsupportedError(f"{path(node)}: a product over several heads", "each head has its own (`split_heads`)")
    plain = laid.natural(rank)
    turned = (*plain[:-2], rank - 1, rank - 2)
    x_turned, y_turned = x.copies(plain), y.copies(plain)
    left = work.arranged(x, turned if x_turned else plain)
    right = work.arranged(y, turned if y_turned else plain)
    name = work.named(node)
    if _feeds_softmax(node.outputs[0]):
        made = mb.matmul(x=left, y=right, transpose_x=x_turned, transpose_y=y_turned, name=name)
        return Laid(made, plain, shape)
    made = mb.matmul(x=right, y=left, transpose_x=not y_turned, transpose_y=not x_turned, name=name)
    return Laid(made, turned, shape)


def _feeds_softmax(value: ir.Value) -> bool:
    readers = [use.node for use in value.uses()]
    return any(n.op_type == "Softmax" or (n.op_type in _POINTWISE and _feeds_softmax(n.outputs[0])) for n in readers)


def _gather(node: ir.Node, work: Work) -> Laid:
    """Rows of an embedding, at once as the layers want them."""
    indices, axis, shape = work.read(node, 1), node.attributes.get("axis"), static(node.outputs[0])
    if axis is not None and axis.as_int() != 0:
        raise UnsupportedError(f"{path(node)}: Gather along axis {axis.as_int()}", "rows of a table are lowered")
    table = work.weight(node.inputs[0])
    rows = mb.gather(x=table, indices=indices.var, axis=0, validate_indices=False, name=work.named(node))
    found = Laid(rows, laid.natural(len(shape))[-len(shape):], shape)
    order = laid.channels_first(len(shape))
    return Laid(work.arranged(found, order), order, shape)


TABLE: dict[str, Lowering] = {"Conv": _conv, "MatMul": _matmul, "Gather": _gather}
