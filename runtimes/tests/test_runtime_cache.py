from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.cache import KvCache
from edgeforge_runtime.errors import CacheOverflow
from edgeforge_runtime.manifest import Graph, Model
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import HD, KV, Tiny

CL = 16
NAMES = {"key": "past_key_0_in", "value": "past_value_0_in"}


def cache_of(tiny: Tiny) -> KvCache:
    graphs = [Graph(ar, tiny.cl, (tiny._part("f", ar, 0, 2, False),)) for ar in tiny.widths]
    model = Model("tiny", 2, 90, tiny.cl, (2,), None, 0, -50.0, *tiny.axes)
    return KvCache(graphs, model)


def new_tokens(tiny: Tiny, cache: KvCache, count: int, seed: int) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    shape = {n: tiny.cache_shape("key" if "key" in n else "value", count) for n in cache.names}
    return {n: r.integers(0, 256, shape[n]).astype(np.uint8) for n in cache.names}


def columns(tiny: Tiny, name: str, array: Any, start: int, stop: int) -> Any:
    axis = tiny.axes[0] if "key" in name else tiny.axes[1]
    return np.take(array, range(start, stop), axis)


@pytest.fixture(params=[True, False], ids=["transposed", "plain"])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(transposed=request.param, quantized=True, widths=(4, 1), cl=CL)


def test_views_have_the_declared_shape_and_are_contiguous(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    for slots in (CL - 4, CL - 1):
        views = cache.view(slots)
        for kind, name in NAMES.items():
            assert views[name].shape == tiny.cache_shape(kind, slots)
            assert views[name].flags.c_contiguous
            assert views[name].dtype == np.uint8


def test_key_layout_is_the_contract(tiny: Tiny) -> None:
    shape = cache_of(tiny).view(CL - 1)[NAMES["key"]].shape
    assert shape == ((KV, 1, HD, CL - 1) if tiny.transposed else (1, KV, CL - 1, HD))


def test_a_step_moves_nothing(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    before = cache.view(CL - 1)
    cache.append(new_tokens(tiny, cache, 1, 0), 0, 1)
    after = cache.view(CL - 1)
    assert all(after[n] is before[n] for n in cache.names)
    assert cache.restrides == 0


def test_empty_slots_hold_the_zero_point(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    assert all((v == 128).all() for v in cache.view(CL - 4).values())
    cache.append(new_tokens(tiny, cache, 4, 1), 0, 3)
    for slots in (CL - 4, CL - 1):
        for name, view in cache.view(slots).items():
            assert (columns(tiny, name, view, 3, slots) == 128).all()
    cache.rewind(1)
    assert all((columns(tiny, n, v, 1, CL - 1) == 128).all() for n, v in cache.view(CL - 1).items())


def test_float_caches_start_at_zero() -> None:
    cache = cache_of(Tiny(quantized=False, widths=(1,), cl=CL))
    assert all((v == 0).all() for v in cache.view(CL - 1).values())


def test_append_takes_the_asked_columns(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    new = new_tokens(tiny, cache, 4, 2)
    cache.view(CL - 4)
    cache.append(new, 1, 2)
    for name, view in cache.view(CL - 4).items():
        np.testing.assert_array_equal(columns(tiny, name, view, 0, 2), columns(tiny, name, new[name], 1, 3))


def test_restrides_count_moves_of_tokens_only(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    cache.view(CL - 4)
    cache.view(CL - 1)
    assert cache.restrides == 0, "an empty cache has nothing to move"
    cache.append(new_tokens(tiny, cache, 1, 0), 0, 1)
    cache.view(CL - 1)
    assert cache.restrides == 0
    cache.view(CL - 4)
    cache.view(CL - 1)
    assert cache.restrides == 2


def test_tokens_that_outgrow_the_slots_move_to_the_longest_layout(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    cache.view(CL - 4)
    for seed in range(3):
        cache.append(new_tokens(tiny, cache, 4, seed), 0, 4)
    assert cache.restrides == 0
    cache.append(new_tokens(tiny, cache, 4, 3), 0, 3)
    assert (cache.length, cache.restrides) == (CL - 1, 1)


def test_overflow_is_named_and_changes_nothing(tiny: Tiny) -> None:
    cache = cache_of(tiny)
    cache.append(new_tokens(tiny, cache, CL - 1, 0), 0, CL - 1)
    with pytest.raises(CacheOverflow, match="16 tokens do not fit into a cache of 15 slots"):
        cache.append(new_tokens(tiny, cache, 1, 0), 0, 1)
    with pytest.raises(CacheOverflow, match="12 slots asked of a cache with 15 tokens"):
        cache.view(CL - 4)
    assert cache.length == CL - 1


@given(
    transposed=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(["wide", "narrow", "rewind"]), st.integers(0, 4)), max_size=12),
)
def test_any_sequence_keeps_the_tokens(transposed: bool, steps: list[tuple[str, int]]) -> None:
    tiny = Tiny(transposed=transposed, quantized=True, widths=(4, 1), cl=CL)
    cache = cache_of(tiny)
    kept = {n: new_tokens(tiny, cache, 0, 0)[n] for n in cache.names}
    for seed, (kind, count) in enumerate(steps):
        if kind == "rewind":
            cache.rewind(max(0, cache.length - count))
            kept = {n: columns(tiny, n, a, 0, cache.length) for n, a in kept.items()}
        elif cache.length + count <= CL - 4:
            cache.view(CL - 4 if kind == "wide" else CL - 1)
            new = new_tokens(tiny, cache, 4, seed)
            cache.append(new, 0, count)
            for name, array in kept.items():
                axis = tiny.axes[0] if "key" in name else tiny.axes[1]
                kept[name] = np.concatenate([array, columns(tiny, name, new[name], 0, count)], axis)
    for name, view in cache.view(CL - 1).items():
        np.testing.assert_array_equal(columns(tiny, name, view, 0, cache.length), kept[name])
        assert (columns(tiny, name, view, cache.length, CL - 1) == 128).all()
