"""The pruned search against all candidates tried, and the bound it prunes by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgeforge.quantize.weights import best_first, seqmse
from edgeforge.quantize.weights.grid import Grid, minmax

GRID = Grid(4)


def gram(size: int, tokens: int, massive: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(size + tokens)
    x = torch.randn(tokens, size, generator=generator) @ torch.randn(size, size, generator=generator)
    x[:, 0] *= massive
    return x.T @ x


GRAMS = {"one": gram(1, 5), "small": gram(60, 300), "rank 40": gram(300, 40), "massive channel": gram(300, 900, 1e3),
         "white": torch.eye(50), "huge": 1e19 * gram(60, 300), "tiny": 1e-26 * gram(60, 300)}
KINDS = pytest.mark.parametrize("h", GRAMS.values(), ids=GRAMS)


@KINDS
def test_the_bound_is_below_every_error_and_at_most_the_whole(h: Tensor) -> None:
    factor = best_first.bounding(h).double()
    rest = torch.linalg.eigvalsh(h.double() - factor.T @ factor)
    assert rest[0] >= -1e-5 * torch.linalg.eigvalsh(h.double())[-1]
    assert factor.square().sum() > 0.05 * h.trace()


@KINDS
def test_pruning_changes_no_choice(h: Tensor) -> None:
    w = torch.randn(len(h), 40, generator=torch.Generator().manual_seed(1))
    widest = minmax(w, GRID)
    losses = []
    for share in seqmse.CANDIDATES:
        e = seqmse.rounding_error(w[None], widest * share, GRID)[0].double()
        losses.append(((h.double() @ e) * e).sum(0))
    found = torch.stack(losses)
    step = seqmse.search(w, h[None], GRID)
    chosen = (step / widest - torch.tensor(seqmse.CANDIDATES)[:, None]).abs().argmin(0)
    assert torch.allclose(found.gather(0, chosen[None])[0], found.amin(0), rtol=1e-5)


def test_few_candidates_are_tried() -> None:
    """The point of it: with energy in few directions, as decoders have it, most are pruned."""
    tried = 0
    decay = torch.arange(1, 301) ** -0.5
    h, w = decay * gram(300, 900) * decay[:, None], torch.randn(300, 100, generator=torch.Generator().manual_seed(1))
    widest = minmax(w, GRID)

    def error(columns: best_first.Columns, candidate: Tensor | int) -> Tensor:
        nonlocal tried
        tried += 0 if isinstance(columns, slice) else len(columns)
        share = torch.tensor(seqmse.CANDIDATES)[candidate]
        return seqmse.rounding_error(w[None][..., columns], widest[:, columns] * share, GRID)[0]

    best_first.search(h, len(seqmse.CANDIDATES), 100, error)
    assert 100 <= tried < 0.5 * 100 * len(seqmse.CANDIDATES)
