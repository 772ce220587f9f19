"""A build of a plain graph, traced: what really runs in a stage is in the stage's key."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeforge import closure, keys
from edgeforge.stages.plan import GRAPH_STAGES

pytestmark = pytest.mark.slow

RECIPES = {"edgeforge.recipe", "edgeforge.sections", "edgeforge.errors"}
"""see keys._KNOWN_OTHERWISE"""
AROUND = {"edgeforge.pipeline", "edgeforge.stages.plan", "edgeforge.interrupt"}
"""they start a stage, hear of its steps, and stop it there on Ctrl-C"""


def test_what_runs_in_a_stage_is_in_its_closure_and_what_it_calls_in_its_tools(copied_cnn: Path) -> None:
    shutil.rmtree(copied_cnn.parent / "out")
    script = Path(__file__).with_name("traced_build.py")
    done = subprocess.run([sys.executable, script, copied_cnn], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {s.name for s in GRAPH_STAGES}
    tools: set[str] = {"edgeforge", "edgeforge-runtime", "psutil", "filelock", "pydantic", "--main--"}
    code: set[str] = RECIPES | AROUND
    for stage in GRAPH_STAGES:  # each reads, through those between, everything that was made before it
        tools |= set(keys.versions(stage, "qnn"))
        code |= set(closure.modules(keys.roots(stage, "qnn")))
        called = {{"google": "protobuf"}.get(name, name.replace("_", "-"))
                  for name in set(found[stage.name]["called"]) - sys.stdlib_module_names}
        assert called - tools == set(), stage.name
        assert "numpy" in called or stage.name == "bundle"
        assert set(found[stage.name]["modules"]) - code == set(), stage.name
        assert stage.module in found[stage.name]["modules"]
