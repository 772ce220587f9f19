"""torch -> onnx_ir: one symbolic graph for every width, unoptimised so that no name is lost."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch

from edgeforge.adapt import naming
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.adapt.shape import Decoder
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.edit import AR, PAST

OPSET = 23
_FAR = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXAMPLE_AR, _EXAMPLE_PAST = 16, 48
"""any two different widths >= 2: the exporter specialises 0 and 1"""


def export(module: DecoderGraph, shape: Decoder) -> ir.Model:
    """Exports module with symbolic AR and past; every parameter keeps its module path.

    Inputs and outputs follow the graph contract: input_ids, attention_mask, position_ids_cos/_sin (and
    swa_position_ids_cos/_sin where sliding layers have a table of their own), past_key_{i}_in, past_value_{i}_in
    -> logits, past_key_{i}_out, past_value_{i}_out.
    """
    args = shape.example(_EXAMPLE_AR, _EXAMPLE_PAST)
    _refuse_positions(module, args, shape.model_type)
    dynamic = torch.export.Dim.DYNAMIC
    past_axes = tuple({axis: dynamic} for _ in range(shape.layers)
                      for axis in (shape.profile.key_axis, shape.profile.value_axis))
    cos, sin, *swa = ({2: dynamic} for _ in shape.rotary_names())
    axes = ({1: dynamic}, {2: dynamic, 3: dynamic}, cos, sin, (*swa, *past_axes))
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module, args, dynamic_shapes=axes, strict=False)
            model = torch.onnx.export(program, dynamo=True, optimize=False, opset_version=OPSET,
                                      verbose=False).model  # type: ignore[union-attr]
    except (torch._dynamo.exc.TorchDynamoException, torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise UnsupportedError(f"torch could not export {shape.model_type}: {_first_line(error.__cause__ or error)}",
                               "the model does something that depends on values, or uses an unknown op") from error
    symbols = {_symbol(model.graph.inputs[0], 1): AR, _symbol(model.graph.inputs[-1], shape.profile.value_axis): PAST}
    naming.apply(model, shape.input_names(), shape.output_names(), symbols)
    return model


def _refuse_positions(module: DecoderGraph, args: tuple[torch.Tensor, ...], kind: str) -> None:
    """Are positions used for more than RoPE rows? Then the graph would be right near position 0 only."""
    generator = torch.Generator().manual_seed(0)
    ids, *reals = args
    probes = [torch.randn(t.shape, generator=generator) for t in reals]
    with torch.no_grad(), _quiet():
        near = module(ids, *probes)[0]
        module.position = _FAR
        far = module(ids, *probes)[0]
        module.position = 0
    if not torch.isfinite(near).all():
        raise UnsupportedError(f"{kind}: its logits for random inputs are NaN or infinite",
                               "is a number in config.json wrong, or a weight damaged?")
    if not torch.equal(near, far):
        raise UnsupportedError(f"{kind}: its layers read token positions beside RoPE",
                               "scaling or masking by position is not supported")


def _symbol(value: ir.Value, axis: int) -> str:
    return str(edit.known_dims(value)[axis])


def _first_line(error: BaseException) -> str:
    return _COLOUR.sub("", next(iter(str(error).splitlines()), type(error).__name__))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's progress chatter off the user's terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
