"""What a stage leaves on disk: a model that the runtime can open, and the small files it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
from edgeforge_runtime import manifest as m
from edgeforge_runtime import rope

from edgeforge.adapt.shape import Decoder
from edgeforge.graph import store
from edgeforge.targets import PROFILES

SHAPE, ROPE, TOKENIZER = "decoder.json", "rope.npz", "tokenizer"
FLOAT = "float"
"""in a quantize artifact, the float model that belongs to the table: rounding its weights to nearest gives the QDQ
model's codes"""
REFERENCE, IDS = "reference", "ids.npy"
"""in an adapt artifact, what the gates measure against; in that, the tokens"""
_CARRIED = (SHAPE, ROPE)

Grid = tuple[str, float, int]
"""dtype of the codes, scale, zero point"""


def save_decoder(folder: Path, decoder: Decoder) -> None:
    raw = asdict(decoder) | {"profile": decoder.profile.name}
    (folder / SHAPE).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def load_decoder(folder: Path) -> Decoder:
    raw = json.loads((folder / SHAPE).read_text(encoding="utf-8"))
    return Decoder(**raw | {"profile": PROFILES[raw["profile"]]})


def carry(source: Path, folder: Path) -> None:
    """Copies what every later stage hands on: sizes, RoPE tables, tokenizer."""
    for name in _CARRIED:
        shutil.copyfile(source / name, folder / name)
    shutil.copytree(source / TOKENIZER, folder / TOKENIZER)


def reference_ids(adapted: Path) -> npt.NDArray[np.int64]:
    """The tokens that an adapt artifact's gates read, [windows, tokens]."""
    found: npt.NDArray[np.int64] = np.load(adapted / REFERENCE / IDS)
    return found


def copy_model(source: Path, folder: Path) -> None:
    """Copies model.onnx and model.data. Not by hard link: onnx refuses external data with two names."""
    for name in (store.MODEL, store.DATA):
        shutil.copyfile(source / name, folder / name)


def tensors(decoder: Decoder, ar: int, cl: int, grids: Mapping[str, Grid] | None = None) -> dict[str, m.Tensor]:
    """Every boundary tensor at one width; float without grids."""
    found: dict[str, m.Tensor] = {}
    for name, shape in decoder.shapes(ar, cl).items():
        if name == m.IDS:
            found[name] = m.Tensor(name, "int32", shape)
        elif grids is None:
            found[name] = m.Tensor(name, "float32", shape)
        else:
            dtype, scale, zero = grids[name]
            found[name] = m.Tensor(name, dtype, shape, scale, zero)
    return found


def whole(decoder: Decoder, widths: list[int], cl: int, grids: Mapping[str, Grid] | None = None) -> m.Target:
    """The CPU target over one symbolic model.onnx, at the given widths (widest first)."""
    graphs = []
    for ar in widths:
        by_name = tensors(decoder, ar, cl, grids)
        part = m.Part(store.MODEL, f"ar{ar}_cl{cl}", tuple(by_name[n] for n in decoder.input_names()),
                      tuple(by_name[n] for n in decoder.output_names()))
        graphs.append(m.Graph(ar, cl, (part,)))
    return m.Target("onnx-cpu", tuple(graphs))


def save_rope(folder: Path, tables: rope.Tables) -> None:
    np.savez(folder / ROPE, allow_pickle=False, **{rope.ARRAYS[name]: table for name, table in tables.items()})


def load_rope(folder: Path) -> rope.Tables:
    return rope.read(folder / ROPE)
