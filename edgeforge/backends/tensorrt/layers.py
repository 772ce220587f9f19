"""The builder's account of an engine ("Layers:", with DETAILED verbosity): which kernels, over which constants.

It is all that can be known of an engine without a GPU, and it is enough to see that weights stayed packed, that nothing
unpacks them first, that attention is one kernel, and that caches are written in place. Its form: TensorRT-RTX 1.7.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeforge.backends.tensorrt.job import Shape
from edgeforge.errors import CompilerError

_LAYER = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: \[(?P<inputs>.*?)\], "
                    r"Constants: \[(?P<constants>.*?)\], Outputs: \[.*?\], TacticName: (?P<tactic>[^,]*)")
_TENSOR = re.compile(r"Name: (?P<name>[^,]+), Dimensions: \[(?P<shape>[-\d,]*)\], Strides: [^{}]*?"
                     r"Datatype: (?P<dtype>\w+)")
_ONNX = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_PROFILE = re.compile(r"_myl(\d+)_\d+$")
_BOUNDARY = re.compile(r"^ ?Name: (?P<name>[^,]+), IOMode: (?P<mode>\w+), DataType: (?P<dtype>\w+)")
_SHAPES = re.compile(r"MinShape: \[([\d,]*)\], OptShape: \[([\d,]*)\], MaxShape: \[([\d,]*)\]")
_OTHERS = re.compile(r" \[profile \d+\]")
CODES = {"Int4": "int4", "Int8": "int8", "FP8": "float8_e4m3fn"}
"""TensorRT's words for what weights are packed as, and numpy's"""
_ATTENTION = re.compile(r"_ge(?:mm|mv)_mha_")


@dataclass(frozen=True)
class Tensor:
    """name: without the profile that it belongs to. dtype: TensorRT's word: Half, Int4, Int8, ..."""

    name: str
    shape: Shape
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """One kernel of one profile. onnx: names of the nodes that went into it."""

    name: str
    kind: str
    profile: int
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    tactic: str
    onnx: tuple[str, ...]

    @property
    def unpacks(self) -> bool:
        """Makes floats of a weight's codes, for a product that comes later."""
        return not self.inputs and any(t.dtype in CODES for t in self.constants)

    @property
    def is_attention(self) -> bool:
        """One of TensorRT's own fused attention kernels."""
        return _ATTENTION.search(self.name) is not None


@dataclass(frozen=True)
class Dump:
    """layers: in order of execution, profile by profile. inputs: by name, the shape in each profile, where fixed."""

    layers: tuple[Layer, ...]
    inputs: dict[str, tuple[Shape, ...]]

    def of(self, profile: int) -> Iterator[Layer]:
        """The layers of one profile."""
        return (one for one in self.layers if one.profile == profile)

    def constants(self, profile: int, dtype: str) -> int:
        """Elements of the constants of that type that the profile's kernels read, each counted once."""
        return sum({t.name: t.size for one in self.of(profile) for t in one.constants if t.dtype == dtype}.values())

    def kinds(self, profile: int) -> dict[str, int]:
        """How many layers of each kind."""
        found: dict[str, int] = {}
        for one in self.of(profile):
            found[one.kind] = found.get(one.kind, 0) + 1
        return found


def read(path: Path) -> Dump:
    """CompilerError: no dump, or not in this form."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CompilerError(f"{path}: {error.strerror}") from error
    return parse(text)


def parse(text: str) -> Dump:
    """See read."""
    kernels, _, boundary = text.partition("I/O Tensors:")
    lines = [line.strip() for line in kernels.splitlines() if line.lstrip().startswith("Name: ")]
    inputs = {m["name"]: tuple(_shape(low) for low, best, high in _SHAPES.findall(line) if low == best == high)
              for line in boundary.splitlines() if (m := _BOUNDARY.match(line)) and m["mode"] == "Input"}
    if not lines or not inputs:
        raise CompilerError("the builder said nothing about its layers",
                            "its log has another form in this version; TensorRT-RTX 1.7.1 was tested")
    return Dump(tuple(map(_layer, lines)), inputs)


def _layer(line: str) -> Layer:
    match = _LAYER.match(line)
    profile = _PROFILE.search(match["name"]) if match else None
    if match is None or profile is None:
        raise CompilerError(f"a layer in a form that is not known: {line[:200]}", "TensorRT-RTX 1.7.1 was tested")
    return Layer(match["name"], match["kind"], int(profile[1]), _tensors(match["inputs"]), _tensors(match["constants"]),
                 match["tactic"], tuple(_ONNX.findall(line)))


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(Tensor(_OTHERS.sub("", m["name"]), _shape(m["shape"]), m["dtype"]) for m in _TENSOR.finditer(text))


def _shape(text: str) -> Shape:
    return tuple(int(n) for n in text.split(",")) if text else ()
