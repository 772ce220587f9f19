"""A set of test vectors on disk: manifest.json, one raw little-endian file a tensor, one input list a graph.

    manifest.json
    input_lists/<graph>.txt                           a line a call: name:=inputs/<graph>/<n>/<tensor>.raw ...
    inputs/<graph>/<n>/<tensor>.raw
    expected/<graph>/Result_<n>/<tensor>_native.raw   as qnn-net-run lays out its own results

test_vectors/README.md is the reference. Integers stand for reals as in a bundle's manifest:
real = (code - zero_point) * scale. In file names everything but letters, digits and _ becomes _.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from edgeforge_runtime import manifest as bundle
from edgeforge_runtime.executors.base import Arrays
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator

from edgeforge import cache
from edgeforge.errors import EdgeForgeError

MANIFEST, INPUT_LISTS, INPUTS, EXPECTED = "manifest.json", "input_lists", "inputs", "expected"
FORMAT = "edgeforge-vectors/1"
_MANIFEST_BYTES = 64 << 20
"""no set of ours comes near; a file beyond it is something else"""

_SHOWN = 200
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_LIST_BREAKERS = re.compile(r"\s|:=")
"""what separates entries and names in an input list"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tolerance(_Strict):
    """What a replayed tensor is judged by: exactly one of the three.

    lsb: largest difference of codes, for integers. sqnr_db: least signal to noise ratio of the reals.
    max_abs: largest difference of reals.
    """

    lsb: Annotated[int, Field(ge=0)] | None = None
    sqnr_db: FiniteFloat | None = None
    max_abs: Annotated[FiniteFloat, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Tolerance:
        if sum(v is not None for v in (self.lsb, self.sqnr_db, self.max_abs)) != 1:
            raise ValueError("needs exactly one of lsb, sqnr_db and max_abs")
        return self


class TensorSpec(_Strict):
    """One input or output of a graph; scale is absent for what is no code (token ids, floats)."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: Literal["uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64"]
    shape: tuple[Annotated[int, Field(ge=1, le=1 << 40)], ...]
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    zero_point: Annotated[int, Field(ge=-(1 << 31), le=1 << 31)] = 0

    @field_validator("name")
    @classmethod
    def _fits_a_list(cls, name: str) -> str:
        if _LIST_BREAKERS.search(name):
            raise ValueError(f"{name!r} holds a space or ':=', which end a name in an input list")
        return name

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def declared(self) -> bundle.Tensor:
        """The same tensor as a bundle declares it."""
        return bundle.Tensor(self.name, self.dtype, self.shape, self.scale, self.zero_point)


class Expected(TensorSpec):
    """An output, and how close a replay has to come."""

    tolerance: Tolerance

    @model_validator(mode="after")
    def _codes_have_lsb(self) -> Expected:
        if self.tolerance.lsb is not None and np.dtype(self.dtype).kind == "f":
            raise ValueError(f"{self.name} is {self.dtype}: floats have no LSB, use max_abs")
        return self


class RawFile(_Strict):
    """A raw file under the set's folder."""

    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @field_validator("file")
    @classmethod
    def _inside(cls, file: str) -> str:
        parts = file.split("/")
        if not all(_NAME.fullmatch(p) and p.strip(".") for p in parts):
            raise ValueError(f"{file!r} is not a plain relative path (letters, digits, '_', '.', '-', '/')")
        return file


class CallFiles(_Strict):
    """One graph call: a line of the graph's input list; its results are Result_<place among the calls>."""

    label: Annotated[str, Field(min_length=1)]
    inputs: dict[str, RawFile]
    outputs: dict[str, RawFile]


class GraphVectors(_Strict):
    """A graph's tensors and recorded calls."""

    graph: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    inputs: tuple[TensorSpec, ...]
    outputs: Annotated[tuple[Expected, ...], Field(min_length=1)]
    calls: Annotated[tuple[CallFiles, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_tensor_has_its_file(self) -> GraphVectors:
        for call in self.calls:
            for kind, specs, files in (("inputs", self.inputs, call.inputs), ("outputs", self.outputs, call.outputs)):
                names = [t.name for t in specs]
                if len(set(names)) != len(names) or set(names) != set(files):
                    raise ValueError(f"{self.graph}, call {call.label}: its {kind} are not those that the graph "
                                     f"declares: {sorted(set(names) ^ set(files))[:3]}")
        return self


class VectorSet(_Strict):
    """manifest.json. made_by: versions of what recorded it."""

    format: Literal["edgeforge-vectors/1"]
    name: str
    made_by: dict[str, str]
    graphs: Annotated[tuple[GraphVectors, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> VectorSet:
        names = [g.graph for g in self.graphs]
        if len(set(names)) != len(names):
            raise ValueError(f"a graph stands twice in it: {sorted(n for n in names if names.count(n) > 1)[0]}")
        return self


Recorded = tuple[str, Arrays, Arrays]
"""label, inputs and outputs of one call, by tensor name"""


def load(folder: Path) -> VectorSet:
    """Reads a set's manifest; no tensor is read.

    Raises:
        EdgeForgeError: no manifest, not JSON, another format, or a key or value that does not belong.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_BYTES:
            raise EdgeForgeError(f"{path} has {path.stat().st_size} bytes: not a manifest of test vectors")
        return VectorSet.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EdgeForgeError(f"{path}: {error.strerror}",
                             "give a folder that `edgeforge vectors make` wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p)[:_SHOWN] for p in first["loc"]) or "the file"
        raise EdgeForgeError(f"{path} is not a manifest of test vectors ({FORMAT}): {where}: {first['msg'][:_SHOWN]}",
                             "make the set again, or fix the key") from None


def read(folder: Path, spec: TensorSpec, raw: RawFile) -> np.ndarray:
    """A tensor of the set, after its length and hash have been checked.

    Raises:
        EdgeForgeError: missing, outside the set, of another size, changed, or not finite.
    """
    path = folder / raw.file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise EdgeForgeError(f"{path} leads out of the set", "a set holds its own files; make it again")
    content = raw_bytes(path, spec)
    if hashlib.sha256(content).hexdigest() != raw.sha256:
        raise EdgeForgeError(f"{path} is not what the manifest was written for: its sha256 differs",
                             "copy the set again, or make it again")
    array = decoded(content, spec)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise EdgeForgeError(f"{path} holds values that are not finite",
                             "such vectors can judge nothing: make them again")
    return array


def raw_bytes(path: Path, spec: TensorSpec) -> bytes:
    """A raw file of exactly the tensor's size; EdgeForgeError when it is not there or not that long."""
    try:
        size = path.stat().st_size
        if size == spec.bytes and path.is_file():
            return path.read_bytes()
    except OSError as error:
        raise EdgeForgeError(f"{path}: {error.strerror}", f"it should hold {spec.name}") from error
    raise EdgeForgeError(f"{path} has {size} bytes; {spec.name}, {spec.dtype}{list(spec.shape)}, has {spec.bytes}",
                         "copy the file again; integers are stored as codes, little-endian, without a header")


def decoded(content: bytes, spec: TensorSpec) -> np.ndarray:
    """The array that a raw file's bytes stand for."""
    little = np.dtype(spec.dtype).newbyteorder("<")
    return np.frombuffer(content, little).astype(spec.dtype).reshape(spec.shape)


def write(place: Path, name: str, made_by: Mapping[str, str],
          graphs: Sequence[tuple[str, Sequence[TensorSpec], Sequence[Expected], Sequence[Recorded]]]) -> None:
    """Writes a whole set, or nothing; a set that is there is replaced, anything else is left alone.

    Raises:
        EdgeForgeError: the place holds something else, or an array does not fit its declaration.
    """
    if place.exists() and (not place.is_dir() or (any(place.iterdir()) and not _is_set(place))):
        raise EdgeForgeError(f"{place} exists and holds no test vectors", "give another folder, or move it away")
    with cache.whole(place.absolute()) as folder:
        listed = tuple(_write_graph(folder, *graph) for graph in graphs)
        whole = VectorSet(format="edgeforge-vectors/1", name=name, made_by=dict(made_by), graphs=listed)
        text = json.dumps(whole.model_dump(mode="json", exclude_defaults=True), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def file_name(tensor: str) -> str:
    """A tensor's name as QNN's tools write it: everything but letters, digits and _ is _."""
    made = re.sub(r"\W+", "_", tensor, flags=re.ASCII)
    return made if made[0].isalpha() or made[0] == "_" else f"_{made}"


def result_name(stem: str, dtype: str) -> str:
    """The file that qnn-net-run writes an output to: float32 is named plainly even among native files."""
    return f"{stem}.raw" if dtype == "float32" else f"{stem}_native.raw"


def _is_set(place: Path) -> bool:
    try:
        load(place)
    except EdgeForgeError:
        return False
    return True


def _write_graph(folder: Path, graph: str, inputs: Sequence[TensorSpec], outputs: Sequence[Expected],
                 calls: Sequence[Recorded]) -> GraphVectors:
    lines, listed = [], []
    for place, (label, fed, made) in enumerate(calls):
        ins = _write_tensors(folder, f"{INPUTS}/{graph}/{place}", inputs, fed)
        outs = _write_tensors(folder, f"{EXPECTED}/{graph}/Result_{place}", outputs, made)
        listed.append(CallFiles(label=label, inputs=ins, outputs=outs))
        lines.append(" ".join(f"{name}:={raw.file}" for name, raw in ins.items()))
    (folder / INPUT_LISTS).mkdir(exist_ok=True)
    (folder / INPUT_LISTS / f"{graph}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return GraphVectors(graph=graph, inputs=tuple(inputs), outputs=tuple(outputs), calls=tuple(listed))


def _write_tensors(folder: Path, under: str, specs: Sequence[TensorSpec], arrays: Arrays) -> dict[str, RawFile]:
    (folder / under).mkdir(parents=True)
    found: dict[str, RawFile] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise EdgeForgeError(f"{under}: nothing was recorded of {spec.name}",
                                 "vectors and graph are of different builds")
        array, name = arrays[spec.name], file_name(spec.name)
        if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
            raise EdgeForgeError(f"{under}: {spec.name} is {array.dtype}{list(array.shape)}, declared as "
                                 f"{spec.dtype}{list(spec.shape)}", "vectors and graph are of different builds")
        file = f"{under}/{result_name(name, spec.dtype) if isinstance(spec, Expected) else f'{name}.raw'}"
        if file in {raw.file for raw in found.values()}:
            raise EdgeForgeError(f"{under}: two tensors would both be written to {file}",
                                 "rename one of them in the model")
        content = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
        (folder / file).write_bytes(content)
        found[spec.name] = RawFile(file=file, sha256=hashlib.sha256(content).hexdigest())
    return found
