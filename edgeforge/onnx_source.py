"""An ONNX file with its calibration samples: what a build starts from when there is no checkpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from edgeforge.calibrate import samples
from edgeforge.graph import enter, external
from edgeforge.hashes import default_cache, file_hashes
from edgeforge.recipe import OnnxModel


@dataclass(frozen=True)
class OnnxSource:
    """A graph that was read and checked, and samples that fit its inputs."""

    path: Path
    calibration: Path
    inputs: tuple[samples.Input, ...]

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.path.stem

    @cached_property
    def samples(self) -> samples.Samples:
        return samples.load(self.calibration, list(self.inputs))

    def fingerprint(self, cache: Path | None = None) -> str:
        """sha256 (hex) over the graph, the external data that it names, and the samples.

        Args:
            cache: the json file to remember in (see `hashes`); by default one under the user's cache folder.
        """
        proto = onnx.load(self.path, load_external_data=False)
        files = sorted({p.file for p in external.pieces(proto, self.path)})
        ordered = (self.path, *files, self.calibration)
        hashes = file_hashes(ordered, cache or default_cache())
        return hashlib.sha256("\n".join(hashes[file] for file in ordered).encode()).hexdigest()


def open_onnx(model: OnnxModel) -> OnnxSource:
    """Reads the graph's structure and the samples; weights stay on disk.

    Raises:
        CheckpointError, UnsupportedError: see enter.read. RecipeError: see samples.load.
    """
    graph = enter.read(model.onnx, samples.shapes(model.calibration)).graph
    inputs = tuple(samples.Input(name, dtype, shape) for name, (dtype, shape) in enter.signature(graph).items())
    source = OnnxSource(model.onnx, model.calibration, inputs)
    _ = source.samples
    return source
