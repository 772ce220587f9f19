"""Damage, by seed: to trees of JSON or YAML, to text, and to bytes whose structure is known."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

_DEEP, _LONG = 50_000, 20_000
_DEEP_MARK = "\x02deep\x02"
"""stands for brackets nested _DEEP times, which json.dumps could not write"""

SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 256, 65536, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1,
    2**63, 2**64, 10**30, -(10**30), 10**400, 0.0, -0.0, 0.5, 1e-30, 1e30, 1e308, -1e308, float("nan"), float("inf"),
    float("-inf"), "", " ", "0", "1", "true", "null", "nan", ".", "..", "../../x", "/etc/passwd", "/dev/zero", "~",
    "a/b", "a b", "\x00", "\n", "é", "e\u0301", "\u202e", "\U0001f600", "\ud800", "x" * _LONG, "float32", "uint8",
    "object", "int4", "i4", "U9", "O", _DEEP_MARK, [], {}, [[]], [{}], {"": {}}, [None], [0] * 1000, [1, [2, [3]]],
    {"a": 1},
)


def tree(rng: Random, base: Any) -> Any:
    """A copy of a JSON tree with one to four things wrong in it."""
    made = [copy.deepcopy(base)]  # in a list, so that the root can be replaced as well
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        slots = list(_slots(made))
        holder, key = rng.choice(slots)
        rng.choice(_TREE)(rng, holder, key, slots)
    return made[0]


def _slots(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _slots(node[key])


def _replace(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    holder[key] = copy.deepcopy(rng.choice(SCALARS))


def _delete(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    del holder[key]
    if isinstance(holder, list) and not holder:
        holder.append({})


def _duplicate(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 1, 50)))]
    else:
        holder[f"{key}{rng.choice(('', ' ', '2', 'é'))}"] = holder[key]


def _rename(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    if isinstance(holder, dict):
        name = rng.choice((str(key).upper(), f"{key}s", "", "x" * 300, "\u200b" + str(key), "__class__"))
        holder[name] = holder.pop(key)


def _swap(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    other, place = rng.choice(slots)
    try:
        holder[key] = copy.deepcopy(other[place])
    except (KeyError, IndexError):  # an earlier mutation moved it
        holder[key] = None


def _wrap(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    for _ in range(rng.choice((1, 2, 30))):
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"x": holder[key]}


def _number(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    value = holder[key]
    if isinstance(value, (int, float)):
        holder[key] = rng.choice((-value, value + 1, value - 1, value * 1000, value * 10**12, str(value), float(value)
                                  if abs(value) < 1e300 else 0.0, value / 3 if abs(value) < 1e300 else 0.0, [value]))
    else:
        _replace(rng, holder, key, slots)


def _text(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    value = holder[key]
    if not isinstance(value, str):
        _replace(rng, holder, key, slots)
        return
    at = rng.randrange(len(value) + 1)
    mark = rng.choice("\x00 /\\:=%\u202eé")
    holder[key] = rng.choice((value[:at], value[at:], value[:at] + mark + value[at:], value * 2, value.upper(),
                              "../" + value, "/" + value))


def _extra(rng: Random, holder: Any, key: Any, slots: Sequence[tuple[Any, Any]]) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("extra", "", "format", "name", "x" * 100))] = copy.deepcopy(rng.choice(SCALARS))
    else:
        holder.append(copy.deepcopy(rng.choice(SCALARS)))


_TREE: tuple[Callable[[Random, Any, Any, Sequence[tuple[Any, Any]]], None], ...] = (
    _replace, _replace, _replace, _delete, _delete, _duplicate, _rename, _swap, _wrap, _number, _number, _text, _extra)


def json_bytes(rng: Random, base: Any) -> bytes:
    """The base as JSON text: its tree damaged, or (one time in four) the text."""
    if rng.random() < 0.25:
        return text(rng, json.dumps(base, indent=rng.choice((None, 1))))
    return dump(tree(rng, base))


def dump(made: Any) -> bytes:
    """JSON, with NaN and infinities as Python writes them, and the deep mark opened up."""
    written = json.dumps(made)
    return written.replace(json.dumps(_DEEP_MARK), "[" * _DEEP + "]" * _DEEP).encode()


def text(rng: Random, base: str) -> bytes:
    """Text cut, repeated, with lines gone or doubled, with brackets, tabs, marks or bytes that are no UTF-8."""
    lines = base.splitlines(keepends=True)
    line, at = rng.randrange(len(lines)), rng.randrange(len(base) + 1)
    made: str = rng.choice((
        lambda: base[:at], lambda: base[at:], lambda: base + base, lambda: "".join(lines[:line] + lines[line + 1 :]),
        lambda: "".join(lines[: line + 1] + lines[line:]), lambda: "\ufeff" + base, lambda: base.replace("\n", "\r\n"),
        lambda: base.replace(" ", "\t", 3), lambda: base[:at] + rng.choice("{}[]\",:&*!%@`|>\x00\x1b") + base[at:],
        lambda: base[:at] + "[" * _DEEP + base[at:], lambda: base[:at] + "9" * 5000 + base[at:], lambda: "",
    ))()
    raw = made.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        spot = rng.randrange(len(raw) + 1)
        raw = raw[:spot] + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00")) + raw[spot:]
    return raw


_INTS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def binary(rng: Random, base: bytes, boundaries: Sequence[int] = ()) -> bytes:
    """Bytes cut, flipped, overwritten with lengths that lie, moved; often at a boundary of their structure."""
    made = bytearray(base)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not made:
            break
        near = [b for b in boundaries if b < len(made)]
        at = rng.choice(near) if near and rng.random() < 0.6 else rng.randrange(len(made))
        size = rng.choice((1, 2, 4, 8, 32))
        match rng.randrange(9):
            case 0:
                del made[at:]
            case 1 | 2 | 3:
                made[at] ^= 1 << rng.randrange(8)
            case 4 | 5:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice((*_INTS, len(base), len(base) + 1, rng.getrandbits(64))) % (1 << 8 * width)
                made[at : at + width] = value.to_bytes(width, "little")
            case 6:
                del made[at : at + size]
            case 7:
                made[at:at] = made[at : at + size] * rng.choice((1, 1, 100))
            case _:
                made[at : at + size] = bytes(size)
    return bytes(made)


def safetensors(rng: Random, base: bytes) -> bytes:
    """A safetensors file with its header's JSON damaged, its length lying, or its bytes damaged."""
    size = struct.unpack("<Q", base[:8])[0]
    header, rest = base[8 : 8 + size], base[8 + size :]
    if rng.random() < 0.4:
        return binary(rng, base, (0, 4, 8, 9, 8 + size, 8 + size + 1, len(base) - 1))
    header = json_bytes(rng, json.loads(header))
    length = len(header) if rng.random() < 0.8 else rng.choice((*_INTS, len(header) + 1, max(0, len(header) - 1)))
    return struct.pack("<Q", length) + header + rest
