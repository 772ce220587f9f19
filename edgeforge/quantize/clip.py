"""Where the 8-bit grids of caches and embedding tables end: at the largest value seen, or before.

16-bit grids hold everything and 20 % more; with 256 codes a rare large value makes every step coarser. `mse` ends the
grid where rounding inside and clipping outside lose the least together (step^2 / 12 for each value inside, the squared
distance to the end for each outside); `percentile` lets one value in 10,000 go past each end.

SmolLM2-135M's caches (3 pieces of 512 tokens seen, measured on 3 others), SQNR on average and of the worst layer:
    keys    minmax 39.3 and 36.7 dB, percentile 42.1 and 39.9, mse 42.2 and 40.7
    values  minmax 36.2 and 33.7 dB, percentile 38.6 and 35.4, mse 38.9 and 36.2
1.6 dB of that is the headroom. A tiny random model's logits do not notice: KL 0.0080 whichever it is, at 4-bit weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeforge.calibrate.histogram import Histogram
from edgeforge.encodings import per_tensor, reals
from edgeforge.gates import Check
from edgeforge.graph import edit
from edgeforge.quantize import roles

if TYPE_CHECKING:
    from edgeforge.sections import Quantize

Range = tuple[float, float]
_PASSING = 1e-4
_SHARES = tuple(0.02 * i for i in range(5, 51))
_OUTLIER, _USUAL = 64, 0.999
_NARROW = 8
"""bits of the grids that may clip"""


def clipped(graph: ir.Graph, histograms: Mapping[str, Histogram], options: Quantize) -> dict[str, Range]:
    """Ranges by value name that replace the ones seen, headroom included; none for `minmax`."""
    if options.ranges == "minmax":
        return {}
    caches = histograms.items() if options.kv <= _NARROW else ()
    found = {name: _end(seen, options.kv, True, options) for name, seen in caches}
    for value in tables(graph) if options.embedding <= _NARROW else ():
        array = edit.constant(value)
        if array is not None:
            seen = Histogram()
            seen.see(reals(array))
            found[str(value.name)] = _end(seen, options.embedding, False, options)
    return found


def tables(graph: ir.Graph) -> list[ir.Value]:
    """What tokens look rows up in."""
    return [n.inputs[0] for n in graph if n.op_type == "Gather" and n.inputs[0] is not None
            and n.inputs[0].is_initializer() and roles.is_real(n.inputs[0])]


def _end(seen: Histogram, bits: int, symmetric: bool, options: Quantize) -> Range:
    if options.ranges == "percentile":
        return seen.quantile(_PASSING), seen.quantile(1 - _PASSING)
    tried = [(seen.range[0] * share, seen.range[1] * share) for share in _SHARES]
    return min(tried, key=lambda r: expected_error(seen, r, bits, symmetric))


def expected_error(seen: Histogram, wanted: Range, bits: int, symmetric: bool) -> float:
    """Sum over all that was seen of the squared error on the grid that holds the range."""
    grid = per_tensor(*wanted, bits, symmetric)
    scale, zero = float(grid.scale), int(grid.zero_point)
    low, high = -zero * scale, ((1 << bits) - 1 - zero) * scale
    past = np.maximum(np.maximum(low - seen.centres, seen.centres - high), 0)
    return float((seen.counts * np.where(past > 0, past**2, scale**2 / 12)).sum())


def outliers(histograms: Mapping[str, Histogram]) -> Check:
    """The caches whose largest value is more than 64 times what 99.9 % of it stays below, in size."""
    found = []
    for name, seen in histograms.items():
        peak = max(-seen.range[0], seen.range[1])
        usual = max(-seen.quantile(1 - _USUAL), seen.quantile(_USUAL), seen.width)
        if peak > _OUTLIER * usual:
            found.append(f"{name}: {peak / usual:.0f} x")
    return Check("calibrate: caches with outliers", len(found), "values", note=", ".join(found))
