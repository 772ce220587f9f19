"""Child process: `python -m peer.ours folder same|own`. Writes <method>.npz (weights as they ship) and <method>.json.

same: AIMET's candidates and rounding (recipe.py). own: `quality: fast`, our candidates and the search on LPBQ's
integers. Neither mends rounding errors (GPTQ and the like): SeqMSE does not either.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from edgeforge.graph import edit, store
from edgeforge.quantize import sequential
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights.grid import Grid
from peer import cut, job, meter, recipe


def grid(block: int | None) -> Grid:
    return Grid(job.BITS, block, lpbq=block is not None)


def main(folder: Path, method: str) -> None:
    settings = job.Job.load(folder)
    torch.set_num_threads(settings.threads)
    model = store.load(folder)
    grids = {p.name: grid(settings.block) for p in cut.searched(model.graph)}
    feeds = job.load_feeds(folder)
    with meter.measured() as spent:
        samples = [{name: torch.from_numpy(array) for name, array in sample.items()} for sample in feeds]
        if method == "same":
            recipe.quantize(model, samples, grids, _silent)
        else:
            sequential.quantize(model, samples, grids, PRESETS["fast"], _silent)
    job.save_spent(folder / f"{method}.json", spent)
    arrays = {name: edit.constant(model.graph.initializers[name]) for name in grids}
    np.savez(folder / f"{method}.npz", **arrays)  # type: ignore[arg-type]


def _silent(text: str) -> None:
    pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
