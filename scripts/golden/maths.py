"""Golden values of the arithmetic: exact fractions and 40 digits, rounded once. Nothing here calls our own maths."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import formula
import numpy as np
from mpmath import mp

from edgeforge.vectors.format import Expected, TensorSpec, Tolerance

Arrays = dict[str, np.ndarray]
Grid = tuple[float, int]
"""scale (a float32), zero point"""

mp.dps = 40
EXACT, EQUAL = Tolerance(lsb=0), Tolerance(max_abs=0.0)

POSITIONS = (0, 1, 2, 3, 7, 31, 64, 127, 511, 1023, 1024, 2047)
HEAD_DIM, THETA = 32, 10000
LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 512}

GRIDS: dict[str, tuple[str, Grid, int, int]] = {
    "u16": ("uint16", (2.0**-15, 32768), 0, 65535),
    "u16_uneven": ("uint16", (float(np.float32(0.0001)), 12345), 0, 65535),
    "u8": ("uint8", (float(np.float32(8 / 255)), 128), 0, 255),
    "i8": ("int8", (2.0**-6, 0), -128, 127),
    "i4": ("int8", (2.0**-2, 0), -8, 7),
}
"""name: dtype of the stored codes, grid, lowest and highest code (4-bit codes are stored in a byte each)"""

WIDE: Grid = (2.0**-12, 30000)
NARROW: Grid = (2.0**-5, 128)
MASK: Grid = (float(np.float32(50 / 65535)), 65535)
MASK_AR, MASK_CL = 4, 12
MASK_CALLS = {"first": (0, 0, 4), "full": (5, 0, 4), "ragged": (5, 0, 3), "right_aligned": (3, 2, 2)}
"""label: tokens in the cache, first row that holds a token, rows that do"""
KV, DIM, SLOTS, CACHE_ZERO = 2, 4, 7, 128


def graphs() -> list[Any]:
    """What vectors.format.write takes: one "graph" a function."""
    return [_rope("rope", {}), _rope("rope_llama3", LLAMA3), _quantize(), _dequantize(), _lpbq(), _requantize(),
            _mask(), _cache(), _attention(), _metrics()]


def _graph(name: str, calls: Mapping[str, tuple[Arrays, Arrays]], tolerance: Tolerance | Mapping[str, Tolerance],
           grids: Mapping[str, Grid] | None = None) -> Any:
    first_in, first_out = next(iter(calls.values()))

    def keys(key: str, array: np.ndarray) -> dict[str, Any]:
        grid = (grids or {}).get(key)
        made = {"name": key, "dtype": str(array.dtype), "shape": array.shape}
        return made | ({"scale": grid[0], "zero_point": grid[1]} if grid else {})

    limits = {k: tolerance if isinstance(tolerance, Tolerance) else tolerance[k] for k in first_out}
    inputs = [TensorSpec(**keys(k, a)) for k, a in first_in.items()]
    outputs = [Expected(**keys(k, a), tolerance=limits[k]) for k, a in first_out.items()]
    return name, inputs, outputs, [(label, fed, made) for label, (fed, made) in calls.items()]


def code(real: Fraction, grid: Grid, low: int, high: int) -> int:
    """round half to even(real / scale) + zero point, held within the grid."""
    return min(max(round(real / Fraction(grid[0])) + grid[1], low), high)


def frequency(index: int, llama3: Mapping[str, int]) -> Any:
    """theta^(-2 index / head_dim); with llama3's keys scaled as that paper's code does, by wavelength."""
    plain = mp.mpf(THETA) ** (-mp.mpf(2 * index) / HEAD_DIM)
    if not llama3:
        return plain
    low, high = llama3["low_freq_factor"], llama3["high_freq_factor"]
    turns = llama3["original_max_position_embeddings"] * plain / (2 * mp.pi)
    share = min(max((turns - low) / (high - low), mp.mpf(0)), mp.mpf(1))
    return (1 - share) * plain / llama3["factor"] + share * plain


def _rope(name: str, llama3: Mapping[str, int]) -> Any:
    """cos and sin of position x frequency. A float32 frequency is off by half an ulp, so the last position by 1e-4."""
    angles = [[p * frequency(i, llama3) for i in range(HEAD_DIM // 2)] for p in POSITIONS]
    made = {key: np.array([[float(f(a)) for a in row] for row in angles], np.float32)
            for key, f in (("cos", mp.cos), ("sin", mp.sin))}
    return _graph(name, {"positions": ({"positions": np.array(POSITIONS, np.int32)}, made)}, Tolerance(max_abs=5e-4))


def _quantize() -> Any:
    """Halves of a step, the ends and beyond, signed zeros, the smallest normal number, and 200 hashed reals."""
    special = [0.0, -0.0, 2.0**-16, 3 * 2.0**-16, -(2.0**-16), -3 * 2.0**-16, 2.0**-7, 3 * 2.0**-7, -(2.0**-7),
               0.125, 0.375, -0.125, -0.375, 1.9999, -1.9999, 2.5, -2.5, 1e30, -1e30, 2.0**-126, -(2.0**-126)]
    x = np.concatenate([np.array(special, np.float32), formula.reals("quantize", (200,)) * np.float32(4)])
    made = {name: np.array([code(Fraction(float(v)), grid, low, high) for v in x], dtype)
            for name, (dtype, grid, low, high) in GRIDS.items()}
    return _graph("quantize", {"reals": ({"x": x}, made)}, EXACT, {n: g[1] for n, g in GRIDS.items()})


def _dequantize() -> Any:
    """(code - zero point) x scale: the difference is exact, the product is rounded once."""
    codes, made = {}, {}
    for name, (dtype, (scale, zero), low, high) in GRIDS.items():
        q = np.unique([low, low + 1, max(zero - 1, low), zero, zero + 1, high - 1, high,
                       *formula.integers(f"dequantize.{name}", (64,), low, high)])
        codes[name] = np.resize(q, 64).astype(dtype)
        made[f"{name}_real"] = np.array([(int(c) - zero) * scale for c in codes[name]], np.float64).astype(np.float32)
    return _graph("dequantize", {"codes": (codes, made)}, EQUAL, {n: g[1] for n, g in GRIDS.items()})


def _lpbq() -> Any:
    """4-bit codes in blocks of 16 along axis 1: step = whole number 1..16 x the row's float32 scale, rounded once."""
    codes = formula.integers("lpbq.codes", (4, 64), -8, 7).astype(np.int8)
    blocks = formula.integers("lpbq.blocks", (4, 4), 1, 16).astype(np.int32)
    blocks[0, :2] = 1, 16
    codes[0, 0], codes[0, 16], codes[0, 17] = -8, -8, 7
    scale = ((formula.reals("lpbq.scale", (4,)) + np.float32(2)) / np.float32(300)).astype(np.float32)
    steps = (blocks.astype(np.float64) * scale.astype(np.float64)[:, None]).astype(np.float32)
    real = (codes.astype(np.float64) * steps.astype(np.float64).repeat(16, 1)).astype(np.float32)
    return _graph("lpbq", {"weight": ({"codes": codes, "block_scale": blocks, "scale": scale}, {"real": real})}, EQUAL)


