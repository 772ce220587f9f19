"""What an opened checkpoint is: files that are all there, and headers that can be read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgeforge.hashes import default_cache, file_hashes

CONFIG = "config.json"
Format = Literal["safetensors", "pickle", "gguf"]


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header declares it; `dtype` in that header's spelling (F32, BF16, I8; GGUF: Q4_1)."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """Config, weights and tokenizer in one place.

    Attributes:
        folder: absolute path of the HuggingFace folder, or of the folder that holds the GGUF file.
        config: config.json as it stands; of a GGUF file its sizes under the same names.
        weight_files: in the order of their names.
        tensors: name -> shape, dtype and file, from the headers; no tensor data is read. Empty for pickled
            weights, whose header is a program. Of a GGUF file under transformers' names.
        side_files: the config, tokenizer and template files beside the weights.
        format: how the weights are written.
        name: what a person would call it.
        source: where it came from: a path, or `org/name` on the hub.
        revision: the hub's commit hash, None for what lies on disk.
    """

    folder: Path
    config: Mapping[str, Any]
    weight_files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]
    side_files: tuple[Path, ...]
    format: Format
    name: str
    source: str
    revision: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """a GGUF file's own keys; arrays of strings as their length"""

    @property
    def config_file(self) -> Path:
        """Where the config was read."""
        return self.weight_files[0] if self.format == "gguf" else self.folder / CONFIG

    @property
    def config_name(self) -> str:
        """What to call the config in a message: a GGUF file has no file of that name."""
        return "own header" if self.format == "gguf" else CONFIG

    def fingerprint(self, cache: Path | None = None) -> str:
        """sha256 (hex) over names and contents of the config, tokenizer and weight files; of a GGUF its own.

        Where they lie doesn't count. A second call takes milliseconds (see `hashes`).

        Args:
            cache: the json file to remember in; by default one under the user's cache folder.
        """
        files = sorted({*self.side_files, *self.weight_files})
        hashes = file_hashes(files, cache or default_cache())
        if self.format == "gguf":
            return hashes[files[0]]
        lines = [f"{hashes[f]}  {f.relative_to(self.folder).as_posix()}" for f in files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
