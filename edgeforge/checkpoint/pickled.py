"""Weights that torch pickled: read on request only, and only as tensors.

A pickle is a program. torch's own restricted unpickler (`weights_only=True`) runs it without calling anything
but what rebuilds tensors; before that, the container is checked here.
"""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeforge.checkpoint.files import check_regular, indexed
from edgeforge.checkpoint.headers import refuse_pointer
from edgeforge.checkpoint.words import names, one_line
from edgeforge.errors import CheckpointError

if TYPE_CHECKING:
    import torch

CONVERT = (
    "convert once: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), "
    "and copy the tokenizer files"
)
_NAMES, _INDEX = ("pytorch_model.bin", "pytorch_model.pt", "model.pt"), "pytorch_model.bin.index.json"
_SUFFIXES = {".bin", ".pt", ".pth"}
_ZIP = b"PK\x03\x04"
_LOAD_HINT = "download it again; if it should hold more than tensors, save its state_dict() alone. " + CONVERT

def find(folder: Path, root: Path, allowed: bool) -> tuple[Path, ...]:
    """The pickled weight files of a folder; none when there are none.

    Raises:
        CheckpointError: there are some and they are not allowed, or nothing tells which are the weights.
    """
    found = sorted(f.name for f in folder.iterdir() if f.suffix in _SUFFIXES)
    if not found:
        return ()
    if not allowed:
        raise CheckpointError(
            f"{folder} has weights only as {names(found)}: pickles, which are programs; EdgeForge reads safetensors",
            f"{CONVERT}; or, if you trust them, --allow-pickle (loads tensors, runs no code)",
        )
    if (folder / _INDEX).exists():
        return indexed(folder / _INDEX, root)[0]
    if known := [n for n in _NAMES if n in found]:
        return (folder / known[0],)
    raise CheckpointError(
        f"{folder} holds {names(found)}, and none of them is {' or '.join(_NAMES)} or has an index",
        f"name the file that holds the state dict {_NAMES[0]}",
    )

def check_container(file: Path, root: Path) -> None:
    """Refuses what is no torch file, before torch opens it.

    Raises:
        CheckpointError: empty, a git-lfs pointer, or a zip that torch would not write: cut off, packed,
            members outside the archive, twice, or larger than the file.
    """
    check_regular(file, root)
    refuse_pointer(file)
    size = file.stat().st_size
    with file.open("rb") as raw:
        start = raw.read(4)
    if not start:
        raise CheckpointError(f"{file} is empty", "download it again")
    if start != _ZIP:
        return  # the format before torch 1.6: pickles one behind the other
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise CheckpointError(f"{file} ({size} bytes) is truncated or no torch file: {error}", "download it again"
                              ) from error
    if wrong := [m.filename for m in members if _leads_out(m.filename)]:
        raise CheckpointError(f"{file} has members with paths out of it: {names(map(repr, wrong))}", "do not use it")
    if packed := [m.filename for m in members if m.compress_type != zipfile.ZIP_STORED]:
        raise CheckpointError(f"{file} has packed members, which torch never writes: {names(packed)}", "do not use it")
    if len({m.filename for m in members}) != len(members):
        raise CheckpointError(f"{file} has two members of one name", "do not use it")
    if (declared := sum(m.file_size for m in members)) > size:
        raise CheckpointError(f"{file} has {size} bytes and declares {declared}", "do not use it")

def load(files: tuple[Path, ...]) -> dict[str, torch.Tensor]:
    """All tensors of the files.

    Raises:
        CheckpointError: damaged, not a dict of names and tensors, or asking for anything but tensors.
    """
    import torch

    made: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the pickle's protocol, to whoever wrote torch
                found: Any = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"{file} is not loaded: {_asked(error)}", _LOAD_HINT) from error
        except Exception as error:  # the unpickler trips over garbage in as many ways as there are opcodes
            raise CheckpointError(f"{file} is damaged: {one_line(error)}", _LOAD_HINT) from error
        if not isinstance(found, dict) or not found:
            raise CheckpointError(f"{file} holds a {type(found).__name__}, not tensors by name", _LOAD_HINT)
        for name, value in found.items():
            made[_name(file, name, made)] = _tensor(file, name, value)
    return made

def _leads_out(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]

def _asked(error: pickle.UnpicklingError) -> str:
    """The line of torch's long text that says what the pickle wanted."""
    lines = [line.strip() for line in str(error).splitlines() if "WeightsUnpickler error" in line or "GLOBAL" in line]
    said = lines[0] if lines else " ".join(str(error).split())
    return said.partition(" Please ")[0][:300]  # torch advises to allow it

def _name(file: Path, name: object, known: dict[str, torch.Tensor]) -> str:
    if not isinstance(name, str):
        raise CheckpointError(f"{file} has a key of type {type(name).__name__} among its names", _LOAD_HINT)
    if name in known:
        raise CheckpointError(f"{file} holds again what an earlier file holds: {name}", "download it again")
    return name

def _tensor(file: Path, name: str, value: object) -> torch.Tensor:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise CheckpointError(f"{file}: {name} is a {type(value).__name__}, not a plain tensor", _LOAD_HINT)
    if value.device.type != "cpu" or value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{file}: {name} claims {list(value.shape)} and does not hold as much", "do not use it")
    return value.detach()
