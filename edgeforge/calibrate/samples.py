"""Real inputs of a plain graph: an .npz with one array for each input, samples along its first axis.

Sample i of input x is array[i], with the input's own number of elements: an input [1, 3, 224, 224] takes
[N, 3, 224, 224] or [N, 1, 3, 224, 224]. The last quarter of the samples (at least one, when there are two)
is kept from calibration: the gates measure on it.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeforge.errors import RecipeError

Arrays = dict[str, npt.NDArray[Any]]
_KEPT = 4
"""one sample in so many is kept for the gates"""


@dataclass(frozen=True)
class Input:
    """A graph input as the ONNX file declares it; dtype in numpy's spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Samples:
    """N samples of every input: arrays [N, *the input's shape], in the input's dtype."""

    arrays: Mapping[str, npt.NDArray[Any]]
    count: int

    @property
    def calibration(self) -> list[Arrays]:
        """What ranges are taken from."""
        return list(self._from(0, self.count - self._kept))

    @property
    def evaluation(self) -> list[Arrays]:
        """What the gates measure on: not seen in calibration, but for those that `fitted` counts."""
        return list(self._from(self.first_evaluated, self.count))

    @property
    def first_evaluated(self) -> int:
        """The number in the file, from 0, of the first sample that the gates measure on."""
        return self.count - max(self._kept, 1)

    @cached_property
    def fitted(self) -> int:
        """How many of the samples that the gates measure on are calibrated on too: there is one only, or repeats."""
        known = {digest([sample]) for sample in self.calibration}
        return sum(digest([sample]) in known for sample in self.evaluation)

    @property
    def _kept(self) -> int:
        return max(self.count // _KEPT, 1) if self.count > 1 else 0

    def _from(self, start: int, stop: int) -> Iterator[Arrays]:
        return ({name: array[i] for name, array in self.arrays.items()} for i in range(start, stop))


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Each array's shape behind its sample axis; empty when the file cannot be read. For hints."""
    try:
        return {name: array.shape[1:] for name, array in _arrays(path).items()}
    except RecipeError:
        return {}


def load(path: Path, inputs: list[Input]) -> Samples:
    """Reads and checks the samples.

    Raises:
        RecipeError: not an .npz, its arrays are not what the graph's inputs take (named), or nothing but one number.
    """
    found = _arrays(path)
    wanted = {i.name: i for i in inputs}
    missing, unknown = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or unknown:
        said = [f"no array for {', '.join(map(repr, missing))}"] if missing else []
        said += [f"{', '.join(map(repr, unknown))} is no input of the graph"] if unknown else []
        raise RecipeError(f"model.calibration: {path}: {'; '.join(said)}",
                          f"the graph's inputs are {', '.join(map(repr, wanted))}; name the arrays so")
    arrays = {name: _fitted(path, array, wanted[name]) for name, array in found.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise RecipeError(f"model.calibration: {path}: different numbers of samples: {counts}",
                          "every array's first axis counts the samples")
    _varied(path, arrays)
    count = next(iter(counts.values()))
    return Samples(arrays, count)


def _varied(path: Path, arrays: Arrays) -> None:
    """Zeros to try a build out would make grids that hold nothing, and gates that pass whatever is lost."""
    if all(array.size > 1 and (array == array.flat[0]).all() for array in arrays.values()):
        held = ", ".join(f"{name!r} is {array.flat[0].item():g}" for name, array in arrays.items())
        raise RecipeError(f"model.calibration: {path}: {held} throughout: no range can be learnt from that, and no "
                          "gate can tell what is lost", "give real inputs, a few dozen if you can")


def digest(samples: list[Arrays]) -> str:
    """sha256 (hex) of samples: names, types, shapes and contents."""
    found = hashlib.sha256()
    for sample in samples:
        for name, array in sorted(sample.items()):
            found.update(f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _arrays(path: Path) -> Arrays:
    hint = "write it with numpy.savez(path, input_name=array, ...)"
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise RecipeError(f"model.calibration: {path} holds one array, not one for each input", hint)
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise RecipeError(f"model.calibration: {path} does not exist", hint) from None
    except MemoryError as error:  # a header may claim any size
        raise RecipeError(f"model.calibration: {path} claims more than this machine's memory holds: {error}",
                          f"give fewer samples; if they are few, it is damaged: {hint}") from error
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error,
            KeyError) as error:
        pickled = "object" in str(error).lower() or "pickle" in str(error).lower()
        why = "holds pickled Python objects, which are not loaded" if pickled and zipfile.is_zipfile(path) else (
            "is not an .npz file" if pickled else f"is not an .npz file: {error}")  # numpy advises to allow pickles
        raise RecipeError(f"model.calibration: {path} {why}", hint) from error


def _fitted(path: Path, array: npt.NDArray[Any], wanted: Input) -> npt.NDArray[Any]:
    where = f"model.calibration: {path}: {wanted.name!r}"
    if array.ndim == 0 or not len(array):
        raise RecipeError(f"{where} has no samples: its shape is {list(array.shape)}",
                          "the first axis counts the samples, at least one")
    if math.prod(array.shape[1:]) != math.prod(wanted.shape):
        raise RecipeError(f"{where} is {list(array.shape)}: a sample is {list(array.shape[1:])}, and the graph takes "
                          f"{list(wanted.shape)}", "the first axis counts the samples, the others are the input's")
    kind = np.dtype(wanted.dtype).kind
    same = array.dtype.kind in ("iu" if kind in "iu" else kind)
    if not same:
        raise RecipeError(f"{where} is {array.dtype}, and the graph takes {wanted.dtype}",
                          "prepare the samples as the graph's inputs, normalisation included")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted.dtype).reshape(len(array), *wanted.shape)
    if kind == "f" and not np.isfinite(cast).all():
        bad = int(np.argmax(np.logical_not(np.isfinite(cast)).reshape(len(cast), -1).any(1)))
        raise RecipeError(f"{where} is not finite in sample {bad} (as {wanted.dtype})",
                          "NaN and infinity have no place on an integer grid")
    if kind in "iu" and not np.array_equal(cast.reshape(array.shape), array):
        raise RecipeError(f"{where} holds numbers that do not fit {wanted.dtype}")
    return cast
