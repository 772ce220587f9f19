"""coremltools 9.0 breaks from numpy 2.4 on: its extra says so, and nobody else is held back."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
BREAKS = "2.4.0"


def _takes(words: list[str], version: str) -> bool:
    wanted = [Requirement(word) for word in words]
    return all(r.specifier.contains(version) for r in wanted if r.name == "numpy")


def test_only_the_extras_with_coremltools_hold_numpy_back() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert _takes(project["dependencies"], BREAKS)
    for name, words in project["optional-dependencies"].items():
        held = any(Requirement(word).name == "coremltools" for word in words)
        assert _takes(words, BREAKS) != held, name


@pytest.mark.slow
def test_a_build_for_qualcomm_on_the_newer_numpy(checkpoint_folder: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
                    "--target", newer, "numpy>=2.4,<2.5"], check=True, timeout=300)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({
        "model": str(checkpoint_folder), "out": str(tmp_path / "out"), "gates": {"quantize_db": 25},
        "target": {"chip": "snapdragon-8-gen-3", "context": 96, "prefill": 32},
        "calibrate": {"windows": 4, "samples": 0, "tokens": 64}}), encoding="utf-8")
    code = ("import sys, numpy; print(numpy.__version__, flush=True); from edgeforge.cli import main; "
            "sys.argv = ['edgeforge', 'build', sys.argv[1]]; main()")
    path = os.pathsep.join([str(newer), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code, recipe], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2.4.")
    assert (tmp_path / "out" / "device").is_dir()
