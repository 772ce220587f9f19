"""A value of the graph, and how it lies in memory.

The graph thinks in [1, 1, S, C]; the Neural Engine computes on (1, C, 1, S). So a value is stored with its axes in an
order of its own: a Transpose, and a Reshape that only moves axes of size 1, change what the stored axes are called,
and cost nothing. A copy is made only where an op needs another order, once for all that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from edgeforge.backends.coreml.mil import Var, mb

RANK = 4
"""of everything that is stored; the Neural Engine takes 5 at most"""
Order = tuple[int | None, ...]
"""the axis of the value that each stored axis holds; None: one of size 1 that the value does not have"""


@dataclass(frozen=True)
class Laid:
    """A value of that shape whose stored axes are `order`; every axis of the value is among them."""

    var: Var
    order: Order
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def place(self, axis: int) -> int:
        """Where an axis of the value is stored."""
        return self.order.index(axis % self.rank)

    def stored(self, order: Order) -> list[int]:
        """Stored shape in that order."""
        return [1 if axis is None else self.shape[axis] for axis in order]

    def wide(self, order: Order) -> list[int]:
        """The axes of more than one element as they follow each other in that order."""
        return [axis for axis in order if axis is not None and self.shape[axis] != 1]

    def copies(self, order: Order) -> bool:
        """Do elements have to move for that order?"""
        return self.wide(self.order) != self.wide(order)

    def viewed(self, shape: Sequence[int], axes: dict[int, int]) -> Laid:
        """The same elements as a value of another shape; axes: new axis of every old axis of more than one element."""
        order: list[int | None] = [axes[a] if a is not None and self.shape[a] != 1 else None for a in self.order]
        spare = [i for i, axis in enumerate(order) if axis is None]
        for axis in (a for a in range(len(shape)) if a not in axes.values()):
            if spare:
                order[spare.pop(0)] = axis
            else:
                order.append(axis)
        made = Laid(self.var, tuple(order), tuple(shape))
        return made if len(order) == self.var.rank else Laid(reshape(self.var, made.stored(made.order)), made.order,
                                                            made.shape)

    def lifted(self, rank: int) -> Laid:
        """With axes of size 1 in front, as broadcasting adds them."""
        more = rank - self.rank
        if not more:
            return self
        return self.viewed((1,) * more + self.shape, {a: a + more for a in range(self.rank) if self.shape[a] != 1})


def natural(rank: int) -> Order:
    """Axes as they are, at least RANK of them."""
    return (None,) * (RANK - rank) + tuple(range(rank))


def channels_first(rank: int) -> Order:
    """[.., S, C] as (.., C, 1, S)."""
    return (*natural(rank)[:-3], rank - 1, rank - 3 if rank > 2 else None, rank - 2)


def reshape(var: Var, shape: Sequence[int]) -> Var:
    return var if list(var.shape) == list(shape) else mb.reshape(x=var, shape=list(shape))


def arrange(value: Laid, order: Order) -> Var:
    """value stored in another order."""
    target = value.stored(order)
    if not value.copies(order):
        return reshape(value.var, target)
    source = [1] * (len(order) - value.var.rank) + list(value.var.shape)
    held = [None] * (len(order) - value.var.rank) + list(value.order)
    wide = {a: i for i, a in enumerate(held) if a is not None and value.shape[a] != 1}
    spare = [i for i in range(len(source)) if i not in wide.values()]
    perm = [wide[a] if a is not None and a in wide else spare.pop(0) for a in order]
    return mb.transpose(x=reshape(value.var, source), perm=perm)
