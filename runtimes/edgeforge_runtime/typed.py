"""JSON that comes from elsewhere: read without surprises, and made into dataclasses key by key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_SHOWN = 80


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read. ValueError: not UTF-8, not JSON, or nested deeper than anything of ours.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shown(value: Any) -> str:
    """A value for a message, however long it is."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def build(cls: Callable[..., T], raw: Any, **made: Any) -> T:
    """cls (a dataclass) from a JSON object: every key known, none missing, each value of the declared type.

    Args:
        made: fields that the caller has made itself out of their keys.

    Raises:
        ValueError: names the key and shows what it holds.
    """
    name: str = cls.__name__
    if not isinstance(raw, dict):
        raise ValueError(f"{shown(raw)} stands where a {name} should")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(raw.keys() - known.keys()):
        raise ValueError(f"{name} has no key {shown(unknown[0])}")
    values = dict(made)
    for key in known.keys() - made.keys():
        field = known[key]
        if key in raw:
            values[key] = _value(f"{name}.{key}", str(field.type), raw[key])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name} lacks {key}")
    return cls(**values)


def objects(raw: Any, what: str) -> list[Any]:
    """A JSON list; ValueError names what it should be a list of."""
    if not isinstance(raw, list):
        raise ValueError(f"{shown(raw)} is no list of {what}")
    return raw


def _value(where: str, kind: str, value: Any) -> Any:
    if value is None and kind.endswith(" | None"):
        return None
    kind = kind.removesuffix(" | None")
    if not _KINDS[kind](value):
        raise ValueError(f"{where} is {shown(value)}, not {kind}")
    return tuple(value) if kind == "tuple[int, ...]" else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_float(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda v: isinstance(v, str),
    "int": _is_int,
    "float": _is_float,
    "tuple[int, ...]": lambda v: isinstance(v, (list, tuple)) and all(map(_is_int, v)),
    "dict[str, str]": lambda v: isinstance(v, dict) and all(isinstance(x, str) for x in v.values()),
}
