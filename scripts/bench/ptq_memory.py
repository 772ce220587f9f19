"""How much memory and time the weight search takes on a model of 1.5B parameters' shape, random weights.

    python scripts/bench/ptq_memory.py [--minutes 10] [--windows 8]

Writes the graph (6 GB) into a scratch folder, then searches W4 LPBQ-64 in a child process whose peak is printed
against 8 GiB. A run that the time limit ends is extrapolated over the stops of the walk, and says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from peer.meter import peak_mib

from edgeforge import artifact
from edgeforge.adapt import export, rope, shape
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.calibrate import whole
from edgeforge.graph import store
from edgeforge.graph.optimize import optimize
from edgeforge.quantize import sequential
from edgeforge.quantize.products import products
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights.grid import Grid
from edgeforge.targets import HTP

LIMIT_GIB, TOKENS = 8.0, 512
SHAPE = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": False, "dtype": "float32"}
"""Qwen2.5-1.5B's, as a Llama"""


def config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**SHAPE)


def write(folder: str) -> None:
    """The optimized float graph."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config()).eval()
    tables = rope.tables(model, TOKENS)  # the adapted graph has none
    decoder = shape.decoder(model.config, HTP, TOKENS)
    graph = export.export(DecoderGraph(model, HTP), decoder)
    store.save(optimize(graph, HTP), Path(folder))
    artifact.save_rope(Path(folder), tables)


class OutOfTimeError(Exception):
    pass


def search(folder: str, windows: int, minutes: float) -> None:
    torch.set_num_threads(2)
    model, decoder = store.load(Path(folder)), shape.decoder(config(), HTP, TOKENS)
    rng = np.random.default_rng(0)
    tables = artifact.load_rope(Path(folder))
    samples = [whole.feeds(decoder, rng.integers(0, decoder.vocab, TOKENS), tables) for _ in range(windows)]
    grids = {p.name: Grid(4, 64, lpbq=True) for p in products(model.graph)}
    begun, seen = time.perf_counter(), ["0", "1"]

    def say(text: str) -> None:
        seen[:] = text.removeprefix("weights ").split(" of ")
        if time.perf_counter() - begun > 60 * minutes:
            raise OutOfTimeError

    cut = ""
    try:
        sequential.quantize(model, samples, grids, dataclasses.replace(PRESETS["balanced"], importance=False), say)
        done = 1.0
    except OutOfTimeError:
        done = (int(seen[0]) - 1) / int(seen[1])
        cut = f" (extrapolated from {seen[0]} of {seen[1]} stops)"
    if not done:
        raise SystemExit("not one stop of the walk was done in time: give --minutes more")
    spent = (time.perf_counter() - begun) / done
    peak = peak_mib() / 1024
    print(f"{windows} windows of {TOKENS} tokens: {spent / 60:.1f} min{cut}, peak {peak:.2f} GiB, "
          f"{peak / LIMIT_GIB:.2f} of {LIMIT_GIB:g} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--windows", type=int, default=8)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="edgeforge-bench-") as folder:
        for call, arguments in ((write, (folder,)), (search, (folder, options.windows, options.minutes))):
            child = spawn.Process(target=call, args=arguments)
            child.start()
            child.join()
            if child.exitcode:
                raise SystemExit(f"{call.__name__} ended with {child.exitcode}")


if __name__ == "__main__":
    main()
