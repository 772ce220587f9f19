"""What code a stage runs is read off the sources."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeforge import closure
from edgeforge.stages.plan import STAGES


@pytest.mark.parametrize("stage", [s.name for s in STAGES])
def test_whatever_a_stage_module_really_imports_is_in_its_closure(stage: str) -> None:
    code = f"import sys, edgeforge.stages.{stage}; print(*[m for m in sys.modules if m.startswith('edgeforge')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= set(closure.modules([f"edgeforge.stages.{stage}"]))


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
