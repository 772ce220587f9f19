"""A chip as this backend knows it."""

from __future__ import annotations

from edgeforge.targets import Chip, Snapdragon


def snapdragon(chip: Chip) -> Snapdragon:
    """The same chip with Qualcomm's numbers; TypeError for another maker's, which names another backend."""
    if not isinstance(chip, Snapdragon):
        raise TypeError(f"{chip.name} is not one of Qualcomm's chips")
    return chip