def _requantize() -> Any:
    """From the activations' 16 bits to the cache's 8: the step that stands as a node of its own in every graph."""
    wide = np.unique(np.concatenate([np.array([0, 1, 29999, 30000, 30001, 30064, 30192, 65534, 65535]),
                                     formula.integers("requantize", (240,), 0, 65535)])).astype(np.uint16)
    narrow = np.array([code((int(c) - WIDE[1]) * Fraction(WIDE[0]), NARROW, 0, 255) for c in wide], np.uint8)
    calls = {"codes": ({"wide": wide}, {"narrow": narrow})}
    return _graph("requantize", calls, EXACT, {"wide": WIDE, "narrow": NARROW})


def _mask() -> Any:
    """Row r sees the cache's tokens and the new ones up to its own; 65535 allows, 0 (that is -50) forbids."""
    calls = {}
    for label, (past, first, rows) in MASK_CALLS.items():
        codes = np.zeros((1, 1, MASK_AR, MASK_CL), np.uint16)
        for r in range(first, first + rows):
            codes[0, 0, r, :past] = 65535
            codes[0, 0, r, MASK_CL - MASK_AR + first : MASK_CL - MASK_AR + r + 1] = 65535
        numbers = {k: np.array([v], np.int32) for k, v in (("past", past), ("first", first), ("rows", rows))}
        calls[label] = numbers, {"attention_mask": codes}
    return _graph("attention_mask", calls, EXACT, {"attention_mask": MASK})


