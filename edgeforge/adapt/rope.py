"""RoPE tables, shipped beside the graph: the model's own frequencies, turned into angles in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from edgeforge.adapt.shape import rotary_inputs
from edgeforge.errors import UnsupportedError

Table = npt.NDArray[np.float32]

_TOLERANCE = 2e-3
"""how far the module's own float32 tables may lie from ours: its angles are off by position * 6e-8"""


def tables(model: nn.Module, context: int) -> dict[str, Table]:
    """cos and sin, float32 [context, rotary/2], of positions 0..context-1, by the graph inputs that take their rows.

    The rotary module itself picks the frequencies and the amplitude for this context (llama3, yarn,
    longrope, linear and dynamic scaling come along), by layer type where it has several; only position *
    frequency is done here, in float64, because in float32 far positions lose digits and in half they are noise.
    """
    rotary: Any = getattr(getattr(model, "model", None), "rotary_emb", None)
    found: dict[str, Table] = {}
    for layers, names in rotary_inputs(getattr(model, "config", None)).items():
        prefix, args = (f"{layers}_", (layers,)) if layers else ("", ())
        if getattr(getattr(rotary, f"{prefix}inv_freq", None), "dtype", None) not in (torch.float32, torch.float64):
            raise UnsupportedError(f"{type(model).__name__}: no float32 frequencies at "
                                   f"model.rotary_emb.{prefix}inv_freq", "one RoPE table for all layers, or one a "
                                   "layer type, is supported")
        with torch.no_grad():
            theirs = rotary(torch.zeros(1, context, 1), torch.arange(context)[None], *args)
        ours = _of(getattr(rotary, f"{prefix}inv_freq"), getattr(rotary, f"{prefix}attention_scaling"), context)
        _compare(ours, theirs)
        found |= {name: table.float().numpy() for name, table in zip(names, ours, strict=True)}
    return found


def _of(frequencies: torch.Tensor, amplitude: float, context: int) -> list[torch.Tensor]:
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies.double())
    return [f(angles) * float(amplitude) for f in (torch.cos, torch.sin)]


def _compare(ours: list[torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        if other.shape[-1] != 2 * mine.shape[-1] or (other[0] - torch.cat([mine, mine], -1)).abs().max() > _TOLERANCE:
            raise UnsupportedError("the model's rotary table is not cos/sin of position x frequency, half-split",
                                   "interleaved or value-dependent RoPE is not supported")
