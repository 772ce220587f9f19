"""Scales beside which the hardware's multiplier would vanish."""

from __future__ import annotations

import numpy as np
from quant_graphs import parse

from edgeforge import encodings
from edgeforge.encodings import Table
from edgeforge.quantize import floors
from edgeforge.quantize.weights.grid import per_channel
from edgeforge.targets import HTP


def test_a_channel_of_next_to_nothing_gets_a_scale_that_multiplies() -> None:
    """Case C32, as a newcomer met it: one column a millionth of the others saturated on the emulator."""
    w = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    w[:, 2] *= 1e-6
    model = parse("y = MatMul(x, w)", "float[1,8] x", "float[1,4] y", w=w)
    table = Table({"x": encodings.per_tensor(-1, 1, 16), "y": encodings.per_tensor(-4, 4, 16),
                   "w": per_channel(w, 1, 8)})
    made = floors.raised(model.graph, table, HTP.least_multiplier)
    multiplier = float(table["x"].scale) * made["w"].scale / float(table["y"].scale)
    assert multiplier.min() >= 2.0**-23 * (1 - 1e-6)
    others = [0, 1, 3]
    np.testing.assert_array_equal(made["w"].scale[others], table["w"].scale[others])
    lost = np.abs(made["w"].dequantize(made["w"].quantize(w)) - w)[:, 2].sum()
    assert lost < float(table["y"].scale)  # less than one code of the output, whatever x holds
    assert floors.raised(model.graph, table, 0.0)["w"] is table["w"]
