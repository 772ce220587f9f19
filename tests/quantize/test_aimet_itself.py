"""AIMET as judge, where an interpreter that has aimet-onnx is named: it loads what we write, we read what it writes.

EDGEFORGE_AIMET=/path/to/venv/bin/python; the venv: torch==2.13.0 torchvision==0.28.0 aimet-onnx==2.42.0.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from made_grids import lpbq, per_block
from quant_graphs import aimet_model, run, wave

from edgeforge import encodings
from edgeforge.encodings import Table
from edgeforge.export import aimet, aimet_read
from edgeforge.graph import edit, store
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import qdq
from edgeforge.quantize.weights.grid import per_channel

PYTHON = os.environ.get("EDGEFORGE_AIMET", "")
WORKER = Path(__file__).parent / "aimet_worker.py"
LOADED: tuple[aimet.Version, ...] = ("1.0.0", "2.0.0")
"""aimet-onnx 2.42.0 refuses LPBQ in 2.1.0"""
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(not PYTHON, reason="EDGEFORGE_AIMET names no interpreter")]

Array = npt.NDArray[Any]

def table(graph: ir.Graph) -> Table:
    """LPBQ, blocks and channels; activations of either kind."""
    w1, w2, w3 = (edit.constant(graph.initializers[n]) for n in ("w1", "w2", "w3"))
    assert w1 is not None
    assert w2 is not None
    assert w3 is not None
    wide = encodings.per_tensor(-4, 6, 16)
    ranges = {"x": (-3.0, 3.5), "s": (0.0, 1.0), "p": (-1.0, 5.0), "m": (-5.0, 7.0), "h": (-1.0, 1.0), "y": (-6.0, 4.0)}
    found = Table({n: encodings.per_tensor(*r, 16) for n, r in ranges.items()} | {
        "c": wide, "u": wide, "w1": lpbq(w1, 0, 16), "w2": per_block(w2, 0, 16),
        "w3": per_channel(w3, 1, 4)})
    found.set("t", found["x"])
    return found


def codes(of: Table, feeds: dict[str, Array]) -> dict[str, Array]:
    return {n: of[n].quantize(f).astype(of[n].dtype) for n, f in feeds.items()}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which AIMET has loaded ours and written its own."""
    folder = tmp_path_factory.mktemp("aimet")
    made = aimet_model()
    made.graph.opset_imports[""] = 21
    store.save(made, folder)
    np.savez(folder / "feeds.npz", x=wave(1, 1, 6, 32, scale=3.0))
    for version in LOADED:
        aimet.write(folder / f"ours-{version}.encodings", table(made.graph), list(made.graph.initializers), "test",
                    version)
    done = subprocess.run([PYTHON, str(WORKER), str(folder)], capture_output=True, text=True, timeout=300, check=False,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def answer(path: Path) -> Array:
    with np.load(path) as archive:
        return np.asarray(archive["y"])


@pytest.mark.parametrize("version", LOADED)
def test_aimet_computes_with_our_encodings_what_our_print_computes(version: str, judged: Path, tmp_path: Path) -> None:
    made = aimet_model()
    ours = table(made.graph)
    with np.load(judged / "feeds.npz") as feeds:
        y = run(qdq.quantize(made, ours), tmp_path, codes(ours, dict(feeds)))["y"]
    assert sqnr_db(ours["y"].dequantize(y), answer(judged / f"ours-{version}.npz")) > 80


@pytest.mark.parametrize("version", aimet.VERSIONS)
def test_we_compute_with_aimets_encodings_what_aimet_computes(version: str, judged: Path, tmp_path: Path) -> None:
    made = aimet_model()
    theirs = aimet_read.read(judged / f"theirs-{version}.encodings", made.graph)
    kinds = {n: (theirs[n].bits, theirs[n].block, theirs[n].block_scale is not None) for n in ("w1", "w2", "w3")}
    assert kinds == {"w1": (4, 16, True), "w2": (4, 16, False), "w3": (4, None, False)}
    for moved, source in (("t", "x"), ("u", "c")):
        if moved not in theirs:  # 1.0.0 leaves out what only moves codes
            theirs.set(moved, theirs[source])
    with np.load(judged / "feeds.npz") as feeds:
        y = run(qdq.quantize(made, theirs), tmp_path, codes(theirs, dict(feeds)))["y"]
    assert sqnr_db(answer(judged / "theirs.npz"), theirs["y"].dequantize(y)) > 60
