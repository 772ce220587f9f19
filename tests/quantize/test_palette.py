"""Tables that groups of channels share: each stage of the search lowers e' H e, and what is kept means what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeforge.errors import EdgeForgeError
from edgeforge.quantize.weights import palette, palette_file
from edgeforge.quantize.weights.fit import widest
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import Grid
from edgeforge.quantize.weights.palette import Palette


def _problem(seed: int, inputs: int = 48, outputs: int = 16) -> tuple[Tensor, Gram]:
    """Weights with a few large channels, read by correlated inputs of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(inputs, outputs, generator=generator) * torch.rand(outputs, generator=generator).add(0.2)
    mixing = torch.randn(inputs, inputs, generator=generator) * torch.logspace(-1, 1, inputs)
    x = torch.randn(400, inputs, generator=generator) @ mixing
    return weight, Gram(x.T @ x)


def _loss(weight: Tensor, gram: Gram, found: Palette) -> float:
    error = weight - torch.from_numpy(found.dequantize()[:, :, 0, 0].T.copy())
    return float((error * (gram.matrix @ error)).sum())


def _plain(weight: Tensor, bits: int, group: int) -> Palette:
    """k-means of the weights alone, as coremltools does it."""
    return palette.fit(weight, Gram(torch.eye(len(weight)), 0), bits, group, rounds=0)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([2, 4]), st.sampled_from([1, 4, 16]))
def test_more_rounds_never_lose_and_text_is_worth_more(seed: int, bits: int, group: int) -> None:
    weight, gram = _problem(seed)
    losses = [_loss(weight, gram, palette.fit(weight, gram, bits, group, rounds)) for rounds in (0, 1, 3)]
    assert losses[0] >= losses[1] * (1 - 1e-4)
    assert losses[1] >= losses[2] * (1 - 1e-4)
    assert losses[2] < (0.5 if bits == 4 else 0.8) * _loss(weight, gram, _plain(weight, bits, group))


def test_tables_of_four_bits_beat_steps_of_four_bits() -> None:
    weight, gram = _problem(0)
    steps = widest(weight, Grid(4, half=True))
    error = weight - steps.reals(steps.nearest(weight))
    assert _loss(weight, gram, palette.fit(weight, gram, 4, 4)) < 0.3 * float((error * (gram.matrix @ error)).sum())


def test_a_weight_of_few_values_is_found_exactly() -> None:
    """Every group of channels has its own 16 values; each of them is a float16 number."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, 16, generator=generator).half().float().sort(1).values
    codes = torch.randint(0, 16, (64, 12), generator=generator)
    weight = torch.gather(values.repeat_interleave(4, 0).T, 0, codes)
    found = palette.fit(weight, Gram(torch.eye(64)), 4, 4, rounds=6)
    error = weight - torch.from_numpy(found.dequantize()[:, :, 0, 0].T.copy())
    assert float(error.square().sum() / weight.square().sum()) < 1e-3
    assert found.tables.dtype == np.float16
    assert (np.diff(found.tables.astype(np.float32), axis=1) >= 0).all()


def test_channels_of_zeros_stay_zeros() -> None:
    weight, gram = _problem(3)
    weight[:, :4] = 0
    found = palette.fit(weight, gram, 4, 4)
    assert not found.dequantize()[:4].any()
    assert np.isfinite(found.dequantize()).all()


def test_slices_mean_what_the_whole_means() -> None:
    weight, gram = _problem(4)
    found = palette.fit(weight, gram, 4, 4)
    np.testing.assert_array_equal(found.take(4, 12).dequantize(), found.dequantize()[4:12])
    pieces = palette.spread({"w": found, "gone": found}, {"w/h1": 12, "w/h0": 4, "other": 3})
    assert sorted(pieces) == ["w/h0", "w/h1"]
    np.testing.assert_array_equal(pieces["w/h1"].dequantize(), found.dequantize()[4:])
    with pytest.raises(EdgeForgeError, match="outputs 2 to 6 cut through a group of 4"):
        found.take(2, 6)


def test_groups_divide_the_outputs() -> None:
    weight, gram = _problem(5)
    with pytest.raises(EdgeForgeError, match="groups of 3 outputs do not divide 16"):
        palette.fit(weight, gram, 4, 3)


def test_a_file_keeps_every_bit(tmp_path: Path) -> None:
    weight, gram = _problem(6)
    made = {"a.weight": palette.fit(weight, gram, 4, 4), "b.weight": palette.fit(weight, gram, 6, 16)}
    palette_file.save(tmp_path / palette_file.FILE, made)
    read = palette_file.load(tmp_path / palette_file.FILE)
    assert list(read) == list(made)
    for name, found in read.items():
        assert (found.bits, found.group) == (made[name].bits, made[name].group)
        np.testing.assert_array_equal(found.codes, made[name].codes)
        np.testing.assert_array_equal(found.tables, made[name].tables)
    np.savez(tmp_path / "wrong.npz", **{"a:codes": made["a.weight"].codes, "a:tables": made["a.weight"].tables[:, :7]})
    for path in (tmp_path / "wrong.npz", tmp_path / "nowhere.npz"):
        with pytest.raises(EdgeForgeError, match=f"{path.name} holds no palettes"):
            palette_file.load(path)
