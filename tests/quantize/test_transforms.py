"""Exact rewrites: the decoder computes what it did, whatever statistics they were fitted to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_graphs import adapted, prefill, run

from edgeforge.calibrate.statistics import Peaks
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.optimize import optimize
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import equalize, outliers, rotate
from edgeforge.stages import transform
from edgeforge.targets import HTP, PLAIN, TRT

EXACT_DB = 100.0
FAMILIES = ["llama", "llama-bias", "llama-tied", "smollm3"]
"""grouped queries, biases, a tied head, layers without RoPE"""


def decibels(made: tiny.Adapted, before: ir.Model, after: ir.Model, folder: Path) -> float:
    """The graph after against the graph before, prefill and single steps."""
    ids = tiny.ids(tiny.TOKENS, made.decoder.vocab)
    expected = tiny.logits(tiny.write(folder / "before", made, before), ids)
    actual = tiny.logits(tiny.write(folder / "after", made, after), ids)
    return min(sqnr_db(a, b) for a, b in zip(expected, actual, strict=True))


def peaks_of(kept: dict[str, tuple[int, ...]], model: ir.Model, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Peaks between 0.1 and 1,000, as no calibration would find them."""
    rng = np.random.default_rng(seed)
    shapes = {str(v.name): edit.known_dims(v) for n in model.graph for v in n.outputs}
    return {name: 10 ** rng.uniform(-1, 3, [shapes[name][a] for a in axes]).astype(np.float32)
            for name, axes in kept.items()}


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
def test_rotation_is_exact(family: str, tmp_path: Path) -> None:
    made, model = adapted(family)
    turned = model.clone()
    direction = np.random.default_rng(3).normal(size=made.decoder.hidden)
    assert rotate.rotate(turned, direction) == made.decoder.hidden
    assert decibels(made, model, turned, tmp_path) >= EXACT_DB
    gains = [v for n, v in turned.graph.initializers.items() if n.endswith("input_layernorm.weight")]
    assert all((edit.constant(g) == 1).all() for g in gains)


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
def test_rotation_of_matmuls_is_exact(family: str, tmp_path: Path) -> None:
    """A tied table is untied first: behind the norm's gain head and table are no longer one."""
    made = tiny.adapt(tiny.model(family), TRT)
    model = optimize(made.model, TRT)
    turned = model.clone()
    direction = np.random.default_rng(3).normal(size=made.decoder.hidden)
    assert rotate.rotate(turned, direction) == made.decoder.hidden
    assert decibels(made, model, turned, tmp_path) >= EXACT_DB
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(turned.graph.initializers)
    assert all((edit.constant(v) == 1).all() for n, v in turned.graph.initializers.items()
               if n.endswith("input_layernorm.weight"))


def test_rotation_keeps_the_length_of_every_embedding() -> None:
    _, model = adapted("llama")
    table = edit.constant(model.graph.initializers["model.embed_tokens.weight"])
    turned = model.clone()
    rotate.rotate(turned)
    after = edit.constant(turned.graph.initializers["model.embed_tokens.weight"])
    assert table is not None
    assert after is not None
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), np.linalg.norm(table, axis=1), rtol=1e-5)


