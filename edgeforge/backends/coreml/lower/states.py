"""Caches that the model keeps: new tokens written into their slots, the whole read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.backends.coreml import laid
from edgeforge.backends.coreml.emit import Lowering, Work, static
from edgeforge.backends.coreml.laid import Laid
from edgeforge.backends.coreml.mil import Var, mb
from edgeforge.backends.coreml.state import SCATTER


def _scatter(node: ir.Node, work: Work) -> Laid:
    """TensorScatter(cache, new, slot): what attention reads is the state behind its update."""
    shape, rank = static(node.outputs[0]), len(static(node.outputs[0]))
    axis = node.attributes["axis"].as_int()
    new = work.read(node, 1)
    held = work.state(node.inputs[0])
    begin, end = _bounds(work.read(node, 2).var, shape, axis, new.shape[axis])
    written = mb.slice_update(x=mb.read_state(input=held), update=work.arranged(new, laid.natural(rank)),
                              begin=begin, end=end)
    made = mb.coreml_update_state(state=held, value=written, name=work.named(node))
    return Laid(made, laid.natural(rank), shape)


def _bounds(slot: Var, shape: tuple[int, ...], axis: int, count: int) -> tuple[Var, Var]:
    """Begin and end of the slots that are written, along all axes."""
    last = mb.add(x=slot, y=np.int32(count))
    begin = mb.concat(values=[slot if a == axis else np.array([0], np.int32) for a in range(len(shape))], axis=0)
    end = mb.concat(values=[last if a == axis else np.array([d], np.int32) for a, d in enumerate(shape)], axis=0)
    return begin, end


TABLE: dict[str, Lowering] = {SCATTER: _scatter}
