"""Child process: writes assets, and lets Core AI read and answer. ``python -m ....coreai.worker judge.json``

verdict.json beside it says what came out, or what was refused and why.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgeforge.backends import orphan
from edgeforge.backends.coreml.coreai.job import VERDICT, Floats, Judge
from edgeforge.errors import EdgeForgeError


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0])
    try:
        answer: dict[str, Any] = {"decibels": judge(Judge.load(path))}
    except EdgeForgeError as error:
        answer = {"refused": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    path.with_name(VERDICT).write_text(json.dumps(answer) + "\n", encoding="utf-8")
    return int("refused" in answer)


def judge(job: Judge) -> dict[Floats, list[float]]:
    """dB of prefill's logits and of those of the steps behind it, against the float graph, by what flows."""
    from edgeforge_runtime.manifest import Manifest
    from edgeforge_runtime.session import Session

    from edgeforge import artifact
    from edgeforge.backends.coreml import parity, target
    from edgeforge.backends.coreml.coreai import asset
    from edgeforge.encodings import FILE, Table
    from edgeforge.metrics import sqnr_db

    table = Table.load(job.quantized / FILE)
    tokens, prompt = parity.text(np.load(job.ids)[0], job.prefill, job.context)
    expected = parity.reference(job.quantized, table, job.prefill, job.context, tokens, job.threads)
    own = target.target(artifact.load_decoder(job.quantized), target.widths(job.prefill), job.context, "", "float32")
    found: dict[Floats, list[float]] = {}
    for floats, path in job.assets.items():
        asset.write(_entries(job, table, floats), path)
        session = Session(Manifest.load(job.quantized), own, asset.CoreAiExecutor(path, floats),
                          artifact.load_rope(job.quantized))
        made = parity.conversation(session, tokens, prompt)
        found[floats] = [sqnr_db(expected[:1], made[:1]), sqnr_db(expected[1:], made[1:])]
    return found


def _entries(job: Judge, table: Any, floats: Floats) -> dict[str, Any]:
    import torch

    from edgeforge.backends.coreml import decoder, target
    from edgeforge.backends.coreml.coreai import asset
    from edgeforge.backends.coreml.coreai.module import GraphModule
    from edgeforge.graph import store

    model = store.load(job.quantized / "float")
    formats = decoder.prepare(model, table, {})
    graphs = decoder.bound(model, target.widths(job.prefill), job.context)
    return {name: asset.Entry(GraphModule(graph, formats, getattr(torch, floats)),
                              [str(v.name) for v in graph.inputs], [str(v.name) for v in graph.outputs])
            for name, graph in graphs.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
