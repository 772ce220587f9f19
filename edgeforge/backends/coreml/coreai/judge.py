"""The second judge: Core AI reads a text and answers, in a process of its own, and is held against the float graph."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from edgeforge import artifact
from edgeforge.backends.coreml import child, systems
from edgeforge.encoding import Encoding
from edgeforge.encodings import FILE, Table
from edgeforge.errors import CompilerError
from edgeforge.gates import Check
from edgeforge.quantize.weights import palette_file
from edgeforge.quantize.weights.palette import Palette

Floats = Literal["float32", "float16"]


@dataclass(frozen=True)
class Judge:
    """One decoder as assets, and one conversation through each.

    quantized: the artifact whose float graph, table and palettes are taken. ids: file of [windows, tokens], of which
    the first window is read. prefill, context: see target.widths. names: of the assets, by what flows.
    """

    quantized: Path
    ids: Path
    prefill: int
    context: int
    threads: int
    names: Mapping[Floats, str]

    def dump(self) -> dict[str, Any]:
        return {"job": "coreai"} | {key: str(value.resolve()) if isinstance(value, Path) else value
                                    for key, value in dataclasses.asdict(self).items()}

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Judge:
        return cls(Path(raw["quantized"]), Path(raw["ids"]), raw["prefill"], raw["context"], raw["threads"],
                   raw["names"])


def ask(job: Judge, out: Path, failure: Path, timeout_s: float, memory_bytes: int | None = None) -> list[Check]:
    """Writes the assets that job asks for into out, executes each and compares; a failure leaves none of them.

    Raises:
        UnsupportedError: an op or a weight's format that Core AI is not given here.
        CompilerError: Core AI is not installed; ChildFailed: it crashed or hung, see child.call.
    """
    if why := systems.coreai():
        raise CompilerError(why, systems.INSTALL_COREAI)
    partial = out / ".coreai.partial"
    made = child.call("Core AI", job.dump(), partial, failure, timeout_s, memory_bytes)
    for name in job.names.values():
        (partial / name).rename(out / name)
    shutil.rmtree(partial)
    return [Check(**row) for row in made["checks"]]


def run(job: Judge, folder: Path) -> dict[str, Any]:
    """In the child: dB of prefill's logits and of those of the steps behind it, as rows of checks."""
    from edgeforge_runtime.manifest import Manifest
    from edgeforge_runtime.session import Session

    from edgeforge import artifact
    from edgeforge.backends.coreml import parity, target
    from edgeforge.backends.coreml.coreai import asset

    table, palettes = Table.load(job.quantized / FILE), palette_file.beside(job.quantized)
    tokens, prompt = parity.text(np.load(job.ids)[0], job.prefill, job.context)
    forms: dict[str, Encoding | Palette] = {**table, **palettes}
    expected = parity.reference(job.quantized, forms, job.prefill, job.context, tokens, job.threads)
    own = target.target(artifact.load_decoder(job.quantized), target.widths(job.prefill), job.context, "", "float32")
    found: list[Check] = []
    for floats, name in job.names.items():
        asset.write(_entries(job, table, palettes, floats), folder / name)
        session = Session(Manifest.load(job.quantized), own, asset.CoreAiExecutor(folder / name, floats),
                          artifact.load_rope(job.quantized))
        found += _checks(floats, expected, parity.conversation(session, tokens, prompt))
    return {"checks": [dataclasses.asdict(c) for c in found]}


def _entries(job: Judge, table: Table, palettes: Mapping[str, Palette], floats: Floats) -> dict[str, Any]:
    import torch

    from edgeforge.backends.coreml import decoder, target
    from edgeforge.backends.coreml.coreai import asset
    from edgeforge.backends.coreml.coreai.module import GraphModule
    from edgeforge.graph import store

    model = store.load(job.quantized / artifact.FLOAT)
    formats = decoder.prepare(model, table, palettes)
    graphs = decoder.bound(model, target.widths(job.prefill), job.context)
    return {name: asset.Entry(GraphModule(graph, formats, cast("torch.dtype", getattr(torch, floats))),
                              [str(v.name) for v in graph.inputs], [str(v.name) for v in graph.outputs])
            for name, graph in graphs.items()}


def _checks(floats: Floats, expected: Any, made: Any) -> Sequence[Check]:
    from edgeforge.metrics import sqnr_db

    exact = floats == "float32"
    rows = (("prefill", slice(0, 1)), ("decode", slice(1, None)))
    return [Check(f"compile: {name} by Core AI in {floats} against the float graph", sqnr_db(expected[at], made[at]),
                  "dB", gate="emitted_db" if exact else "rounded_db",
                  note="Apple's own runtime, on this CPU") for name, at in rows]
