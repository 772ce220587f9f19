"""Weights as Core ML stores them: our codes and steps to the last bit, expanded to float16 as they are read."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edgeforge.backends.coreml import mil
from edgeforge.backends.coreml.mil import Var, mb
from edgeforge.encoding import Encoding
from edgeforge.errors import UnsupportedError
from edgeforge.quantize.weights.palette import Palette

Format: TypeAlias = Encoding | Palette
_FLOAT16 = 16
_CODES = (4, 8)
_TABLES = (4, 6)


def constant(name: str, array: npt.NDArray[Any], form: Format | None, spelled: str) -> Var:
    """The weight called name as a constant of the function that is being built; without a format in float16.

    Raises:
        UnsupportedError: the Neural Engine does not take its format.
    """
    if isinstance(form, Palette):
        return _palette(name, form, spelled)
    if form is not None and form.bits < _FLOAT16:
        return _codes(name, array, form, spelled)
    made = mb.const(val=half(name, array), name=spelled)
    mil.share(made, name)
    return made


def half(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """array in float16. UnsupportedError when a value does not fit."""
    with np.errstate(over="ignore"):
        made = np.asarray(array).astype(np.float16)
    if not np.isfinite(made).all():
        raise UnsupportedError(f"{name}: values up to {np.abs(array).max():.6g}, and float16 ends at 65504",
                               "the Neural Engine computes in float16")
    return made


def _codes(name: str, array: npt.NDArray[Any], form: Encoding, spelled: str) -> Var:
    """code * step, with one step a channel, or a block of inputs."""
    _refuse(name, form)
    steps = form.steps().astype(np.float16)
    view = list(steps.shape)
    if form.block is None:
        view = [-1 if steps.ndim and a == (form.axis or 0) else 1 for a in range(array.ndim)]
    if not np.array_equal(steps.astype(np.float32), form.steps()):
        raise UnsupportedError(f"{name}: its steps are no float16 numbers", "the codes were chosen for steps that Core "
                               "ML cannot hold: quantize it for this chip")
    kind = mil.integers(form.bits, form.signed)
    given = {"data": form.quantize(array).astype(kind), "scale": steps.reshape(view)}
    if form.zero_point.any():
        given["offset"] = form.zero_point.astype(kind).reshape(view)
    made = mb.constexpr_blockwise_shift_scale(**given, name=spelled)
    _share(made, name)
    return made


def _refuse(name: str, form: Encoding) -> None:
    """Blocks pass: that the Neural Engine does not take them is said before any work, and by the lint."""
    if form.bits not in _CODES:
        raise UnsupportedError(f"{name}: codes of {form.bits} bits", "Core ML stores codes of 4 or 8 bits")


def _palette(name: str, form: Palette, spelled: str) -> Var:
    """An entry of the table that a group of channels shares."""
    if form.bits not in _TABLES:
        raise UnsupportedError(f"{name}: tables of {form.bits} bits", "the Neural Engine reads tables of 4 or 6 bits")
    rank = form.codes.ndim
    tables = half(name, form.tables).reshape(len(form.tables), *[1] * (rank - 1), 1 << form.bits, 1)
    codes = form.codes.astype(mil.integers(form.bits, False))
    made = mb.constexpr_lut_to_dense(indices=codes, lut=tables, name=spelled)
    _share(made, name)
    return made


def _share(made: Var, name: str) -> None:
    for part, value in made.op.inputs.items():
        if value is not None:
            mil.share(value, f"{name}:{part}")
