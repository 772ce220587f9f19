"""What both sides chose, on identical inputs: losses e' H e from one Gram matrix, and candidates one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from edgeforge.encodings import Encoding
from edgeforge.export import aimet_read
from edgeforge.quantize.products import Product
from edgeforge.quantize.quality import PRESETS
from edgeforge.quantize.walk import Sample, Walk
from edgeforge.quantize.weights.fit import fit
from edgeforge.quantize.weights.gram import Gram, Loss
from edgeforge.quantize.weights.grid import Grid, minmax, steps_of
from edgeforge.quantize.weights.seqmse import rounding_error
from peer import cut, recipe
from peer.job import CANDIDATES

TOLERANCE = 1e-3
"""by how much of theirs a loss of ours may be larger"""
_SAME_FLOAT, _HALF_WAY = 1e-5, 1e-5


@dataclass(frozen=True)
class Losses:
    """One weight's e' H e under what each side shipped. same: by AIMET's candidates, own: by ours."""

    kind: str
    theirs: float
    same: float
    own: float


@dataclass(frozen=True)
class Choices:
    """One weight's steps beside AIMET's, searched on AIMET's inputs.

    steps: where the same candidate won, of how many. integers, channels: of the shipped grid, how many are equal, of
    how many (no integers without blocks). ties: how often another candidate won where a weight lies half way between
    two codes: AIMET rounds it up, ONNX (and so what ships, and we) to even. gaps: where one won without that, our
    candidate's loss less theirs, over theirs.
    """

    steps: tuple[int, int]
    integers: tuple[int, int]
    channels: tuple[int, int]
    ties: int
    gaps: tuple[float, ...]


def totals(losses: Sequence[Losses]) -> dict[str, Losses]:
    """Sums by kind, in the order of their first weight, and "all"."""
    kinds = [*dict.fromkeys(one.kind for one in losses), "all"]
    parts = {k: [one for one in losses if k in ("all", one.kind)] for k in kinds}
    return {k: Losses(k, *(sum(getattr(one, name) for one in part) for name in ("theirs", "same", "own")))
            for k, part in parts.items()}


def chosen_by_aimet(folder: Path, graph: ir.Graph) -> dict[str, Encoding]:
    """The encodings of all searched weights, out of the file that AIMET exported.

    Raises:
        ValueError: the file leaves a weight out.
    """
    table, _ = aimet_read.match(folder / "theirs.encodings", graph)
    names = [p.name for p in cut.searched(graph)]
    if missing := [name for name in names if name not in table]:
        raise ValueError(f"AIMET's file has no encoding of {', '.join(missing)}")
    return {name: table[name] for name in names}


def reals(product: Product, encoding: Encoding) -> Tensor:
    """The product's weight [inputs, outputs], rounded to nearest on the grid."""
    weight = product.restored(product.matrix()).numpy()
    rounded = encoding.dequantize(encoding.quantize(weight)).astype(np.float32)
    flat = rounded.reshape(len(rounded), -1)
    return torch.from_numpy(np.ascontiguousarray(flat.T if product.outputs_axis == 0 else flat))


def loss(gram: Tensor, error: Tensor) -> float:
    """e' H e summed over outputs: gram [n, n], error [n, o]."""
    wide = error.double()
    return float(((gram.double() @ wide) * wide).sum())


@torch.no_grad()
def on_float_inputs(graph: ir.Graph, samples: Sequence[Sample], theirs: Mapping[str, Encoding],
                    ours: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[Losses]:
    """Every weight's losses on what it reads in the float model; ours: by method, weights as they ship."""
    walk = Walk(graph, samples, both=False)
    for stop in walk.visit():
        gram = walk.sums(stop).gram
        for product in stop.products:
            if product.name in theirs:
                weight = product.matrix()
                same, own = (loss(gram, weight - _matrix(product, ours[m][product.name])) for m in ("same", "own"))
                there = loss(gram, weight - reals(product, theirs[product.name]))
                yield Losses(cut.kind(product.name), there, same, own)


@torch.no_grad()
def on_their_inputs(graph: ir.Graph, samples: Sequence[Sample], theirs: Mapping[str, Encoding],
                    raw: Mapping[str, np.ndarray], grid: Grid) -> Iterator[tuple[Losses, Choices]]:
    """Every weight searched anew by us, behind the very weights that AIMET searched it behind.

    Args:
        raw: AIMET's steps as searched, [outputs, blocks] by weight.
    """
    walk = Walk(graph, samples, both=False)
    for stop in walk.visit():
        sums = walk.sums(stop).gram
        gram = Gram(sums, damp=0)
        for product in (p for p in stop.products if p.name in theirs):
            weight, encoding = product.matrix(), theirs[product.name]
            made, steps = recipe.choose(weight, gram, grid), torch.from_numpy(raw[product.name].T.copy())
            same = made.shipped.reals(made.shipped.nearest(weight))
            own = fit(weight, Gram(sums), grid, PRESETS["fast"]).reals
            there = reals(product, encoding)
            yield (Losses(cut.kind(product.name), *(loss(sums, weight - w) for w in (there, same, own))),
                   choices(weight, gram, grid, made, steps, encoding))
            searched = steps_of(grid, steps)
            walk.replace(product, searched.reals(searched.nearest(weight)))


def choices(weight: Tensor, gram: Gram, grid: Grid, made: recipe.Chosen, steps: Tensor, shipped: Encoding) -> Choices:
    """How far our search of weight [n, o] and AIMET's agree: its searched steps [b, o] and its shipped grid."""
    widest = minmax(weight, grid)
    equal = candidate(made.searched.blocks, widest) == candidate(steps, widest)
    gaps = gap(weight, gram.blocks(grid.size(len(weight))), made.searched.blocks, steps, grid)
    half = tied(weight, made.searched.blocks) | tied(weight, steps)
    channel = torch.from_numpy(shipped.scale.reshape(-1).copy())
    ours = made.shipped.channel[0]
    near = (ours - channel).abs() <= _SAME_FLOAT * channel
    integers = torch.zeros(0, dtype=torch.bool)
    if shipped.block_scale is not None:
        whole = shipped.block_scale.reshape(len(channel), -1).T
        integers = made.shipped.factors == torch.from_numpy(whole.copy())
    counts = ((int(each.sum()), each.numel()) for each in (equal, integers, near))
    return Choices(*counts, int((half & ~equal).sum()), tuple(gaps[~equal & ~half].tolist()))


def candidate(steps: Tensor, widest: Tensor) -> Tensor:
    """Which candidate, 1 to 20, each step is of the min-max steps widest."""
    return torch.round(steps / widest * CANDIDATES)


def tied(weight: Tensor, steps: Tensor) -> Tensor:
    """Where a weight [n, o] lies half way between two codes of its step [b, o]."""
    parts = weight.double().view(len(steps), -1, weight.shape[1]) / steps.double()[:, None]
    return ((parts - parts.floor() - 0.5).abs() < _HALF_WAY).any(1)


def gap(weight: Tensor, blocks: Tensor, a: Tensor, b: Tensor, grid: Grid) -> Tensor:
    """(loss(a) - loss(b)) / loss(b) of every block and output, for steps a and b [b, o], in float64."""
    parts = weight.double().view(len(blocks), -1, weight.shape[1])
    first, second = (Loss(blocks.double())(rounding_error(parts, s.double(), grid)) for s in (a, b))
    return (first - second) / second.clamp_min(1e-30)


def _matrix(product: Product, array: np.ndarray) -> Tensor:
    flat = array.reshape(len(array), -1)
    return torch.from_numpy(np.ascontiguousarray(flat.T if product.outputs_axis == 0 else flat))
