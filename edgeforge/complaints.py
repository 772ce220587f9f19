"""What pydantic found wrong, said as a person would: file:line, key, what is wanted, what was given."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from edgeforge.document import Document, Key

_LONGEST = 60

_WANTED = {
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number", "float_type": "a number", "float_parsing": "a number",
    "finite_number": "a finite number", "string_type": "text", "path_type": "a path", "bool_type": "true or false",
    "bool_parsing": "true or false", "tuple_type": "a list", "list_type": "a list", "model_type": "keys and values",
    "model_attributes_type": "keys and values", "dict_type": "keys and values", "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge:g}", "greater_than": "more than {gt:g}", "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}", "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
}
"""pydantic's error type -> what the key wants, with the error's own context filled in"""

_NOT_A_SECTION = {"model_type", "model_attributes_type", "dict_type"}


def complaints(error: ValidationError, model: type[BaseModel], document: Document) -> list[str]:
    """One line a wrong value, in the order of the file; one, too, for a value that fits no member of a union."""
    found: dict[Key, list[ErrorDetails]] = {}
    for place, item in _without_unions(error, model, document):
        found.setdefault(place, []).append(item)
    missing_last = sorted(found, key=lambda place: (document.lines.get(place, 1 << 30), str(place)))
    return [f"{document.where(place)}: {_name(place)}: {_sentence(place, found[place], model)}"
            for place in missing_last]


def _name(place: Key) -> str:
    name = ".".join(map(str, place)) or "recipe"
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "..."


def _without_unions(error: ValidationError, model: type[BaseModel],
                    document: Document) -> Iterator[tuple[Key, ErrorDetails]]:
    """Errors with the keys they are about. Of a union's members only those speak that the value was meant for:
    sections for keys and values, else the others."""
    unions: dict[Key, dict[str, list[tuple[Key, ErrorDetails]]]] = {}
    for item in error.errors(include_url=False):
        place, union, member = _place(model, item["loc"])
        if union is None:
            yield place, item
        else:
            unions.setdefault(union, {}).setdefault(member, []).append((place, item))
    for union, members in unions.items():
        speaking = [m for m in members.values() if all(item["type"] not in _NOT_A_SECTION for _, item in m)]
        inside = [m for m in speaking if any(len(place) > len(union) for place, _ in m)]
        yield from min(inside, key=len) if inside else (pair for m in speaking or members.values() for pair in m)


def _sentence(place: Key, items: Sequence[ErrorDetails], model: type[BaseModel]) -> str:
    first = items[0]
    if first["type"] == "missing":
        return "missing"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(place[-1]), _keys(model, place[:-1]), 1)
        return "unknown key" + (f"; did you mean {near[0]!r}?" if near else "")
    if own := [item for item in items if item["type"] == "value_error"]:
        return str(own[0]["ctx"]["error"])
    wanted = " or ".join(dict.fromkeys(map(_wants, items)))
    if first["input"] is None:
        return f"nothing is written after the colon; it takes {wanted}"
    return f"takes {wanted} (got {_short(first['input'])})"


def _wants(item: ErrorDetails) -> str:
    pattern = _WANTED.get(item["type"])
    if item["type"] == "literal_error" and " or " not in item["ctx"]["expected"]:
        pattern = "{expected}"
    return pattern.format(**item.get("ctx", {})) if pattern else item["msg"][:1].lower() + item["msg"][1:]


def _short(value: Any) -> str:
    text = "keys and values" if isinstance(value, dict) else "a list" if isinstance(value, list) else (
        str(value).lower() if isinstance(value, bool) else repr(value))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _place(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[Key, Key | None, str]:
    """The key that loc means, and the outermost union on the way with the member that speaks."""
    kinds: tuple[Any, ...] = (model,)
    place: list[str | int] = []
    union: Key | None = None
    member = ""
    for step in loc:
        if len(kinds) > 1:  # pydantic's label of the member comes first
            if union is None:
                union, member = tuple(place), str(step)
            named = [k for k in kinds if getattr(k, "__name__", "?") in str(step)]
            kinds = (next(iter([*named, *filter(_is_section, kinds), *kinds])),)
            continue
        place.append(step)
        kinds = _inside(kinds[0], step)
    return tuple(place), union, member


def _inside(kind: Any, step: str | int) -> tuple[Any, ...]:
    """The kinds that a key of a section, or an item of a list, may have."""
    if _is_section(kind):
        field = kind.model_fields.get(str(step))
        return _members(field.annotation) if field is not None else (Any,)
    return _members(next(iter(get_args(kind)), Any)) if isinstance(step, int) else (Any,)


def _members(kind: Any) -> tuple[Any, ...]:
    """A union's members; None does not count, pydantic gives it no label."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(m for member in get_args(kind) if member is not types.NoneType for m in _members(member))
    return (kind,)


def _keys(model: type[BaseModel], place: Key) -> list[str]:
    """Every key that may stand at place."""
    kinds: tuple[Any, ...] = (model,)
    for step in place:
        kinds = tuple(inner for kind in kinds for inner in _inside(kind, step))
    return [key for section in filter(_is_section, kinds) for key in section.model_fields]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
