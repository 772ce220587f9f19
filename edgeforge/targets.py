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
    live on the scores' integer grid. least_multiplier: smallest input scale x weight scale / output scale of a
    product that the hardware can multiply by. signed_operands: 16-bit codes that a product of activations reads
    second have to be signed (graph/operand.py).
    """

    name: str
    linear: Literal["conv1x1", "matmul"]
    transposed_keys: bool
    split_heads: bool
    lower_rope: bool
    masked: float
    least_multiplier: float = 0.0
    signed_operands: bool = False

    @property
    def key_axis(self) -> int:
        """Token axis of past_key_*."""
        return 3 if self.transposed_keys else 2

    @property
    def value_axis(self) -> int:
        """Token axis of past_value_*."""
        return 2


HTP = Profile("htp", linear="conv1x1", transposed_keys=True, split_heads=True, lower_rope=True, masked=-50.0,
              least_multiplier=2.0**-23, signed_operands=True)
"""its multipliers end at 2^-24: below, a channel of 6e-8 of the output's range saturates (tried, on the emulator)"""
PLAIN = Profile("plain", linear="matmul", transposed_keys=False, split_heads=False, lower_rope=False, masked=-50.0)
PROFILES = {p.name: p for p in (HTP, PLAIN)}


@dataclass(frozen=True)
class Hexagon:
    """What one generation of Qualcomm's HTP takes; every chip of that generation takes the same.

    weight_bits: of weights beside 16-bit activations. kv_bits: of a cache, whose 16 bits the products have to take as
    signed second operands. sharing: prefill and decode in one binary over one
    set of weights. graph_bytes: the most that one graph may allocate; the compiler refuses more.
    """

    arch: int
    weight_bits: tuple[int, ...]
    kv_bits: tuple[int, ...]
    block_weights: bool
    sharing: bool
    graph_bytes: int


_OLD, _NEW = 2 << 30, 3584 << 20
"""as the compiler words them: "limit is 2097152 KB" on v69, "limit is 3670016 KB" on v73 (public issue threads)"""

HEXAGON = {h.arch: h for h in (
    Hexagon(68, (8, 16), (8,), block_weights=False, sharing=False, graph_bytes=_OLD),
    Hexagon(69, (8, 16), (8,), block_weights=False, sharing=False, graph_bytes=_OLD),
    Hexagon(73, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(75, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(79, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(81, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
)}


@dataclass(frozen=True)
class Chip:
    """One chip.

    part: Qualcomm's part number, under which the sources list it. soc_model: its Qnn_SocModel_t, the number
    that the compiler takes. dsp_arch: read back from a binary compiled for soc_model (tests/test_targets.py
    does it again). vtcm_mb: the tightly coupled memory that a graph may plan with; the compiler believes any
    number, and a binary planned for more than the chip has does not load.
    """

    name: str
    part: str
    soc_model: int
    dsp_arch: int
    vtcm_mb: int
    backend: str = "qnn"
    profile: Profile = HTP

    @property
    def hexagon(self) -> Hexagon:
        return HEXAGON[self.dsp_arch]

    @property
    def graph_bytes(self) -> int:
        """The most that one compiled graph may allocate."""
        return self.hexagon.graph_bytes

    @property
    def weight_sharing(self) -> bool:
        """Prefill and decode in one binary over one set of weights: Hexagon v73 and later."""
        return self.hexagon.sharing


_UNSTATED = 4
"""VTCM where no public table states it: the least that any table states for any HTP"""

# Numbers: Qnn_SocModel_t (QnnTypes.h of the public QAIRT SDK; its documentation's list of supported devices).
# Part numbers behind the names: Qualcomm's product briefs. VTCM: ExecuTorch's _soc_info_table
# (pytorch/executorch, backends/qualcomm/serialization/qc_schema.py) and LiteRT's kSocInfos
# (google-ai-edge/LiteRT, litert/vendors/qualcomm/core/schema/soc_table.cc), both Qualcomm's own.
# The 10-core Snapdragon X Plus is SC8380XP too; the 8-core one (SC8340XP) has no number of its own: left out.
CHIPS = {chip.name: chip for chip in (
    Chip("snapdragon-888", "SM8350", 30, 68, 4),
    Chip("snapdragon-8-gen-1", "SM8450", 36, 69, 8),
    Chip("snapdragon-8-plus-gen-1", "SM8475", 42, 69, 8),
    Chip("snapdragon-8-gen-2", "SM8550", 43, 73, 8),
    Chip("snapdragon-8-gen-3", "SM8650", 57, 75, 8),
    Chip("snapdragon-8s-gen-3", "SM8635", 68, 73, _UNSTATED),
    Chip("snapdragon-8s-gen-4", "SM8735", 85, 73, _UNSTATED),
    Chip("snapdragon-8-gen-5", "SM8845", 97, 81, 8),
    Chip("snapdragon-8-elite", "SM8750", 69, 79, 8),
    Chip("snapdragon-8-elite-gen-5", "SM8850", 87, 81, 8),
    Chip("snapdragon-7-gen-1", "SM7450", 41, 69, _UNSTATED),
    Chip("snapdragon-7-gen-3", "SM7550", 64, 73, _UNSTATED),
    Chip("snapdragon-7-gen-4", "SM7750", 86, 73, _UNSTATED),
    Chip("snapdragon-7-plus-gen-2", "SM7475", 54, 69, _UNSTATED),
    Chip("snapdragon-7-plus-gen-3", "SM7675", 70, 73, _UNSTATED),
    Chip("snapdragon-7s-gen-3", "SM7635", 73, 73, _UNSTATED),
    Chip("snapdragon-8cx-gen-3", "SC8280XP", 37, 68, _UNSTATED),
    Chip("snapdragon-x-elite", "SC8380XP", 60, 73, 8),
    Chip("snapdragon-x-plus-10-core", "SC8380XP", 60, 73, 8),
    Chip("snapdragon-x2-elite", "SC8480XP", 88, 81, _UNSTATED),
    Chip("qcm6490", "QCM6490", 93, 68, 2),
    Chip("qcs8275", "QCS8300", 82, 75, 8),
    Chip("qcs8300", "QCS8300", 82, 75, 8),
    Chip("qcs8550", "QCS8550", 66, 73, _UNSTATED),
    Chip("qcs9075", "QCS9100", 77, 73, 8),
    Chip("qcs9100", "QCS9100", 77, 73, 8),
    Chip("sa8255p", "SA8255", 52, 73, 8),
    Chip("sa8295p", "SA8295", 39, 68, 8),
)}


def chip(name: str) -> Chip:
    """The chip of that name; RecipeError names the nearest one we know."""
    found = CHIPS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower().replace(" ", "-").replace("_", "-"), CHIPS, 1)
    raise RecipeError(f"target.chip: no chip {name!r}",
                      f"did you mean {near[0]!r}?" if near else f"known chips: {', '.join(CHIPS)}")
