"""Graphs that write into a cache which stays with the executor: a slot a position, nothing handed in or out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime import contract
from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.manifest import COS, MASK, SIN, WRITE, Graph, Manifest, Target, Tensor, new_name, past_layer
from edgeforge_runtime.session import Session
from tiny_models import VOCAB, Tiny

CL = 32
IDS = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB, CL)]


def _resident(target: Target) -> Target:
    """The target as an executor that keeps its caches declares it."""
    slot = Tensor(WRITE, "int64", (1,))
    graphs = []
    for graph in target.graphs:
        (part,) = graph.parts
        inputs = (*(t for t in part.inputs if past_layer(t.name) is None), slot)
        outputs = tuple(t for t in part.outputs if t.name == "logits")
        graphs.append(dataclasses.replace(graph, parts=(dataclasses.replace(part, inputs=inputs, outputs=outputs),)))
    return dataclasses.replace(target, graphs=tuple(graphs))


class Keeper:
    """Keeps caches of the whole context for graphs that take and return them."""

    def __init__(self, folder: Path, target: Target) -> None:
        self._inner = open_executor(target, folder)
        self._graphs = {g.ar: g for g in target.graphs}
        self.caches = {n: np.full((1, t.shape[1], CL, t.shape[3]), 0.5, np.float32)
                       for n, t in target.graphs[0].boundary()[0].items() if past_layer(n)}

    def run(self, graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
        ar, at = graph.ar, int(feeds[WRITE][0])
        assert 0 <= at <= CL - ar, "a scatter that leaves the cache"
        mask = feeds[MASK].copy()
        past, own = mask[..., : CL - ar], feeds[MASK][..., at : at + ar]
        assert (feeds[MASK][..., at + ar :] < 0).all(), "nothing behind the new rows may be read"
        past[..., at:] = feeds[MASK].min()
        fed = {n: a for n, a in feeds.items() if n != WRITE}
        fed |= {MASK: np.concatenate([past, own], -1)} | {n: c[:, :, : CL - ar] for n, c in self.caches.items()}
        made = self._inner.run(self._graphs[ar], fed)
        for name, cache in self.caches.items():
            cache[:, :, at : at + ar] = made[new_name(name)]
        return {"logits": made["logits"]}

    def close(self) -> None:
        self._inner.close()


def _session(folder: Path, tiny: Tiny) -> Session:
    tiny.write(folder)
    manifest, tables = Manifest.load(folder), dict(zip((COS, SIN), tiny.rope(), strict=True))
    target = manifest.targets["cpu"]
    return Session(manifest, _resident(target), Keeper(folder, target), tables)


@pytest.mark.parametrize("widths", [(8, 1), (1,), (8, 3, 1)])
def test_it_says_what_a_plain_forward_pass_says(tmp_path: Path, widths: tuple[int, ...]) -> None:
    tiny = Tiny(transposed=False, widths=widths)
    wanted = tiny.reference(IDS)
    with _session(tmp_path, tiny) as session:
        assert session.context == CL
        np.testing.assert_allclose(np.concatenate(list(session.score(IDS))), wanted, atol=1e-3)
        for length in (1, 7, 8, 11, 25, 32):
            np.testing.assert_allclose(session.prompt(IDS[:length]), wanted[length - 1], atol=1e-3)
        session.prompt(IDS[:20])
        for position in range(20, CL):
            np.testing.assert_allclose(session.step(IDS[position]), wanted[position], atol=1e-3)


def test_a_rewind_keeps_the_prefix_and_forgets_what_came_after(tmp_path: Path) -> None:
    tiny = Tiny(transposed=False)
    other = [*IDS[:10], *reversed(IDS[10:])]
    with _session(tmp_path, tiny) as session:
        session.prompt(IDS[:30])
        np.testing.assert_allclose(session.prompt(other[:20]), tiny.reference(other[:20])[-1], atol=1e-3)
        assert session.reused == 10
        assert session.restrides == 0


def test_declarations_that_cannot_be_fed(tmp_path: Path) -> None:
    tiny = Tiny(transposed=False)
    tiny.write(tmp_path)
    manifest = Manifest.load(tmp_path)
    plain, kept = manifest.targets["cpu"], _resident(manifest.targets["cpu"])
    contract.check(manifest.model, kept)
    mixed = dataclasses.replace(kept, graphs=(kept.graphs[0], plain.graphs[1]))
    with pytest.raises(ManifestError, match="all do, or none"):
        contract.check(manifest.model, mixed)
    part = plain.graphs[0].parts[0]
    both = dataclasses.replace(part, inputs=(*part.inputs, Tensor(WRITE, "int64", (1,))))
    with pytest.raises(ManifestError, match="it takes no cache"):
        contract.check(manifest.model, Target("onnx-cpu", (dataclasses.replace(plain.graphs[0], parts=(both,)),)))
    wide = dataclasses.replace(kept.graphs[0].parts[0], inputs=(*kept.graphs[0].parts[0].inputs[:-1],
                                                               Tensor(WRITE, "float32", (1,))))
    with pytest.raises(ManifestError, match="slots are integers"):
        contract.check(manifest.model, Target("onnx-cpu", (dataclasses.replace(kept.graphs[0], parts=(wide,)),)))
