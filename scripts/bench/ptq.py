"""Our weight search against aimet-onnx's SeqMSE: the same graph, data, grid and threads, each in its own process.

    python scripts/bench/ptq.py models/smollm2-135m-instruct --aimet PYTHON [--layers 1] [--runs 2]
    python scripts/bench/ptq.py models/smollm2-135m-instruct --emulate --novel emma.txt

The first cuts the float graph to its first layers (AIMET takes long; what all layers would take is extrapolated, and
says so), lets both search it in turn, and compares time, memory and the loss of what they shipped on identical inputs:
with AIMET's 20 candidates, then with our own search. PYTHON (or EDGEFORGE_AIMET) is an interpreter with aimet-onnx.

The second runs AIMET's recipe through our own walk on the whole model (which needs no AIMET; the first says how often
it chooses what AIMET chose), on the graph that we search and on the one before our transforms, and measures it and our
`balanced` and `best` on text that calibration has not seen.
Novels: scripts/fetch_novels.py. Both prepare the graph by a build's own stages, in --cache (a scratch folder without).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peer import bench, judge
from peer.prepare import VARIANTS, Prepared, prepare

from edgeforge.errors import EdgeForgeError

GRIDS = {"channel": None, "lpbq": 64}
HOW_TO = """no interpreter with aimet-onnx: name one with --aimet or EDGEFORGE_AIMET. It needs a venv of its own:
    python -m venv aimet
    aimet/bin/pip install torch==2.13.0 torchvision==0.28.0 aimet-onnx==2.42.0
    (torch for the CPU comes from PyTorch's own index; without the pins pip takes several GB of CUDA)
    ... --aimet aimet/bin/python"""


def main() -> None:
    options = _options()
    try:
        _run(options)
    except EdgeForgeError as error:
        sys.exit(f"{error.message}\n  {error.hint}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a checkpoint folder")
    parser.add_argument("--aimet", default=os.environ.get("EDGEFORGE_AIMET", ""), metavar="PYTHON")
    parser.add_argument("--cache", type=Path, help="where the prepared graph is kept")
    parser.add_argument("--grids", nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--windows", type=int, help="of calibration text, 512 tokens each; all of a build's without")
    parser.add_argument("--runs", type=int, default=2, help="of each side, in turn; the fastest counts")
    parser.add_argument("--emulate", action="store_true", help="perplexity and KL of AIMET's recipe on the whole model")
    parser.add_argument("--novel", type=Path, help="with --emulate: text of a kind that calibration does not hold")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    if not options.emulate:
        _require_aimet(options.aimet)
    with _scratch() as scratch:
        cache = options.cache or scratch / "cache"
        if options.emulate:
            _emulate(options, cache, scratch)
        else:
            _race(options, prepare(options.model, cache), scratch)


def _race(options: argparse.Namespace, ready: Prepared, scratch: Path) -> None:
    for name in options.grids:
        print(f"\n{_title(name)}", flush=True)
        plan = bench.Plan(GRIDS[name], options.threads, options.layers, options.windows, options.runs, options.aimet)
        for line in bench.run(ready, plan, scratch / name, _say):
            print(line, flush=True)


def _emulate(options: argparse.Namespace, cache: Path, scratch: Path) -> None:
    ready = {variant: prepare(options.model, cache, variant) for variant in VARIANTS}
    read = judge.evaluation_text(ready["best"], options.novel, scratch)
    counts = ", ".join(f"{len(one.windows)} of {variant}" for variant, one in ready.items())
    for name in options.grids:
        print(f"\n{_title(name)}; weights alone, head W8; calibration windows: {counts}; AIMET's recipe through our "
              "walk, so its time is ours", flush=True)
        for line in judge.run(ready, GRIDS[name], read, options.threads, scratch, _say):
            print(line, flush=True)


def _title(grid: str) -> str:
    block = GRIDS[grid]
    return "W4, one step a channel" if block is None else f"W4, LPBQ in blocks of {block}"


def _require_aimet(python: str) -> None:
    seen = None
    try:
        if python:
            seen = subprocess.run([python, "-c", "import aimet_onnx"], capture_output=True, text=True, check=False,
                                  env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    except OSError as error:
        sys.exit(f"{python}: {error.strerror}\n{HOW_TO}")
    if seen is None or seen.returncode:
        sys.exit("\n".join([*(seen.stderr.splitlines()[-1:] if seen else ()), HOW_TO]))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edgeforge-bench-") as folder:
        yield Path(folder)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
