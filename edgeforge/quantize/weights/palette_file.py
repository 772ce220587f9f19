"""Palettes on disk: one .npz, each weight's codes and tables under its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from edgeforge.errors import EdgeForgeError
from edgeforge.quantize.weights.palette import Palette

FILE = "palettes.npz"
_CODES, _TABLES = ":codes", ":tables"


def save(path: Path, palettes: Mapping[str, Palette]) -> None:
    """Writes palettes by name; bits follow from the size of a table."""
    arrays = {f"{n}{_CODES}": p.codes for n, p in palettes.items()} | {
        f"{n}{_TABLES}": p.tables for n, p in palettes.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def beside(folder: Path) -> dict[str, Palette]:
    """The palettes of a quantize artifact; none where the recipe asks for none."""
    return load(folder / FILE) if (folder / FILE).is_file() else {}


def load(path: Path) -> dict[str, Palette]:
    """Reads what save wrote. EdgeForgeError: not there, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as held:
            names = [n.removesuffix(_CODES) for n in held.files if n.endswith(_CODES)]
            return {n: _palette(held[f"{n}{_CODES}"], held[f"{n}{_TABLES}"]) for n in names}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise EdgeForgeError(f"{path} holds no palettes: {error}") from error


def _palette(codes: np.ndarray, tables: np.ndarray) -> Palette:
    bits = int(tables.shape[-1]).bit_length() - 1
    if codes.dtype != np.uint8 or tables.dtype != np.float16 or tables.shape != (len(tables), 1 << bits) or (
            not len(tables) or len(codes) % len(tables) or codes.max(initial=0) >= 1 << bits):
        raise ValueError(f"codes {codes.dtype}{list(codes.shape)} and tables {tables.dtype}{list(tables.shape)}")
    return Palette(bits, codes, tables)
