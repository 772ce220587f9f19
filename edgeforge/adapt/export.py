"""torch -> onnx_ir: one symbolic graph for every width, unoptimised so that no name is lost."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings

import onnx_ir as ir
import torch

from edgeforge.adapt import naming
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.adapt.shape import Decoder
from edgeforge.errors import UnsupportedError

OPSET = 23
AR, PAST = "ar", "past"
TOTAL = f"{AR} + {PAST}"
"""names of the symbolic dimensions: new tokens, cached tokens, and their sum"""

_EXAMPLE_AR, _EXAMPLE_PAST = 16, 48
"""any two different widths >= 2: the exporter specialises 0 and 1"""


def export(module: DecoderGraph, shape: Decoder) -> ir.Model:
    """Exports module with symbolic AR and past; every parameter keeps its module path.

    Inputs and outputs follow the graph contract: input_ids, attention_mask, position_ids_cos/_sin,
    past_key_{i}_in, past_value_{i}_in -> logits, past_key_{i}_out, past_value_{i}_out.
    """
    args = shape.example(_EXAMPLE_AR, _EXAMPLE_PAST)
    dynamic = torch.export.Dim.DYNAMIC
    past_axes = tuple({axis: dynamic} for _ in range(shape.layers)
                      for axis in (shape.profile.key_axis, shape.profile.value_axis))
    axes = ({1: dynamic}, {2: dynamic, 3: dynamic}, {2: dynamic}, {2: dynamic}, past_axes)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module, args, dynamic_shapes=axes, strict=False)
            model = torch.onnx.export(program, dynamo=True, optimize=False, opset_version=OPSET,
                                      verbose=False).model  # type: ignore[union-attr]
    except (torch._dynamo.exc.TorchDynamoException, torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise UnsupportedError(f"torch could not export {shape.model_type}: {str(error).splitlines()[0]}",
                               "the model does something that depends on values, or uses an unknown op") from error
    symbols = {str(model.graph.inputs[0].shape[1].value): AR, str(model.graph.inputs[-1].shape[
        shape.profile.value_axis].value): PAST}
    naming.apply(model, shape.input_names(), shape.output_names(), symbols)
    return model


@contextlib.contextmanager
def _quiet() -> contextlib._GeneratorContextManager[None]:
    """Keeps the exporter's progress chatter off the user's terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
