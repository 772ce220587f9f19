"""float32 -> float16, everywhere: every constant is rounded once, and no Cast is left between."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeforge.errors import UnsupportedError

_FULL, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = float(np.finfo(np.float16).max)


class ToHalf(ir.passes.InPlacePass):
    """Post: inputs, outputs, constants and all values between are float16 where they were float32.

    Raises:
        UnsupportedError: a constant beyond 65504, or a Cast to a float (named).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        for node in graph:
            if node.op_type == "Cast" and node.attributes["to"].as_int() in (_FULL, ir.DataType.DOUBLE):
                raise UnsupportedError(f"{node.outputs[0].name}: the model computes this in float32 on purpose",
                                       "no float16 form of it is known here")
        for value in list(graph.initializers.values()):
            if value.dtype == _FULL and value.const_value is not None:
                value.const_value = ir.tensor(half(str(value.name), value.const_value.numpy()), name=value.name)
        for value in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]:
            if value.dtype == _FULL:
                value.type = ir.TensorType(_HALF)
        return ir.passes.PassResult(model, True)


def half(name: str, array: np.ndarray) -> np.ndarray:
    """array rounded to float16; UnsupportedError when a number does not fit."""
    worst = float(np.abs(array).max(initial=0.0))
    if not worst <= LARGEST:
        raise UnsupportedError(f"{name}: holds {worst:.6g}, and float16 ends at {LARGEST:.0f}",
                               "this model needs a target with wider numbers")
    return array.astype(np.float16)
