"""The vendor's own JSON schemas, read out of the installed libraries, and a validator for them.

libGenie.so and libQnnHtpNetRunExtensions.so carry draft-07 schemas as plain text. Reading them at run time
checks a config against the very version that will read it, without loading the library and without a copy
of the vendor's text in this repository. The validator knows the keywords those schemas use and refuses
others, so that a rule is never skipped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeforge.errors import CompilerError

Schema = Mapping[str, Any]
_MARK = re.compile(rb'"\$schema"\s*:\s*"http://json-schema.org/draft-07')
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_SILENT = {"$schema", "$id", "$comment", "title", "description", "definitions", "then", "else"}


def embedded_schemas(library: Path) -> dict[str, Schema]:
    """Schemas by $id ("" for one without), from a library's read-only data.

    Raises:
        CompilerError: the library holds none.
    """
    data, found = library.read_bytes(), dict[str, Schema]()
    for mark in _MARK.finditer(data):
        start, end = data.rfind(b"\0", 0, mark.start()) + 1, data.find(b"\0", mark.start())
        try:
            schema = json.loads(data[start:end])
        except ValueError:
            continue  # text that merely mentions a schema
        if isinstance(schema, dict):
            found[str(schema.get("$id", ""))] = schema
    if not found:
        raise CompilerError(
            f"{library.name} carries no JSON schema", "its version is not one that was checked here"
        )
    return found


def violations(instance: Any, name: str, store: Mapping[str, Schema], *, closed: bool = False) -> list[str]:
    """What is wrong with instance under the schema called name, as "path: what" lines.

    Args:
        closed: also report keys that an object schema does not list. For vendor files whose reader
            ignores unknown keys, a misspelt one would otherwise be lost.
    """
    return list(_Validator(store, closed).check(instance, store[name], name, "$"))


class _Validator:
    def __init__(self, store: Mapping[str, Schema], closed: bool) -> None:
        self._store, self._closed = store, closed
        self._rules: dict[str, Callable[[Any, Any, Schema, str, str], Iterator[str]]] = {
            "type": self._type,
            "properties": self._properties,
            "additionalProperties": self._additional,
            "items": self._items,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "not": self._not,
            "if": self._if,
            "contains": self._contains,
            "dependencies": self._dependencies,
        }

    def check(self, value: Any, schema: Any, base: str, path: str) -> Iterator[str]:
        """All violations; base is the $id that local references of this schema belong to."""
        if isinstance(schema, bool):
            if not schema:
                yield f"{path}: not allowed"
            return
        if "$ref" in schema:
            target, home = self._resolve(schema["$ref"], base)
            yield from self.check(value, target, home, path)
            return  # draft-07: siblings of $ref do not count
        for keyword, rule in schema.items():
            if keyword in self._rules:
                yield from self._rules[keyword](value, rule, schema, base, path)
            elif keyword in _PLAIN:
                if message := _PLAIN[keyword](value, rule):
                    yield f"{path}: {message}"
            elif keyword not in _SILENT:
                raise CompilerError(
                    f"schema {base or 'of the library'} uses {keyword!r}, which is not known here"
                )
        if (
            self._closed
            and isinstance(value, dict)
            and "properties" in schema
            and "additionalProperties" not in schema
        ):
            yield from self._additional(value, False, schema, base, path)

    def _resolve(self, reference: str, base: str) -> tuple[Any, str]:
        home, _, pointer = reference.partition("#")
        home = home or base
        target: Any = self._store[home]
        for key in filter(None, pointer.split("/")):
            target = target[key]
        return target, home

    def _fits(self, value: Any, schema: Any, base: str) -> bool:
        return next(self.check(value, schema, base, "$"), None) is None

    def _type(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        names = [rule] if isinstance(rule, str) else rule
        if not any(
            isinstance(value, _TYPES[n]) and (n == "boolean" or not isinstance(value, bool)) for n in names
        ):
            yield f"{path}: {value!r} is not of type {' or '.join(names)}"

    def _properties(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in rule.items():
                if key in value:
                    yield from self.check(value[key], inner, base, f"{path}.{key}")

    def _additional(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for key in value.keys() - schema.get("properties", {}).keys():
                if rule is False:
                    yield f"{path}.{key}: no such key"
                else:
                    yield from self.check(value[key], rule, base, f"{path}.{key}")

    def _items(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                inner = rule[index] if isinstance(rule, list) and index < len(rule) else rule
                if not isinstance(inner, list):
                    yield from self.check(item, inner, base, f"{path}[{index}]")

    def _all_of(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        for inner in rule:
            yield from self.check(value, inner, base, path)

    def _any_of(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        tries = [list(self.check(value, inner, base, path)) for inner in rule]
        if all(tries):
            yield from min(tries, key=len)

    def _one_of(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        tries = [list(self.check(value, inner, base, path)) for inner in rule]
        if all(tries):
            yield from min(tries, key=len)
        elif sum(not t for t in tries) > 1:
            yield f"{path}: fits more than one alternative"

    def _not(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if self._fits(value, rule, base):
            yield f"{path}: a combination that is not allowed (not {json.dumps(rule)[:120]})"

    def _if(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        branch = "then" if self._fits(value, rule, base) else "else"
        if branch in schema:
            yield from self.check(value, schema[branch], base, path)

    def _contains(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if isinstance(value, list) and not any(self._fits(item, rule, base) for item in value):
            yield f"{path}: lacks an item of the required kind"

    def _dependencies(self, value: Any, rule: Any, schema: Schema, base: str, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            return
        for key, needs in rule.items():
            if key not in value:
                continue
            if isinstance(needs, list):
                for other in needs:
                    if other not in value:
                        yield f"{path}: {key} needs {other}"
            else:
                yield from self.check(value, needs, base, path)


def _number(test: Callable[[float, float], bool], text: str) -> Callable[[Any, Any], str]:
    def rule(value: Any, limit: Any) -> str:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if not numeric or test(value, limit) else f"{value} {text} {limit}"

    return rule


def _length(
    kind: type[list[Any]] | type[str], test: Callable[[int, int], bool], text: str
) -> Callable[[Any, Any], str]:
    def rule(value: Any, limit: Any) -> str:
        return (
            ""
            if not isinstance(value, kind) or test(len(value), limit)
            else f"has {len(value)}, {text} {limit}"
        )

    return rule


def _required(value: Any, names: Any) -> str:
    missing = [n for n in names if n not in value] if isinstance(value, dict) else []
    return f"{', '.join(missing)} missing" if missing else ""


_PLAIN: dict[str, Callable[[Any, Any], str]] = {
    "required": _required,
    "const": lambda value, rule: "" if value == rule else f"{value!r} is not {rule!r}",
    "enum": lambda value, rule: "" if value in rule else f"{value!r} is none of {rule}",
    "minimum": _number(lambda v, x: v >= x, "is below"),
    "maximum": _number(lambda v, x: v <= x, "is above"),
    "exclusiveMinimum": _number(lambda v, x: v > x, "is not above"),
    "exclusiveMaximum": _number(lambda v, x: v < x, "is not below"),
    "multipleOf": _number(lambda v, x: v % x == 0, "is no multiple of"),
    "minItems": _length(list, lambda n, x: n >= x, "fewer than"),
    "maxItems": _length(list, lambda n, x: n <= x, "more than"),
    "minLength": _length(str, lambda n, x: n >= x, "shorter than"),
    "uniqueItems": lambda value, rule: (
        ""
        if not rule
        or not isinstance(value, list)
        or len({json.dumps(v, sort_keys=True) for v in value}) == len(value)
        else "has an item twice"
    ),
}
