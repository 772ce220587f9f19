"""What is known to send an op away from the Neural Engine, looked for in a finished package.

Placement is decided on the device, by rules that nobody published; a package without findings may still run elsewhere.
Sources: Apple's public coreai-models and ml-ane-transformers; coremltools issues 2510 (steps of blocks) and 2631;
ANEMLL's and ExecuTorch's limits on products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from edgeforge.backends.coreml.interpret.program import Function, Op, Stored
from edgeforge.backends.coreml.systems import LANE
from edgeforge.backends.coreml.target import MOST_OUTPUTS

MOST_AXES = 5
_CHANNEL_FORMATS = {"constexpr_blockwise_shift_scale": "scale", "constexpr_lut_to_dense": "lut"}
KNOWN = {"const", *_CHANNEL_FORMATS, "add", "sub", "mul", "real_div", "concat", "conv", "gather", "gelu", "identity",
         "layer_norm", "matmul", "relu", "reshape", "sigmoid", "silu", "slice_by_size", "softmax", "split", "sqrt",
         "tanh", "transpose",
         "quantize", "dequantize", "read_state", "write_state", "slice_update"}
"""ops of decoders that were seen on the Neural Engine; erf and abs were not"""


def lint(functions: Mapping[str, Function]) -> list[str]:
    """What speaks against the Neural Engine, each with function and op; sorted, each once."""
    return sorted({f"{name}: {said}" for name, function in functions.items() for op in function.ops
                   for said in _op(op)})


def states(functions: Mapping[str, Function]) -> list[str]:
    """The states that the Neural Engine is known to refuse, each once: it may take them one day, so nothing stops."""
    return sorted({f"{s.name}: {s.shape[-1]} wide, no multiple of {LANE} (coremltools issue 2631)"
                   for function in functions.values() for s in function.states if s.shape[-1] % LANE})


def narrow(function: Function) -> int:
    """Values whose last axis is shorter than the 64 bytes that the Neural Engine pads rows to: they take up to 32 times
    their bytes there. Nothing stops for them: channels-first values of one token (AR-1) are all so."""
    return sum(bool(out.shape) and out.shape[-1] < LANE for op in function.ops if not op.type.startswith("const")
               for out in op.outputs)


def _op(op: Op) -> Iterator[str]:
    if op.type not in KNOWN:
        yield f"{op.name}: {op.type} was not seen on the Neural Engine"
    for out in (o for o in op.outputs if op.type != "const"):
        if len(out.shape) > MOST_AXES:
            yield f"{out.name}: {len(out.shape)} axes, and {MOST_AXES} are taken"
        if out.type == "FLOAT32":
            yield f"{out.name}: float32"
    if op.type == "conv" and op.outputs[0].shape[1] > MOST_OUTPUTS:
        yield f"{op.name}: {op.outputs[0].shape[1]} outputs of one product, and {MOST_OUTPUTS} are taken"
    if op.type in _CHANNEL_FORMATS and any(d != 1 for d in _shape(op, _CHANNEL_FORMATS[op.type])[1:]):
        yield f"{op.name}: steps or tables of blocks of inputs, and one a channel is taken"


def _shape(op: Op, key: str) -> tuple[int, ...]:
    """A format's blocks along each axis of the weight."""
    value = op.arguments[key][0]
    shape = value.shape if isinstance(value, Stored | np.ndarray) else ()
    return shape[:-2] if key == "lut" else shape
