"""recipe show and recipe schema: what they print is what the loader takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeforge import document, recipe, show, targets

SHIPPED = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))
KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "object": dict, "array": list, "null": type(None),
    "boolean": bool}


def _cli(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edgeforge", *map(str, words)], capture_output=True, text=True,
                          timeout=60, check=False)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_what_is_shown_is_the_same_recipe(path: Path, tmp_path: Path) -> None:
    done = _cli("recipe", "show", path)
    (tmp_path / "shown.yaml").write_text(done.stdout, encoding="utf-8")
    assert recipe.load(tmp_path / "shown.yaml") == recipe.load(path)
    assert "# Bits of the KV cache. Its codes are unsigned" in done.stdout
    as_json = json.loads(_cli("recipe", "show", path, "--json").stdout)
    assert recipe.Recipe.model_validate(as_json) == recipe.load(path)


@given(st.fixed_dictionaries({
    "model": st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1)
    .filter(lambda t: bool(t.strip())).map("/m/".__add__),
    "out": st.just("/o"), "target": st.fixed_dictionaries({
        "chip": st.sampled_from(sorted(targets.CHIPS)), "context": st.integers(300, 32768)}),
    "gates": st.fixed_dictionaries({"quantize_kl": st.floats(0, exclude_min=True, allow_infinity=False)}),
    "quantize": st.fixed_dictionaries({
        "transforms": st.lists(st.sampled_from(["rotate", "scale_channels"]), unique=True)})}))
@settings(max_examples=60)
def test_any_recipe_survives_being_shown(tmp_path_factory: pytest.TempPathFactory, raw: dict[str, Any]) -> None:
    made = recipe.Recipe.model_validate(raw)
    path = tmp_path_factory.mktemp("shown") / "r.yaml"
    path.write_text(show.as_yaml(made), encoding="utf-8", newline="")
    assert recipe.Recipe.model_validate_json(json.dumps(document.load(path).data), strict=True) == made


def _breaches(value: Any, rule: dict[str, Any], root: dict[str, Any], where: str = "") -> list[str]:
    """The few words of JSON schema that ours uses; an unknown word fails."""
    if "$ref" in rule:
        rule = root["$defs"][rule["$ref"].rpartition("/")[2]] | {k: v for k, v in rule.items() if k != "$ref"}
    if options := rule.get("anyOf") or rule.get("oneOf"):
        found = [_breaches(value, option, root, where) for option in options]
        return [] if [] in found else found[0]
    wrong = []
    if "type" in rule and (not isinstance(value, KINDS[rule["type"]])
                           or isinstance(value, bool) != (rule["type"] == "boolean")):
        return [f"{where}: {rule['type']}"]
    tests = {"enum": lambda v, e: v in e, "const": lambda v, e: v == e, "minimum": lambda v, e: v >= e,
             "maximum": lambda v, e: v <= e, "exclusiveMinimum": lambda v, e: v > e}
    wrong += [f"{where}: {word}" for word, test in tests.items() if word in rule and not test(value, rule[word])]
    for key in rule.get("required", []):
        wrong += [f"{where}.{key}: required"] if key not in value else []
    if rule.get("type") == "object":
        others = rule["additionalProperties"]
        assert others is False or "properties" not in rule, where
        for key, inner in value.items():
            known = rule.get("properties", {}).get(key, others or None)
            wrong += [f"{where}.{key}: unknown"] if known is None else _breaches(inner, known, root, f"{where}.{key}")
    for item in value if rule.get("type") == "array" else []:
        wrong += _breaches(item, rule["items"], root, f"{where}[]")
    known_words = {*tests, "type", "required", "properties", "additionalProperties", "items", "title", "description",
                   "default", "format", "$defs", "$schema"}
    assert set(rule) <= known_words, set(rule) - known_words
    return wrong


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_the_schema_takes_the_shipped_recipes(path: Path) -> None:
    schema = recipe.schema()
    assert not _breaches(document.load(path).data, schema, schema)
    assert not _breaches(json.loads(_cli("recipe", "show", path, "--json").stdout), schema, schema)


@pytest.mark.parametrize(("text", "wrong"), [
    ("target: {chip: nothing}", ["target.chip: enum"]), ("quantize: {weights: 5}", ["quantize.weights: enum"]),
    ("target: {chip: snapdragon-888, context: 1}", ["target.context: minimum"]),
    ("compile: {timeout_s: 0}", ["compile.timeout_s: exclusiveMinimum"]), ("gatez: {}", ["gatez: unknown"]),
    ("calibrate: {windows: x}", ["calibrate.windows: integer"]), ("calibrate: {text: 5}", ["calibrate.text: string"]),
])
def test_the_schema_refuses_what_the_loader_refuses(tmp_path: Path, text: str, wrong: list[str]) -> None:
    chip = "" if text.startswith("target") else "target: {chip: snapdragon-888}\n"
    path = tmp_path / "r.yaml"
    path.write_text(f"model: m\nout: o\n{chip}{text}\n")
    schema = recipe.schema()
    assert [w.removeprefix(".") for w in _breaches(document.load(path).data, schema, schema)] == wrong
    with pytest.raises(recipe.RecipeError):
        recipe.load(path)


def test_every_key_is_described() -> None:
    printed = json.loads(_cli("recipe", "schema").stdout)
    sections = [printed, *printed["$defs"].values()]
    for section in sections:
        assert section["description"], section["title"]
        for key, rule in section["properties"].items():
            assert rule.get("description") or "$ref" in rule, key
    assert not re.search(r"\bpydantic\b|function-", json.dumps(printed))
