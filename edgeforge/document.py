"""A YAML file as plain data, and where each of its values stands.

Less than YAML on purpose: one mapping of text keys in one document, numbers and booleans as YAML 1.2 spells
them (an unquoted `yes`, `010` or `2026-01-01` is text, not true, 8 or a date), no anchors, tags or merge keys.
So nothing expands, nothing runs, and what is written is what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edgeforge.errors import RecipeError

Key = tuple[str | int, ...]
"""a value's place: keys of mappings, indices of lists"""

_MOST_BYTES, _DEEPEST, _MOST_DIGITS = 1 << 18, 16, 30
_TAG = "tag:yaml.org,2002:"


class _Core(yaml.SafeLoader):
    """PyYAML with YAML 1.2's core schema in place of 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as PyYAML has it)


for _kind, _spelling, _first in (
        ("null", r"|~|null|Null|NULL", ["", "~", "n", "N"]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
         list("-+.0123456789"))):
    _Core.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_spelling})$"), _first)


@dataclass(frozen=True)
class Document:
    """data: what the file holds. lines: of every key and item, from 1. path: as it was given.

    All documents are equal: where a thing was written is no part of what it asks for.
    """

    path: Path = field(default=Path(), compare=False)
    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    lines: Mapping[Key, int] = field(default_factory=dict, compare=False)

    def where(self, key: Key) -> str:
        """file:line of key, or of the nearest thing around it that is written."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


def load(path: Path) -> Document:
    """Reads a YAML file.

    Raises:
        RecipeError: not there, not text, not YAML, more than a recipe can need; with the line where there is one.
    """
    text = _text(path)
    try:
        _refuse_strange(path, text)
        root = yaml.compose(text, _Core)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise RecipeError(f"{place}: not YAML: {error.problem or error.context}", _hint(text)) from None
    except yaml.YAMLError as error:  # the reader's own, about a single character
        line = text[:getattr(error, "position", 0)].count("\n") + 1
        raise RecipeError(f"{path}:{line}: a character that YAML does not allow",
                          "save the file as UTF-8 text") from None
    if not isinstance(root, yaml.MappingNode):
        held = "a list" if isinstance(root, yaml.SequenceNode) else "a single value" if root else "nothing"
        raise RecipeError(f"{path} holds {held}, not keys and values",
                          "a recipe begins with lines like `model: FOLDER`")
    reader = _Reader(path)
    data = reader.mapping(root, ())
    if reader.problems:
        raise RecipeError("\n".join(reader.problems))
    return Document(path, data, reader.lines)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise RecipeError(f"recipe {path}: {getattr(error, 'strerror', None) or error}",
                          "give the path of a recipe file") from error
    if len(raw) > _MOST_BYTES:
        raise RecipeError(f"{path} is larger than {_MOST_BYTES >> 10} KiB: not a recipe",
                          "give the path of a recipe file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[:error.start].count(b"\n") + 1
        raise RecipeError(f"{path}:{line}: not UTF-8 text", "save the file as UTF-8") from error


def _hint(text: str) -> str:
    return "indent with spaces: YAML allows no tabs" if "\t" in text else ""


def _refuse_strange(path: Path, text: str) -> None:
    """Looks at the parser's events, which cost nothing, before anything is built from them."""
    depth = documents = 0
    for event in yaml.parse(text, _Core):
        where = f"{path}:{event.start_mark.line + 1 if event.start_mark else 1}"
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise RecipeError(f"{where}: a second document begins (---)", "one recipe a file")
        if depth > _DEEPEST:
            raise RecipeError(f"{where}: nested more than {_DEEPEST} deep", "no key of a recipe is as deep as this")
        if (anchor := getattr(event, "anchor", None)) is not None:
            raise RecipeError(f"{where}: an anchor or alias ({anchor})", "write the value out at each place")
        if (tag := getattr(event, "tag", None)) is not None:
            raise RecipeError(f"{where}: a tag ({tag})", "take it away: a recipe holds plain values")


class _Reader:
    """Nodes to plain data; keeps lines and collects what is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Key, int] = {}
        self.problems: list[str] = []

    def mapping(self, node: yaml.MappingNode, place: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problem(key, "a key that is a list or a mapping")
                continue
            here = (*place, key.value)
            if key.value in found:
                self._problem(key, f"key {key.value!r} is given twice, first in line {self.lines[here]}")
                continue
            self.lines[here] = key.start_mark.line + 1
            found[key.value] = self._value(value, here)
        return found

    def _value(self, node: yaml.Node, place: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.lines[*place, index] = item.start_mark.line + 1
                items.append(self._value(item, (*place, index)))
            return items
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            if len(text) > _MOST_DIGITS:
                return self._problem(node, f"a number of {len(text)} digits")
            return int(text, 16 if text.startswith("0x") else 10)
        if kind == "float":
            return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1].isalpha() else text)
        if any("\ud800" <= c <= "\udfff" or c == "\0" for c in text):
            return self._problem(node, "text with a NUL or half a character in it")
        return text

    def _problem(self, node: yaml.Node, what: str) -> None:
        self.problems.append(f"{self.path}:{node.start_mark.line + 1}: {what}")
