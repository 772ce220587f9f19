"""A recipe written out with every default, and what its keys mean: YAML that reads back as the same recipe."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel

from edgeforge.recipe import Recipe


def as_yaml(recipe: Recipe) -> str:
    """Every key explicit, each with its description; paths absolute. Values are JSON, which YAML includes. A key that
    would say nothing about this model on this chip is a comment."""
    return "\n".join(_lines(recipe, "", "", set(recipe.silent))) + "\n"


def _lines(section: BaseModel, name: str, indent: str, silent: Collection[tuple[str, str]]) -> Iterator[str]:
    plain: dict[str, Any] = section.model_dump(mode="json")
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        inner = isinstance(value, BaseModel)
        said = (type(value).__doc__ if inner else field.description) or ""
        yield from (f"{indent}# {line.strip()}" for line in said.split("\n") if line.strip())
        if plain[key] is None or (name, key) in silent:
            yield f"{indent}# {key}:"
        elif inner:
            spoken = [k for k in type(value).model_fields if (key, k) not in silent]
            yield f"{indent}{key}:" if spoken else f"{indent}# {key}:"
            yield from _lines(value, key, indent + "  ", silent)
        else:
            yield f"{indent}{key}: {_value(plain[key])}"


def _value(plain: Any) -> str:
    """JSON, but for characters that YAML wants escaped, and has its own escapes for."""
    text = json.dumps(plain, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
