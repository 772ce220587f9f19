"""The draft-07 validator, keyword by keyword, and the schemas of the installed libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeforge.backends.qnn import wheel as wheels
from edgeforge.backends.qnn.schemas import embedded_schemas, violations
from edgeforge.errors import CompilerError


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, 3, True),
        ({"type": "integer"}, -1, 3.5),
        ({"type": ["integer", "array"]}, [1], "x"),
        ({"type": "number"}, 3, "3"),
        ({"type": "boolean"}, False, 0),
        ({"const": 1}, 1, 2),
        ({"enum": ["a", ""]}, "", "b"),
        ({"minimum": 0, "maximum": 9}, 9, 10),
        ({"exclusiveMinimum": 0}, 0.1, 0),
        ({"exclusiveMaximum": 5}, 4, 5),
        ({"multipleOf": 4}, 8, 6),
        ({"minItems": 1, "maxItems": 2}, [1], []),
        ({"minLength": 1}, "a", ""),
        ({"uniqueItems": True}, [1, 2], [1, 1]),
        ({"items": {"type": "string"}}, ["a"], ["a", 1]),
        ({"items": [{"const": 1}, {"const": 2}]}, [1, 2], [1, 3]),
        ({"required": ["a"]}, {"a": 1}, {}),
        ({"properties": {"a": {"const": 1}}}, {"b": 2}, {"a": 2}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"a": 1, "b": 1}),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"b": "x"}, {"b": 1}),
        ({"properties": {"a": False}}, {}, {"a": 1}),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 2, 3),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, 2, 3),
        ({"oneOf": [{"minimum": 5}, {"maximum": 1}]}, 6, 3),
        ({"oneOf": [{"minimum": 1}, {"minimum": 5}]}, 3, 6),
        ({"not": {"required": ["a"]}}, {}, {"a": 1}),
        (
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
            {"c": 1},
            {"a": 1},
        ),
        ({"contains": {"const": 1}}, [2, 1], [2]),
        ({"dependencies": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"dependencies": {"a": {"required": ["c"]}}}, {"a": 1, "c": 1}, {"a": 1}),
        ({"$ref": "#/definitions/x", "definitions": {"x": {"const": 1}}}, 1, 2),
        ({"$ref": "other#/definitions/x"}, "far", "near"),
    ],
)
def test_keywords(schema: dict[str, Any], good: Any, bad: Any) -> None:
    store = {"s": schema, "other": {"definitions": {"x": {"$ref": "#/definitions/y"}, "y": {"const": "far"}}}}
    assert violations(good, "s", store) == []
    assert violations(bad, "s", store)


def test_violations_say_where() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert violations({"a": [1, "x"]}, "s", {"s": schema}) == ["$.a[1]: 'x' is not of type integer"]


def test_closed_reports_keys_that_the_schema_does_not_list() -> None:
    store = {"s": {"properties": {"a": {"properties": {"b": {}}}}}}
    assert violations({"a": {"c": 1}}, "s", store) == []
    assert violations({"a": {"c": 1}}, "s", store, closed=True) == ["$.a.c: no such key"]


def test_unknown_keywords_are_refused_not_skipped() -> None:
    with pytest.raises(CompilerError, match="patternProperties"):
        violations({}, "s", {"s": {"patternProperties": {}}})


def test_installed_libraries_carry_their_schemas(wheel: None, tmp_path: Path) -> None:
    found = embedded_schemas(wheels.find().library(wheels.GENIE))
    assert "urn:genie:schema:dialog" in found
    assert len(found) >= 30
    empty = tmp_path / "empty.so"
    empty.write_bytes(b"\0no schema here\0")
    with pytest.raises(CompilerError, match="carries no JSON schema"):
        embedded_schemas(empty)
