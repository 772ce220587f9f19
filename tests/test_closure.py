"""What code and what tools a stage runs is read off the sources, and compared with what really runs."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edgeforge import closure, keys
from edgeforge.stages.plan import GRAPH_STAGES, STAGES, Stage

QNN = "qnn"
SILENT = {"psutil", "filelock", "httpx2", "huggingface-hub"}
"""they watch, lock, and fetch what is hashed afterwards: no byte of an artifact is theirs"""
LANGUAGE = {"torch", "transformers", "tokenizers", "safetensors", "jinja2", "gguf"}
"""imported by what plain graphs share with language models; test_plain_traced sees that no plain stage calls them"""
ALL = [*STAGES, *GRAPH_STAGES]


def test_whatever_a_stage_module_really_imports_is_in_its_closure() -> None:
    code = ("import importlib, json, sys\nfound = {}\nfor module in sys.argv[1:]:\n"
            "    for name in [n for n in sys.modules if n.startswith('edgeforge')]:\n        del sys.modules[name]\n"
            "    importlib.import_module(module)\n"
            "    found[module] = [n for n in sys.modules if n.startswith('edgeforge')]\n"
            "print(json.dumps(found))")
    done = subprocess.run([sys.executable, "-c", code, *(s.module for s in ALL)], capture_output=True, text=True,
                          check=True)
    for module, names in json.loads(done.stdout).items():
        assert module in names
        assert set(names) - set(closure.modules([module])) == set(), module


@pytest.mark.parametrize("stage", ALL, ids=lambda s: s.module)
def test_every_library_that_a_stages_code_imports_is_in_its_key_or_in_that_of_what_it_reads(stage: Stage) -> None:
    found = closure.modules(keys.roots(stage, QNN))
    wanted = {_distribution(name) for path in found.values() for name in _imports(ast.parse(path.read_bytes()))}
    plan = GRAPH_STAGES if stage in GRAPH_STAGES else STAGES
    known = set(keys.versions(stage, QNN)).union(*(keys.versions(s, QNN) for s in _sources(stage, plan)))
    known |= SILENT | {"pydantic", "pydantic-core", "pyyaml"}  # these read the recipe, whose values are in the key
    known |= LANGUAGE if plan is GRAPH_STAGES else set()
    known |= set() if stage.vendor else {"onnxruntime-qnn"}  # of the runtime's accelerator, which only vendors open
    assert wanted - known == set()


def _sources(stage: Stage, plan: tuple[Stage, ...]) -> Iterator[Stage]:
    for need in (s for s in plan if s.name in stage.needs):
        yield need
        yield from _sources(need, plan)


def _imports(node: ast.AST) -> Iterator[str]:
    """Top names of what a module imports from elsewhere; what only a type checker sees does not count."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module.split(".")[0]
    typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if typing else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
        yield from _imports(child)


def _distribution(name: str) -> str:
    if name in sys.stdlib_module_names or name in ("edgeforge", "edgeforge_runtime"):
        return "edgeforge-runtime"
    found = {"google": ["protobuf"]}.get(name) or _distributions().get(name, [name])
    return min(found, key=len).lower().replace("_", "-")


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def test_imports_inside_functions_relative_ones_and_child_processes_count() -> None:
    found = closure.modules(["edgeforge.backends.qnn.backend"])
    assert "edgeforge.backends.qnn.worker" in found  # started as `python -m`
    assert "edgeforge_runtime.executors.htp_worker" in closure.modules(["edgeforge_runtime.executors"])


def test_the_type_checkers_imports_do_not_count() -> None:
    assert "edgeforge.recipe" not in closure.modules(["edgeforge.build"])


def test_what_is_left_out_leaves_out_what_only_it_imports() -> None:
    whole = closure.modules(["edgeforge.pipeline"])
    less = closure.modules(["edgeforge.pipeline"], frozenset({"edgeforge.lock"}))
    assert "edgeforge.lock" in whole
    assert set(less) < set(whole)


def test_a_digest_follows_names_and_contents() -> None:
    assert closure.digest(["edgeforge.metrics"]) == closure.digest(["edgeforge.metrics"])
    assert closure.digest(["edgeforge.metrics"]) != closure.digest(["edgeforge.gates"])
