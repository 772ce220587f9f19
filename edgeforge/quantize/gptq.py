"""Rounding that mends its own errors: GPTQ (Frantar et al., arXiv 2210.17323).

A weight row w is read against inputs X, so what rounding costs is |X(w - v)|^2 = (w - v)' H (w - v) with
H = X'X. Channels are rounded one after the other; the error of each is passed on to those still open, in
the way that minimises the cost: with H^-1 = U'U (U upper triangular), rounding channel i by e moves every
later channel j by -e U_ij / U_ii. Channels with the largest H_ii go first, while many are left to mend them.
A share of H's own diagonal is added to it: the rounding of later layers' inputs and text never seen are
noise that every channel has in proportion to its size.

Scales do not move: they are the table's, and the codes found here lie on that grid, so that rounding the
returned weights to nearest gives the same codes everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge.encodings import Encoding, Table
from edgeforge.quantize import roles
from edgeforge.quantize.parameters import matrix, put_matrix

Floats = npt.NDArray[np.float32]
Gram = npt.NDArray[np.floating]

DAMP = 0.01
"""share of each channel's own energy that is taken for noise"""
_BLOCK = 64
"""channels whose mending of what lies behind them is done at once"""
_ROWS = 8192
"""weight rows treated at a time, so that an LM head fits in memory"""


def round_weights(model: ir.Model, table: Table, grams: Mapping[str, Gram]) -> int:
    """Replaces each 1x1 convolution's weight by the one that its codes stand for; returns how many.

    Args:
        grams: X'X by the name of the value that the convolution reads.
    """
    factors: dict[str, Factor] = {}
    done = 0
    weights = {str(v.name): v for v in model.graph.initializers.values()}
    for name, source in roles.products(model.graph).items():
        encoding = table.get(name)
        if encoding is None or source not in grams:
            continue
        if source not in factors:
            factors = {source: Factor(grams[source])}
        weight = weights[name]
        put_matrix(weight, _rounded(matrix(weight).astype(np.float32), encoding, factors[source]))
        done += 1
    return done


class Factor:
    """What the weights that read one value share: the order of its channels, and U."""

    def __init__(self, gram: Gram, damp: float = DAMP) -> None:
        h = np.asarray(gram, np.float64)
        diagonal = h.diagonal().copy()
        # A channel that is always zero costs nothing, however it is rounded.
        diagonal[diagonal <= 0] = diagonal.max() if diagonal.max() > 0 else 1.0
        h = h + np.diag(diagonal * (1 + damp) - h.diagonal())
        self.order = np.argsort(-diagonal, kind="stable")
        # With rows and columns reversed, the Cholesky factor of H^-1 is the reversed inverse of H's own.
        lower = np.linalg.cholesky(h[np.ix_(self.order[::-1], self.order[::-1])])
        self.upper = np.ascontiguousarray(np.linalg.inv(lower)[::-1, ::-1], np.float32)


def _rounded(weight: Floats, encoding: Encoding, factor: Factor) -> npt.NDArray[np.float64]:
    scale, steps = encoding.scale, encoding.steps()
    times = None if encoding.block_scale is None else matrix_of_blocks(encoding.block_scale, encoding.block)
    out = np.empty_like(weight)
    for start in range(0, len(weight), _ROWS):
        rows = slice(start, start + _ROWS)
        own = None if times is None else times[rows]
        found = codes(weight[rows], scale[rows], encoding.low, encoding.high, factor, own)
        out[rows] = found * (steps[rows, None] if own is None else (own * scale[rows, None]).astype(np.float32))
    return out.astype(np.float64)


def matrix_of_blocks(blocks: npt.NDArray[np.integer], block: int | None) -> Floats:
    """Block scales of a 1x1 convolution as [rows, channels]: each block's once for every channel in it."""
    return blocks.reshape(blocks.shape[:2]).repeat(block or 1, 1).astype(np.float32)


def codes(weight: Floats, scale: Floats, low: int, high: int, factor: Factor, times: Floats | None = None) -> Floats:
    """Codes (whole numbers) of weight [rows, channels] on symmetric grids, scale [rows]; in blocks, a step is
    times [rows, channels] the row's scale."""
    order, u = factor.order, factor.upper
    # Channels run along the first axis, so that one of them is contiguous.
    left = np.ascontiguousarray((weight / scale[:, None]).T[order])
    found = np.empty_like(left)
    wide = np.ones((len(left), 1), np.float32) if times is None else np.ascontiguousarray(times.T[order])
    for start in range(0, len(left), _BLOCK):
        stop = min(start + _BLOCK, len(left))
        errors = np.empty((stop - start, left.shape[1]), np.float32)
        for i in range(start, stop):
            found[i] = np.clip(np.rint(left[i] / wide[i]), low, high)
            errors[i - start] = (left[i] - found[i] * wide[i]) / u[i, i]
            left[i + 1:stop] -= u[i, i + 1:stop, None] * errors[i - start]
        left[stop:] -= u[start:stop, stop:].T @ errors
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return np.ascontiguousarray(found[back].T)
