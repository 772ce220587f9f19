"""manifest.json: what a folder holds and how to feed it.

Every stage of a build from `adapt` on, and the finished bundle, carries one, so that the same
loop runs the float graph, the quantized graph and the compiled binaries. Shapes in a manifest are
concrete for each graph width, also where the file itself has symbolic dimensions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from .errors import ManifestError
from .typed import build, objects, read_json, shown

FORMAT = "edgeforge-bundle/1"
PLAIN_FORMAT = "edgeforge-graph/1"
"""a bundle without a decode loop; see plain.py"""
NAME = "manifest.json"

IDS, MASK, COS, SIN, LOGITS = "input_ids", "attention_mask", "position_ids_cos", "position_ids_sin", "logits"
SWA_COS, SWA_SIN = f"swa_{COS}", f"swa_{SIN}"
"""rotary rows of the layers with sliding-window attention, where these have a table of their own"""
WRITE = "write_index"
"""input of a graph whose cache stays with the executor, a slot a position: the slot of the first new token"""
_UNSAID = (("pieces", ()), ("least_db", None))
T = TypeVar("T")
_MOST_ELEMENTS = 1 << 40
"""of one tensor: beyond any that a device could hold"""
_PAST = re.compile(r"^past_(key|value)_(\d+)_in$")


@dataclass(frozen=True)
class Tensor:
    """One input or output of a compiled graph.

    dtype is a numpy name. For unsigned integers that stand for reals,
    real = (code - zero_point) * scale; scale is None for plain floats and for token ids.
    pieces: the file gives it as <name>_0, <name>_1, ... of so many columns, which whoever runs it
    joins along the last axis; empty: as it is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int = 0
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class Part:
    """One executable piece: a graph inside a file. Values flow between parts by name."""

    file: str
    graph: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Graph:
    """One width of the model: AR new tokens against CL - AR cached ones (0 and 0 where there are no tokens).

    Its parts run in order.
    """

    ar: int
    cl: int
    parts: tuple[Part, ...]

    def boundary(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs that the caller feeds and outputs that it gets, by name (internal hand-overs left out)."""
        return self._boundary

    @cached_property
    def _boundary(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        made = {t.name for p in self.parts for t in p.outputs}
        used = {t.name for p in self.parts for t in p.inputs}
        inputs = {t.name: t for p in self.parts for t in p.inputs if t.name not in made}
        outputs = {t.name: t for p in self.parts for t in p.outputs if t.name not in used}
        return inputs, outputs


@dataclass(frozen=True)
class Target:
    """One way to execute the bundle: an executor's name, its options, and the graphs, widest first.

    least_db: SQNR that its logits reach against the CPU's where it computes right; None: codes that flip between two
        arithmetics say how much, and no build knows.
    """

    executor: str
    graphs: tuple[Graph, ...]
    options: dict[str, str] = field(default_factory=dict)
    least_db: float | None = None


@dataclass(frozen=True)
class Model:
    """What the decode loop must know about the model.

    context: most tokens that it may read, prompt and answer together.
    eos: every id that ends an answer; the tokenizer's files may add more.
    bos: what the model was trained to see first, for other clients; this runtime leaves it to the
        tokenizer's post-processor and the chat template, which know whether it belongs there.
    pad: id in rows that hold no token.
    key_axis, value_axis: the token axis of past_key_* and past_value_* (rank 4).
    masked: the real value that the mask adds to a forbidden position; 0 allows it.
    """

    name: str
    layers: int
    vocab_size: int
    context: int
    eos: tuple[int, ...]
    bos: int | None
    pad: int
    masked: float
    key_axis: int
    value_axis: int


@dataclass(frozen=True)
class Manifest:
    """A runnable folder; paths are relative to it.

    rope: an .npz with rotary tables, float32 [context, rotary dims / 2]; see rope.py.
    tokenizer: the folder with tokenizer.json and its companions ("." for the bundle itself).
    """

    model: Model
    rope: str
    targets: dict[str, Target]
    tokenizer: str | None = None
    stamps: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes manifest.json into folder."""
        raw = asdict(self, dict_factory=lambda found: dict(f for f in found if f not in _UNSAID))
        text = json.dumps({"format": FORMAT, **raw}, indent=1, sort_keys=True)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Reads manifest.json; ManifestError names the folder and what is wrong with it."""
        return parse(folder, read(folder, FORMAT), _manifest)


def parse(folder: Path, raw: dict[str, Any], into: Callable[[dict[str, Any]], T]) -> T:
    """into(raw); where that finds a value that does not belong, a ManifestError names the folder and the value."""
    try:
        return into(raw)
    except ValueError as error:
        raise ManifestError(f"{folder / NAME} is damaged: {error}") from error


def read(folder: Path, *wanted: str) -> dict[str, Any]:
    """manifest.json as it stands; ManifestError when it is not there or has none of the wanted formats."""
    path = folder / NAME
    try:
        raw = read_json(path)
    except FileNotFoundError:
        raise ManifestError(f"{folder} holds no {NAME}: not an EdgeForge bundle") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
    if isinstance(raw, dict) and found in wanted:
        return raw
    if found == PLAIN_FORMAT:
        raise ManifestError(f"{folder} holds a plain graph, no decode loop that could answer a prompt; "
                            "run it with edgeforge_runtime.plain.PlainSession")
    raise ManifestError(f"{path} has format {shown(found)}; this runtime reads "
                        f"{' and '.join(map(repr, wanted))}")


def past_layer(name: str) -> tuple[str, int] | None:
    """("key" | "value", layer) for a cache input's name, else None."""
    found = _PAST.match(name)
    return (found[1], int(found[2])) if found else None


def new_name(past: str) -> str:
    """The output that holds the new tokens' part of a cache input."""
    return past.removesuffix("_in") + "_out"


def _tensor(raw: Any) -> Tensor:
    tensor = build(Tensor, raw)
    if any(d < 0 for d in tensor.shape) or math.prod(tensor.shape) > _MOST_ELEMENTS:
        raise ValueError(f"{shown(tensor.name)} has the shape {shown(tensor.shape)}")
    return tensor


def _part(raw: Any) -> Part:
    lists = {key: tuple(map(_tensor, objects(_key(raw, key), "tensors"))) for key in ("inputs", "outputs")}
    part = build(Part, raw, **lists)
    _inside(part.file)
    return part


def _graph(raw: Any) -> Graph:
    return build(Graph, raw, parts=tuple(map(_part, objects(_key(raw, "parts"), "parts"))))


def targets(raw: dict[str, Any]) -> dict[str, Target]:
    """The targets as they stand in manifest.json; ValueError names what does not belong."""
    found = _key(raw, "targets")
    if not isinstance(found, dict):
        raise ValueError(f"{shown(found)} stands where the targets should")
    return {name: _target(one) for name, one in found.items()}


def _target(raw: Any) -> Target:
    return build(Target, raw, graphs=tuple(map(_graph, objects(_key(raw, "graphs"), "graphs"))))


def _manifest(raw: dict[str, Any]) -> Manifest:
    made = {"model": build(Model, _key(raw, "model")), "targets": targets(raw)}
    manifest = build(Manifest, {k: v for k, v in raw.items() if k != "format"}, **made)
    _inside(manifest.rope)
    _inside(manifest.tokenizer or ".")
    return manifest


def _key(raw: Any, key: str) -> Any:
    if not isinstance(raw, dict) or key not in raw:
        raise ValueError(f"{shown(raw)} lacks {key}")
    return raw[key]


def _inside(path: str) -> None:
    """Refuses a path that leaves the bundle, or that no file system can hold."""
    parts = path.split("/")
    long = any(len(p.encode(errors="replace")) > 255 for p in parts) or len(path) > 2048
    if path.startswith("/") or ".." in parts or "\0" in path or long:
        raise ValueError(f"{shown(path)} is no path within the bundle")
