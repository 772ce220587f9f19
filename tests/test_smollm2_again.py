"""The real model twice: the second build is made from the first one's lock, in another process and another folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from builds import cli, contents

ROOT = Path(__file__).parent.parent


@pytest.mark.nightly
def test_smollm2_comes_out_the_same_twice(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "recipes" / "smollm2-135m-qnn.yaml").read_text(encoding="utf-8"))
    raw["model"] = str(ROOT / "models" / "smollm2-135m-instruct")
    bundles = []
    for name in ("first", "second"):
        raw["out"] = str(tmp_path / name / "smollm2")
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(raw), encoding="utf-8")
        locked = ["--lock", bundles[0]] if bundles else []
        done = cli("build", path, *locked, timeout=3600)
        assert done.returncode == 0, done.stderr
        bundles.append(Path(raw["out"]))
    firm = [{n: d for n, d in contents(b).items() if not n.startswith(("device/", "x86/"))} for b in bundles]
    assert firm[0] == firm[1]
