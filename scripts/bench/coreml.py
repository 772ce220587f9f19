"""Our weights against coremltools' own compression: the same layer and bits, both read back from finished packages.

    python scripts/bench/coreml.py models/smollm2-135m-instruct [--layers 14] [--windows 8]

Each product of the layers named becomes a Core ML program of one convolution, compressed by coremltools
(linear_quantize_weights; palettize_weights with k-means, which needs scikit-learn: `pip install scikit-learn`, for this
script alone) and written with our codes and tables (`quality: balanced`, fitted to the Gram matrix of the layer's
inputs on half of the windows). The packages are read from disk and executed here on the other half. SQNR is that of a
product's outputs, mean over products; bytes are those of weight.bin. One layer says nothing of what a model answers.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from edgeforge.backends.coreml import mil, package, weights
from edgeforge.backends.coreml.interpret.run import Interpreter
from edgeforge.backends.coreml.mil import mb
from edgeforge.calibrate import sources
from edgeforge.metrics import sqnr_db
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.weights.fit import Fitted, fit
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid, encoding

WINDOW, TOKENS = 512, 256
"""tokens of a piece of text, and of those that a package is executed on"""
_SEED = 0
_OPSET = mil.OPSETS[mil.OLDEST]


@dataclass(frozen=True)
class Format:
    """One row of the table. theirs: the name of coremltools' function and its settings."""

    name: str
    ours: Grid
    theirs: tuple[str, dict[str, Any]]


def _linear(dtype: str) -> tuple[str, dict[str, Any]]:
    return "linear", {"mode": "linear_symmetric", "dtype": dtype, "granularity": "per_channel"}


def _tables(bits: int) -> tuple[str, dict[str, Any]]:
    return "palette", {"mode": "kmeans", "nbits": bits, "granularity": "per_grouped_channel", "group_size": 16}


FORMATS = (Format("int8 per channel", Grid(8, half=True), _linear("int8")),
           Format("int4 per channel", Grid(4, half=True), _linear("int4")),
           Format("LUT4, 16 channels", Grid(4, half=True, palette=16), _tables(4)),
           Format("LUT6, 16 channels", Grid(6, half=True, palette=16), _tables(6)))


@dataclass(frozen=True)
class Case:
    """A product: weight [outputs, inputs], what it reads in calibration [tokens, inputs], and elsewhere."""

    name: str
    weight: Tensor
    seen: Tensor
    held: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a checkpoint folder")
    parser.add_argument("--layers", type=int, nargs="+", default=[14])
    parser.add_argument("--windows", type=int, default=8, help=f"of {WINDOW} tokens, half of them to fit on")
    options = parser.parse_args()
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("coremltools' k-means needs scikit-learn: pip install scikit-learn")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for layer in options.layers:
        cases = list(_cases(options.model, layer, options.windows))
        print(f"{options.model.name}, layer {layer}, {len(cases)} products; outputs on text that was not fitted to")
        print(f"{'format':20}{'coremltools':>30}{'ours':>30}")
        for form in FORMATS:
            theirs, ours = ([_measure(make, form, case) for case in cases] for make in (_theirs, _ours))
            print(f"{form.name:20}{_row(theirs):>30}{_row(ours):>30}", flush=True)


def _row(found: list[tuple[float, int, float]]) -> str:
    decibels, sizes, seconds = zip(*found, strict=True)
    return f"{sum(decibels) / len(decibels):.2f} dB {sum(sizes) / 2**20:.3f} MiB {sum(seconds):.0f} s"


@torch.no_grad()
def _cases(folder: Path, layer: int, windows: int) -> Iterator[Case]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = [p for p in sources.builtin() if len(p.text) > 4 * WINDOW]
    order = np.random.default_rng(_SEED).permutation(len(found))
    ids = [tokenizer(found[i].text).input_ids[:WINDOW] for i in order]
    pieces = [torch.tensor([i]) for i in ids if len(i) == WINDOW][:windows]
    prefix = f"model.layers.{layer}."
    linears = {n: m for n, m in model.named_modules() if n.startswith(prefix) and isinstance(m, nn.Linear)}
    read: dict[str, list[Tensor]] = {name: [] for name in linears}
    for name, module in linears.items():
        module.register_forward_pre_hook(lambda _, x, name=name: read[name].append(x[0][0]))
    for piece in pieces:
        model(piece)
    for name, module in linears.items():
        seen, held = (torch.cat(read[name][i::2]) for i in (0, 1))
        yield Case(name, module.weight.detach(), seen, held[:: max(len(held) // TOKENS, 1)][:TOKENS])


def _measure(make: Callable[[Format, Case, Path], float], form: Format, case: Case) -> tuple[float, int, float]:
    """dB of the outputs, bytes of weight.bin, seconds of the search."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "product.mlpackage"
        seconds = make(form, case, path)
        fed = np.ascontiguousarray(case.held.T.numpy()[None, :, None])
        made = Interpreter.open(path, "float32").run("main", {"x": fed})["y"][0, :, 0].T
        return sqnr_db((case.held @ case.weight.T).numpy(), made), (path / package.WEIGHTS).stat().st_size, seconds


def _ours(form: Format, case: Case, path: Path) -> float:
    begun = time.perf_counter()
    fitted = fit(case.weight.T.contiguous(), Gram(case.seen.T @ case.seen), form.ours, PRESETS["balanced"])
    seconds = time.perf_counter() - begun
    kept = encoding(fitted.steps, 0, 1, 4) if isinstance(fitted, Fitted) else fitted
    array = fitted.reals.T.numpy().reshape(*case.weight.shape, 1, 1)
    with mil.function({"x": (_shape(case), mil.FLOAT16)}) as made:
        weight = weights.constant("w", array, kept, "w")
        made.set_outputs([mb.conv(x=made.inputs["x"], weight=weight, pad_type="valid", name="y")])
    package.write({"main": made}, "main", path, {})
    return seconds


def _theirs(form: Format, case: Case, path: Path) -> float:
    import coremltools as ct
    import coremltools.optimize.coreml as cto

    plain: npt.NDArray[Any] = case.weight.numpy().astype(np.float16).reshape(*case.weight.shape, 1, 1)

    @mb.program(input_specs=[mb.TensorSpec(shape=_shape(case), dtype=mil.FLOAT16)], opset_version=_OPSET)  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        return mb.conv(x=x, weight=plain, pad_type="valid", name="y")

    model = ct.convert(program, convert_to="mlprogram", minimum_deployment_target=_OPSET, skip_model_load=True)
    kind, settings = form.theirs
    begun = time.perf_counter()
    if kind == "linear":
        options = cto.OptimizationConfig(global_config=cto.OpLinearQuantizerConfig(**settings))
        made = cto.linear_quantize_weights(model, options)
    else:
        options = cto.OptimizationConfig(global_config=cto.OpPalettizerConfig(**settings))
        made = cto.palettize_weights(model, options)
    seconds = time.perf_counter() - begun
    made.save(str(path))
    return seconds


def _shape(case: Case) -> tuple[int, int, int, int]:
    return 1, case.weight.shape[1], 1, len(case.held)


if __name__ == "__main__":
    main()
