"""A Core ML program as plain data: functions of ops over named values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from edgeforge.backends.coreml import mil
from edgeforge.backends.coreml.interpret.blob import Blobs
from edgeforge.backends.coreml.package import model
from edgeforge.errors import EdgeForgeError, UnsupportedError

Array: TypeAlias = npt.NDArray[Any]
_WHERE = "@model_path/"
_TYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "?"), "FLOAT16": (16, "<f2"), "FLOAT32": (32, "<f4"), "INT8": (8, "i1"), "UINT8": (8, "u1"),
    "INT16": (16, "<i2"), "UINT16": (16, "<u2"), "INT32": (32, "<i4"), "UINT32": (32, "<u4"), "INT4": (4, "i1"),
    "UINT1": (1, "u1"), "UINT2": (2, "u1"), "UINT3": (3, "u1"), "UINT4": (4, "u1"), "UINT6": (6, "u1")}
"""bits of an element in weight.bin, and the numpy type that holds one here"""


@dataclass(frozen=True)
class Stored:
    """A constant in weight.bin, at that offset."""

    blobs: Blobs
    offset: int
    type: str
    shape: tuple[int, ...]

    def read(self) -> Array:
        """Its elements, unpacked."""
        return _unpack(self.blobs.read(self.offset), self.type, self.shape)


Constant: TypeAlias = Array | str | Stored


@dataclass(frozen=True)
class Name:
    """An argument that is another op's output, or an input of the function."""

    text: str


@dataclass(frozen=True)
class Typed:
    """A value's name, element type (FLOAT16, ...) and shape."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One operation; every argument is a list, because some take several values."""

    type: str
    name: str
    arguments: Mapping[str, tuple[Name | Constant, ...]]
    outputs: tuple[Typed, ...]


@dataclass(frozen=True)
class Function:
    """states: what the model keeps between calls, shared by all functions that name it."""

    inputs: tuple[Typed, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    states: tuple[Typed, ...] = ()


def load(package: Path) -> dict[str, Function]:
    """The functions of a .mlpackage by name; their constants stay in the file until they are read.

    Raises:
        EdgeForgeError: no package, or a damaged one.
    """
    file = model(package)
    spec, reader = _read(file), _Reader(file.parent)
    try:
        found = {name: reader.function(f) for name, f in spec.mlProgram.functions.items()}
    except (TypeError, ValueError, LookupError) as error:
        raise EdgeForgeError(f"{package} is a damaged Core ML package: {type(error).__name__}: {error}") from error
    if not found:
        raise EdgeForgeError(f"{package} holds no ML program", "a neural network of an older kind is not read")
    return found


def version(package: Path) -> int:
    """The version of Core ML's specification that it was written for; raises like load."""
    return int(_read(model(package)).specificationVersion)


def _read(file: Path) -> Any:
    try:
        return mil.proto.Model_pb2.Model.FromString(file.read_bytes())
    except (OSError, DecodeError) as error:
        raise EdgeForgeError(f"{file} is not a Core ML model: {error}") from error


class _Reader:
    def __init__(self, folder: Path) -> None:
        """folder: where the model lies, and what it names beside it."""
        self._folder = folder
        self._files: dict[str, Blobs] = {}

    def function(self, message: Any) -> Function:
        block = message.block_specializations[message.opset]
        given = [i for i in message.inputs if i.type.WhichOneof("type") != "stateType"]
        kept = [Typed(i.name, *_tensor(i.type.stateType.wrappedType)) for i in message.inputs if i not in given]
        return Function(tuple(map(_typed, given)), tuple(map(self._op, block.operations)), tuple(block.outputs),
                        tuple(kept))

    def _op(self, message: Any) -> Op:
        arguments: dict[str, tuple[Name | Constant, ...]] = {
            key: tuple(Name(b.name) if b.WhichOneof("binding") == "name" else self._value(b.value)
                       for b in argument.arguments) for key, argument in message.inputs.items()}
        arguments |= {key: (self._value(value),) for key, value in message.attributes.items()}
        name = arguments.pop("name", ("",))[0]
        return Op(message.type, str(name), arguments, tuple(map(_typed, message.outputs)))

    def _value(self, message: Any) -> Constant:
        kind, shape = _tensor(message.type)
        if message.WhichOneof("value") == "blobFileValue":
            where = message.blobFileValue
            return Stored(self._blobs(where.fileName), where.offset, kind, shape)
        held = message.immediateValue.tensor
        field = held.WhichOneof("value")
        if field == "strings":
            return str(held.strings.values[0])
        if field == "bytes":
            return _unpack(np.frombuffer(held.bytes.values, np.uint8), kind, shape)
        return np.array(getattr(held, field).values, _TYPES[kind][1]).reshape(shape)

    def _blobs(self, name: str) -> Blobs:
        if not name.startswith(_WHERE):
            raise UnsupportedError(f"weights in {name}", f"files beside the model are read ({_WHERE}...)")
        if name not in self._files:
            self._files[name] = Blobs(self._folder / name.removeprefix(_WHERE))
        return self._files[name]


def _typed(message: Any) -> Typed:
    return Typed(message.name, *_tensor(message.type))


def _tensor(message: Any) -> tuple[str, tuple[int, ...]]:
    tensor = message.tensorType
    shape = tuple(int(d.constant.size) for d in tensor.dimensions)
    return mil.proto.MIL_pb2.DataType.Name(tensor.dataType), shape


def _unpack(raw: npt.NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> Array:
    """Elements of fewer than 8 bits lie one after the other, each from its lowest bit on, in bytes from their lowest
    bit on."""
    bits, numpy = _TYPES[kind]
    if bits >= 8:
        return np.frombuffer(raw.tobytes(), numpy).reshape(shape)
    count = int(np.prod(shape))
    flat = np.unpackbits(raw, count=count * bits, bitorder="little").reshape(count, bits)
    codes = (flat << np.arange(bits, dtype=np.uint8)).sum(1, dtype=np.uint8)
    if kind == "INT4":
        codes = ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    return np.asarray(codes.reshape(shape))
