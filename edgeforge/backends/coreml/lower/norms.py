"""Norms as layer_norm, which alone is computed in more than float16 on the Neural Engine."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.backends.coreml.emit import Lowering, Work, path
from edgeforge.backends.coreml.laid import Laid
from edgeforge.backends.coreml.mil import mb
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit


def _rms(node: ir.Node, work: Work) -> Laid:
    """Of [x, -x] the mean is zero and the variance is mean(x^2), so its layer norm is [y, -y] with y the RMS norm of x
    (ANEMLL's and smpanaro's form). Written out, x^2 overflows float16 from 256 on.
    """
    x, gain = _last(node, work), edit.constant(node.inputs[1])
    if gain is None:
        raise UnsupportedError(f"{path(node)}: a norm whose gain is computed", "constants are lowered")
    place = x.place(-1)
    minus = mb.mul(x=x.var, y=np.float16(-1))
    both = mb.concat(values=[x.var, minus], axis=place)
    gains = work.constant(f"{_name(node, 1)}/both", np.concatenate([gain.reshape(-1), np.zeros(x.shape[-1])]))
    normed = mb.layer_norm(x=both, axes=[place], gamma=gains, epsilon=_epsilon(node))
    made = mb.slice_by_size(x=normed, begin=[0] * len(x.order), size=x.stored(x.order), name=work.named(node))
    return Laid(made, x.order, x.shape)


def _layer(node: ir.Node, work: Work) -> Laid:
    x = _last(node, work)
    for i, what in ((1, "gain"), (2, "bias")):
        if len(node.inputs) > i and node.inputs[i] is not None and edit.constant(node.inputs[i]) is None:
            raise UnsupportedError(f"{path(node)}: a norm whose {what} is computed", "constants are lowered")
    given = {key: work.constant(_name(node, i), array.reshape(-1)) for key, i in (("gamma", 1), ("beta", 2))
             if i < len(node.inputs) and (array := edit.constant(node.inputs[i])) is not None}
    made = mb.layer_norm(x=x.var, axes=[x.place(-1)], epsilon=_epsilon(node), **given, name=work.named(node))
    return Laid(made, x.order, x.shape)


def _last(node: ir.Node, work: Work) -> Laid:
    x, axis = work.read(node), node.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, x.rank - 1):
        raise UnsupportedError(f"{path(node)}: {node.op_type} over axis {axis.as_int()}", "the last axis is lowered")
    return x


def _epsilon(node: ir.Node) -> np.float16:
    """ONNX's default is 1e-5; float16 has no smaller positive number than 6e-8."""
    given = node.attributes.get("epsilon")
    return np.float16(max(given.as_float() if given is not None else 1e-5, 2.0**-24))


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    return str(value.name) if value is not None else path(node)


TABLE: dict[str, Lowering] = {"RMSNormalization": _rms, "LayerNormalization": _layer}
