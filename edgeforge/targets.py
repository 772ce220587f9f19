"""The capability table: what each chip can do, and the graph shape that each kind of target wants."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from edgeforge.errors import RecipeError


@dataclass(frozen=True)
class Profile:
    """The shape of graph that a target family wants; adapt builds what it says.

    linear: how a Linear is written. transposed_keys: key cache [kv, 1, head_dim, T] instead of
    [1, kv, T, head_dim]. split_heads: one small attention a head (MHA -> SHA). lower_rope: rotary as
    arithmetic, not as one op. masked: what the mask adds to a forbidden score; bounded, because it has to
    live on the scores' integer grid.
    """

    name: str
    linear: Literal["conv1x1", "matmul"]
    transposed_keys: bool
    split_heads: bool
    lower_rope: bool
    masked: float

    @property
    def key_axis(self) -> int:
        """Token axis of past_key_*."""
        return 3 if self.transposed_keys else 2

    @property
    def value_axis(self) -> int:
        """Token axis of past_value_*."""
        return 2


HTP = Profile("htp", linear="conv1x1", transposed_keys=True, split_heads=True, lower_rope=True, masked=-50.0)
PLAIN = Profile("plain", linear="matmul", transposed_keys=False, split_heads=False, lower_rope=False, masked=-50.0)
PROFILES = {p.name: p for p in (HTP, PLAIN)}


@dataclass(frozen=True)
class Chip:
    """One chip. soc_model and dsp_arch are Qualcomm's ids, read back from binaries compiled for them.

    vtcm_mb: the tightly coupled memory that a graph may plan with.
    """

    name: str
    backend: str
    profile: Profile
    soc_model: int
    dsp_arch: int
    vtcm_mb: int = 8

    @property
    def weight_sharing(self) -> bool:
        """Prefill and decode in one binary over one set of weights: Hexagon v73 and later."""
        return self.dsp_arch >= 73


CHIPS = {chip.name: chip for chip in (
    Chip("snapdragon-8-gen-2", "qnn", HTP, soc_model=43, dsp_arch=73),
    Chip("snapdragon-8-gen-3", "qnn", HTP, soc_model=57, dsp_arch=75),
    Chip("snapdragon-8-elite", "qnn", HTP, soc_model=69, dsp_arch=79),
    Chip("snapdragon-8-elite-gen-5", "qnn", HTP, soc_model=87, dsp_arch=81),
    Chip("snapdragon-x-elite", "qnn", HTP, soc_model=60, dsp_arch=73),
)}


def chip(name: str) -> Chip:
    """The chip of that name; RecipeError names the nearest one we know."""
    found = CHIPS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, CHIPS, 1)
    raise RecipeError(f"target.chip: no chip {name!r}",
                      f"did you mean {near[0]!r}?" if near else f"known chips: {', '.join(CHIPS)}")
