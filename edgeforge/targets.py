"""The capability table: what each chip can do, and the graph shape that each kind of target wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Profile:
    """The shape of graph that a target family wants; adapt builds what it says.

    linear: how a Linear is written. transposed_keys: key cache [kv, 1, head_dim, T] instead of
    [1, kv, T, head_dim]. split_heads: one small attention a head (MHA -> SHA). lower_rope: rotary as arithmetic, not as one op. masked: what the mask
    adds to a forbidden score; bounded, because it has to live on the scores' integer grid.
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
