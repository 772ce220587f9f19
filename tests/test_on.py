"""--on takes what the manifest holds, and what is to be said of a target or a chip comes from its backend."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from edgeforge_runtime.manifest import Manifest
from tiny_build import Built

import edgeforge
from edgeforge import backends, targets
from edgeforge.cli import _guarded, app
from edgeforge.cli.on import caution
from edgeforge.errors import RecipeError
from edgeforge.vectors import make

VENDORS = re.compile(r"qualcomm|hexagon|snapdragon|vtcm|\bhtp\b|nvidia|tensorrt|coreml", re.IGNORECASE)


def command(*words: object) -> int:
    return _guarded(lambda: app([str(w) for w in words], standalone_mode=False))


@pytest.fixture
def renamed(built: Built, tmp_path: Path) -> Path:
    """The bundle with a target of a name that no code here knows."""
    bundle = tmp_path / "bundle"
    shutil.copytree(built.bundle, bundle, ignore=shutil.ignore_patterns("device", "x86", "stage.json"))
    manifest = Manifest.load(bundle)
    dataclasses.replace(manifest, targets={"other": manifest.targets["cpu"]}).save(bundle)
    return bundle


def test_a_target_of_any_name_runs(built: Built, renamed: Path, tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", renamed, "hi", "--on", "other", "--max-tokens", 2) == 0
    make.make(built.bundle, tmp_path / "set")
    assert command("vectors", "check", tmp_path / "set", renamed, "--on", "other") == 0


@pytest.mark.parametrize("words", [("run", "BUNDLE", "hi"), ("vectors", "check", "BUNDLE", "BUNDLE")])
def test_an_unknown_one_is_a_usage_error_that_lists_them(
        renamed: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    given = [renamed if w == "BUNDLE" else w for w in words]
    assert command(*given, "--on", "phone") == 2
    err = capsys.readouterr().err
    assert "--on phone" in err
    assert "it has other" in err


@pytest.mark.parametrize("words", [("run", "BUNDLE", "hi"), ("selfcheck", "BUNDLE")])
def test_one_that_only_its_device_runs_says_where(renamed: Path, capsys: pytest.CaptureFixture[str],
                                                  words: tuple[str, ...]) -> None:
    manifest = Manifest.load(renamed)
    far = dataclasses.replace(manifest.targets["other"], executor="coreml")
    dataclasses.replace(manifest, targets={"far": far}).save(renamed)
    assert command(*(renamed if w == "BUNDLE" else w for w in words), "--on", "far") == 2
    assert "--on far: it runs on Apple's devices alone: device/verify_on_mac.py" in " ".join(
        capsys.readouterr().err.split())


def test_the_emulator_is_said_to_be_none_of_a_device(built: Built) -> None:
    assert "emulator on this CPU, not a device" in caution(built.bundle, "htp")
    assert caution(built.bundle, "cpu") == ""
    with pytest.raises(RecipeError, match="no such target"):
        caution(built.bundle, "phone")


def test_every_chip_has_a_card() -> None:
    for chip in targets.SNAPDRAGONS.values():
        card = backends.backend(chip.backend).card(chip)
        assert str(chip.soc_model) in card.line
        assert card.facts["vtcm_mb"] == chip.vtcm_mb


def test_commands_name_no_vendor() -> None:
    home = Path(edgeforge.__file__).parent
    files = [*(home / "cli").glob("*.py"), home / "check.py", home / "vectors" / "make.py"]
    found = {f"{p.name}: {word}" for p in files for word in VENDORS.findall(p.read_text(encoding="utf-8"))}
    assert not found