def _cache() -> Any:
    """Three tokens, then one: keys [kv, 1, dim, slots], values [kv, 1, slots, dim], free slots hold the zero point."""
    fed: Arrays = {}
    key, value = (np.full((KV, 1, *s), CACHE_ZERO, np.uint8) for s in ((DIM, SLOTS), (SLOTS, DIM)))
    at = 0
    for label, count in (("chunk", 3), ("step", 1)):
        new_key = formula.integers(f"cache.key.{label}", (KV, 1, DIM, count), 0, 255).astype(np.uint8)
        new_value = formula.integers(f"cache.value.{label}", (KV, 1, count, DIM), 0, 255).astype(np.uint8)
        fed |= {f"past_key_0_out.{label}": new_key, f"past_value_0_out.{label}": new_value}
        key[..., at : at + count], value[:, :, at : at + count, :] = new_key, new_value
        at += count
    return _graph("cache", {"two_calls": (fed, {"past_key_0_in": key, "past_value_0_in": value})}, EXACT)


def _attention() -> Any:
    """4 query heads over 2 kv heads (0 0 1 1), 2 new rows behind 4 cached: row r sees 5 + r keys; scale 1/4."""
    shapes = {"query": (1, 4, 2, 8), "key": (1, 2, 6, 8), "value": (1, 2, 6, 8)}
    fed = {n: formula.reals(f"attention.{n}", s) * np.float32(4) for n, s in shapes.items()}
    out = np.zeros((1, 2, 4, 8), np.float32)
    for head in range(4):
        for row in range(2):
            seen = 5 + row
            scores = [mp.fsum(mp.mpf(float(a)) * float(b) for a, b in zip(
                fed["query"][0, head, row], fed["key"][0, head // 2, j], strict=True)) / 4 for j in range(seen)]
            weights = [mp.exp(s) for s in scores]
            for d in range(8):
                mixed = mp.fsum(w * float(fed["value"][0, head // 2, j, d]) for j, w in enumerate(weights))
                out[0, row, head, d] = float(mixed / mp.fsum(weights))
    return _graph("attention", {"cached_chunk": (fed, {"out": out})}, Tolerance(sqnr_db=110.0))


def _metrics() -> Any:
    """Logits of 8 tokens over 16 ids, and every figure that the gates read."""
    reference = formula.reals("metrics.reference", (8, 16)) * np.float32(8)
    actual = reference + formula.reals("metrics.noise", (8, 16)) / np.float32(4) + np.float32(0.5)
    targets = formula.integers("metrics.targets", (7,), 0, 15).astype(np.int32)
    a, b = ([[mp.mpf(float(v)) for v in row] for row in x] for x in (reference, actual))
    p, q = _log_softmax(a), _log_softmax(b)
    rows = range(8)
    made = {
        "sqnr_db": _db(a, b), "centred_sqnr_db": _db(_centred(a), _centred(b)),
        "worst_token_sqnr_db": min(_db(a[r : r + 1], b[r : r + 1]) for r in rows),
        "kl": mp.fsum(mp.exp(x) * (x - y) for r in rows for x, y in zip(p[r], q[r], strict=True)) / 8,
        "flips": mp.mpf(sum(a[r].index(max(a[r])) != b[r].index(max(b[r])) for r in rows)) / 8,
        "ppl_reference": mp.exp(-mp.fsum(p[r][t] for r, t in enumerate(targets)) / 7),
        "ppl": mp.exp(-mp.fsum(q[r][t] for r, t in enumerate(targets)) / 7)}
    fed = {"reference": reference, "actual": actual, "targets": targets}
    return _graph("metrics", {"logits": (fed, {k: np.array([float(v)]) for k, v in made.items()})},
                  Tolerance(max_abs=1e-11))


def _centred(rows: list[list[Any]]) -> list[list[Any]]:
    return [[v - mp.fsum(row) / len(row) for v in row] for row in rows]


def _log_softmax(rows: list[list[Any]]) -> list[list[Any]]:
    return [[v - mp.log(mp.fsum(mp.exp(w) for w in row)) for v in row] for row in rows]


def _db(a: list[list[Any]], b: list[list[Any]]) -> Any:
    signal = mp.fsum(x * x for row in a for x in row)
    noise = mp.fsum((x - y) ** 2 for ra, rb in zip(a, b, strict=True) for x, y in zip(ra, rb, strict=True))
    return 10 * mp.log10(signal / noise)