@settings(deadline=None)
@given(size=st.sampled_from([1, 2, 3, 12, 64, 60, 35]), seed=st.integers(0, 1000))
def test_the_rotation_is_orthogonal_and_makes_its_direction_flat(size: int, seed: int) -> None:
    q = rotate.orthogonal(size)
    np.testing.assert_allclose(q @ q.T, np.eye(size), atol=1e-12)
    direction = np.random.default_rng(seed).normal(size=size) * 100
    turned = rotate.toward(q, direction)
    np.testing.assert_allclose(turned @ turned.T, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(direction @ turned, np.full(size, np.linalg.norm(direction) / size**0.5), rtol=1e-9)
    # Turning once more finds nothing to do.
    np.testing.assert_allclose(rotate.toward(turned, direction), turned, atol=1e-12)


@pytest.mark.parametrize("family", ["olmo2", "gemma2"])
def test_what_cannot_be_rotated_is_refused_untouched(family: str) -> None:
    _, model = adapted(family)
    copy = model.clone()
    with pytest.raises(UnsupportedError):
        rotate.rotate(copy)
    for name, value in model.graph.initializers.items():
        np.testing.assert_array_equal(edit.constant(copy.graph.initializers[name]), edit.constant(value))


@pytest.mark.parametrize("family", [*FAMILIES, "phi3-partial"])
def test_equalisation_is_exact(family: str, tmp_path: Path) -> None:
    made, model = adapted(family)
    copy = model.clone()
    peaks = peaks_of(equalize.watched(copy.graph, made.decoder), copy)
    assert equalize.equalize(copy, made.decoder, peaks) == []
    changed = [n for n, v in model.graph.initializers.items()
               if not np.array_equal(edit.constant(v), edit.constant(copy.graph.initializers[n]))]
    assert len(changed) >= 4 * made.decoder.layers
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


def test_equalised_caches_fill_their_grid(tmp_path: Path) -> None:
    """With the peaks of one text as factors, every channel (pair) of that text's cache peaks alike."""
    made, model = adapted("llama")
    kept = equalize.watched(model.graph, made.decoder)
    before = _cache_peaks(made, model, kept, tmp_path / "before")
    copy = model.clone()
    equalize.equalize(copy, made.decoder, before)
    after = _cache_peaks(made, copy, kept, tmp_path / "after")
    # Deeper layers see a zero past through other scales; the first layer's cache depends on the text alone.
    for name in ("past_key_0_out", "past_value_0_out"):
        half = after[name].shape[1] // 2
        tied = np.maximum(after[name][:, :half], after[name][:, half:]) if "key" in name else after[name]
        np.testing.assert_allclose(tied, before[name].max(), rtol=1e-4)


def _cache_peaks(made: tiny.Adapted, model: ir.Model, kept: dict[str, tuple[int, ...]],
                 folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    peaks = Peaks(kept)
    values = run(model.clone(), folder, prefill(made))
    for name in kept:
        peaks.see(name, values[name])
    return peaks.seen


@pytest.mark.parametrize(
    "family", ["qwen3", "olmo2"])
def test_keys_behind_a_norm_are_left_alone_with_a_reason(family: str, tmp_path: Path) -> None:
    made, model = adapted(family)
    copy = model.clone()
    left = equalize.equalize(copy, made.decoder, peaks_of(equalize.watched(copy.graph, made.decoder), copy))
    assert {s.cache for s in left} == {"past_key_0_out", "past_key_1_out"}
    assert all("RMSNormalization stands between" in s.reason for s in left)
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


def test_keys_with_a_constant_added_behind_the_projection_are_left_alone(tmp_path: Path) -> None:
    """A factor of the channel would have to reach the constant as well: what was added stayed as it was."""
    made, model = adapted("llama")
    model = model.clone()
    conv = next(n for n in model.graph if n.op_type == "Conv" and "layers.0.self_attn.k_proj" in n.inputs[1].name)
    value, uses = conv.outputs[0], list(conv.outputs[0].uses())
    bias = edit.initializer(model.graph, "bias", np.ones((1, edit.known_dims(value)[1], 1, 1), np.float32))
    added = edit.node_after(conv, "Add", [value, bias], "biased", edit.known_dims(value))
    added.type = value.type
    for use in uses:
        use.node.replace_input_with(use.idx, added)
    copy = model.clone()
    left = equalize.equalize(copy, made.decoder, peaks_of(equalize.watched(copy.graph, made.decoder), copy))
    assert [(s.cache, s.reason) for s in left] == [
        ("past_key_0_out", "Add of a constant stands between the projection and the cache")]
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


def test_layers_that_share_their_weights_are_left_alone(tmp_path: Path) -> None:
    """Rewriting one of them would change the other; the caches are each layer's own."""
    shared = tiny.model("llama")
    shared.model.layers[1].mlp = shared.model.layers[0].mlp
    made = tiny.adapt(shared, HTP)
    model = optimize(made.model, HTP)
    assert outliers.watched(model.graph) == {}
    copy = model.clone()
    assert outliers.split(copy, {}) == []
    seen = SimpleNamespace(unrotated="", direction=np.ones(made.decoder.hidden))
    (check,) = transform._apply(copy, made.decoder, ["rotate"], seen)  # type: ignore[arg-type]
    assert (check.value, check.passed) == (0, True)
    assert "_proj.weight is shared" in check.note
    assert decibels(made, model, copy, tmp_path) > 140, "refused before anything was changed"


def test_a_cache_of_unknown_layout_is_left_alone() -> None:
    made = tiny.adapt(tiny.model("llama"), PLAIN)
    assert equalize.watched(made.model.graph, made.decoder) == {}
    left = equalize.equalize(made.model, made.decoder, {})
    assert len(left) == 4
    assert "layout" in left[0].reason


def test_factors_tie_rope_pairs_and_keep_silent_channels_in_reach() -> None:
    peaks = np.array([[4.0, 0, 1, 2, 0, 8], [1, 0, 3, 1, 1, 1]])
    made = equalize.factors(peaks, 4)
    np.testing.assert_allclose(made * 8, [[4, 2, 4, 2, 8 / 256, 8], [3, 1, 3, 1, 1, 1]])
    np.testing.assert_array_equal(equalize.factors(np.zeros((2, 4)), 4), np.ones((2, 4)))


MASSIVE = np.r_[np.linspace(1, 2, 47), 3000].astype(np.float32)


@pytest.mark.parametrize("family", ["llama-bias", "gemma2"])
def test_splitting_is_exact(family: str, tmp_path: Path) -> None:
    made, model = adapted(family)
    copy = model.clone()
    names = list(outliers.watched(copy.graph))
    assert names == ["model.layers.0.mlp/Mul", "model.layers.1.mlp/Mul"]
    quiet = np.ones(48, np.float32)
    assert outliers.split(copy, dict(zip(names, (quiet, MASSIVE), strict=True))) == names[1:]
    widths = [edit.known_dims(v)[-1] for n in copy.graph for v in n.outputs if v.name in names]
    assert widths == [48, 48 + 2 * 64]
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_splitting_of_matmuls_is_exact(family: str, tmp_path: Path) -> None:
    made = tiny.adapt(tiny.model(family), TRT)
    model = optimize(made.model, TRT)
    copy = model.clone()
    kept = outliers.watched(copy.graph)
    assert kept == {"model.layers.0.mlp/Mul": (2,), "model.layers.1.mlp/Mul": (2,)}
    quiet = np.ones(48, np.float32)
    assert outliers.split(copy, dict(zip(kept, (MASSIVE, quiet), strict=True))) == ["model.layers.0.mlp/Mul"]
    for name, shape in (("up_proj", [176, 32]), ("gate_proj", [176, 32]), ("down_proj", [32, 176])):
        assert list(copy.graph.initializers[f"model.layers.0.mlp.{name}.weight"].shape or ()) == shape
    assert decibels(made, model, copy, tmp_path) >= EXACT_DB


@settings(deadline=None)
@given(peak=st.floats(1e3, 1e6), channels=st.sampled_from([48, 200, 1536]), seed=st.integers(0, 100))
def test_a_plan_shrinks_the_range_to_its_target_in_whole_vectors(peak: float, channels: int, seed: int) -> None:
    peaks = np.random.default_rng(seed).uniform(0.5, 4, channels)
    peaks[3] = peak
    copies = outliers.plan(peaks)
    target = 16 * np.sort(peaks)[::-1][channels // 100 + 1]
    if peak < 4 * target:
        assert copies is None
        return
    assert copies is not None
    assert copies.min() >= 1
    assert (copies.sum() - channels) % 64 == 0
    assert (peaks / copies).max() <= target


def test_there_is_no_plan_for_ordinary_or_silent_channels() -> None:
    assert outliers.plan(np.random.default_rng(0).uniform(0, 5, 1536)) is None
    assert outliers.plan(np.zeros(64)) is None
