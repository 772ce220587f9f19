"""edgeforge doctor: a whole machine, a machine with something missing, and what failures mean."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny_build import Built
from typer.testing import CliRunner

from edgeforge import cache, cli, doctor, targets
from edgeforge.backends.qnn import compiler, wheel
from edgeforge.errors import EdgeForgeError, RecipeError

THREADS = {
    # What people posted -> the row that has to come first.
    "Could not create context from binary for context index = 0 : err 5000": "binary newer or for another chip",
    "Could not create context from binary for context index = 0 : err 5005": "binary refused",
    "Can't create context from binary. Error 1002.": "no room in a process domain",
    "Failed to finalize QNN graph. Error code: 1002": "graph not finished",
    "QnnDsp <E> Failed to create context from binary with err 0x3ea": "no room in a process domain",
    "DspTransport.openSession qnn_open failed, 0x80000416": "skel not found",
    "Error 0x80000416: open_dev (-1) failed for domain 3": "skel not found",
    "<E> Transport layer setup failed: 14001": "skel not found",
    '[ERROR] "Failed to create device: 1008"': "skel not found",
    "<E> Unable to load Remote symbols 4000": "skel not found",
    "[ERROR] memRegister ERROR(8002)": "buffer not registered",
    "<E> Stub lib id mismatch: expected (v2.36.0), detected (v2.34.0)": "stub and library differ",
    "Unknown QNN BinaryInfo version 3.": "binary info version",
    "graph requires estimated allocation of 2347229 KB, limit is 2097152 KB": "graph too large",
    "Failed to interpret QNN context binary. Error code 30010.": "damaged binary",
}


@pytest.fixture(scope="module")
def health() -> doctor.Health:
    return doctor.examine(Path("/"))


def test_a_whole_machine(health: doctor.Health) -> None:
    found = {t.name: t for t in health.tools}
    for name in ("python", "torch", "transformers", "onnx", "onnxruntime", "onnxruntime-qnn", "Genie"):
        assert found[name].version, name
    assert found["onnxruntime-qnn"].version == "2.7.0"
    assert "QAIRT 2.51.0" in found["onnxruntime-qnn"].detail
    assert {"tensorrt-rtx-cu12", "coremltools", "qai-hub"} <= set(found)
    assert set(health.chips) == set(targets.CHIPS)
    for able in (health.chips[name] for name in targets.SNAPDRAGONS):
        assert able.compile == able.emulate == able.inspect == ""
        assert "no phone" in able.run
    assert [p.problem for p in health.proofs] == [""] * len(health.proofs)
    assert any("QAIRT build v2.51.0." in p.detail for p in health.proofs)
    assert health.machine.cores > 0
    assert health.machine.ram > health.machine.ram_free > 0
    assert json.loads(json.dumps(asdict(health)))


def test_a_missing_wheel_is_a_problem_with_its_command(tmp_path: Path) -> None:
    """In a process of its own, where the package cannot be found."""
    code = ("import importlib.util, json, sys\nreal = importlib.util.find_spec\n"
            "importlib.util.find_spec = lambda n, *a: None if n == 'onnxruntime_qnn' else real(n, *a)\n"
            "from edgeforge.cli import main; sys.argv = ['edgeforge', 'doctor', *sys.argv[1:]]; main()")
    for flags in ([], ["--json"]):
        run = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=False,
                             timeout=120)
        assert run.returncode == 1, run.stderr
        assert "nothing can be compiled for Snapdragon chips" in run.stdout
        assert "pip install 'edgeforge-toolchain[qnn]'" in run.stdout
    health = json.loads(run.stdout)
    assert all("not installed" in health["chips"][name]["compile"] for name in targets.SNAPDRAGONS)
    assert not [p for p in health["proofs"] if "snapdragon" in p["name"]]


def test_a_truncated_library_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / wheel.PACKAGE
    package.mkdir()
    for path in wheel.find().folder.iterdir():
        if path.is_file() and path.name != wheel.HTP:
            (package / path.name).symlink_to(path)
    (package / wheel.HTP).write_bytes((wheel.find().folder / wheel.HTP).read_bytes()[:5000])
    monkeypatch.syspath_prepend(tmp_path)
    health = doctor.examine(tmp_path)
    (problem,) = [p for p in health.problems if "truncated" in p]
    assert health.problems[problem].startswith("pip install --force-reinstall --no-deps onnxruntime-qnn==2.7.0")
    assert all("truncated" in health.chips[name].compile for name in targets.SNAPDRAGONS)


def test_a_compiler_that_dies_is_found_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "WORKER", (sys.executable, "-c", "import os; os.abort()"))
    health = doctor.examine(Path("/"))
    assert [p for p in health.problems if "was killed by SIGABRT" in p]


def test_packages_that_are_missing_or_old_come_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=99", "no-such-package>=1", "onnx>=1", 'pytest>=999; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    problems = doctor.examine(Path("/")).problems
    (old,) = [p for p in problems if p.startswith("numpy")]
    assert ">=99 is needed" in old
    assert problems[old] == 'pip install "numpy>=99"'
    assert problems["no-such-package is not installed"] == 'pip install "no-such-package>=1"'
    assert not [p for p in problems if p.startswith(("onnx ", "pytest"))]


def test_little_memory_and_disk_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    small = doctor.Machine("", "", 1, (), 4 << 30, 1 << 30, 1 << 30)
    monkeypatch.setattr(doctor, "_machine", lambda folder: small)
    problems = list(doctor.examine(Path("/")).problems)
    assert any(p.startswith("4.0 GiB of memory") for p in problems)
    assert any(p.startswith("1.0 GiB of disk") for p in problems)


@pytest.mark.parametrize(("line", "name"), THREADS.items())
def test_lines_that_people_posted(line: str, name: str) -> None:
    assert doctor.explain(line)[0].name == name


@pytest.mark.parametrize(("code", "name"), [
    ("5000", "binary newer or for another chip"), ("1002", "no room in a process domain"), ("14001", "skel not found"),
    ("0x80000416", "skel not found"), ("8002", "buffer not registered"), ("5005", "binary refused"),
    ("4000", "skel not found"), ("1000", "shared weights on x86"), ("3110", "node not supported"),
])
def test_codes(code: str, name: str) -> None:
    assert doctor.explain(code)[0].name == name


def test_a_log_a_failed_folder_and_nothing_known(tmp_path: Path) -> None:
    log = tmp_path / "phone.log"
    log.write_bytes(b"\xff\xfe noise\n" * 10 + b"QnnDsp <E> Failed to load skel, error: 4000\n")
    assert [f.name for f in doctor.explain(str(log))] == ["skel not found"]
    assert [f.name for f in doctor.explain(str(tmp_path))] == ["skel not found"]
    (tmp_path / "empty").mkdir()
    for what, words in ((str(tmp_path / "empty"), "holds no .log file"), ("77", "no known cause for '77'"),
                        ("it does not work", "no known cause"), ("x" * 5000, "no known cause")):
        with pytest.raises(EdgeForgeError, match=words):
            doctor.explain(what)
    log.write_text("all is well\n")
    with pytest.raises(EdgeForgeError, match=r"no known cause for the log .*phone\.log"):
        doctor.explain(str(log))


@pytest.mark.parametrize(("damage", "name"), [
    ("truncated", "damaged binary"), ("missing", "missing binary"), ("other chip", "binary newer or for another chip")])
def test_a_bundle_whose_binaries_would_not_load(built: Built, tmp_path: Path, damage: str, name: str) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(built.bundle, bundle)
    assert doctor.explain(str(bundle)) == []
    path = bundle / "device" / "part_1_of_3.bin"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:4000])
    elif damage == "missing":
        path.unlink()
    else:
        _compile_for_another_chip(path, tmp_path)
    assert name in [f.name for f in doctor.explain(str(bundle))]


def _compile_for_another_chip(path: Path, tmp_path: Path) -> None:
    from edgeforge.backends.qnn.health import _relu

    (tmp_path / "relu").mkdir()
    _relu(tmp_path / "relu", targets.chip("snapdragon-8-elite"))
    shutil.copyfile(tmp_path / "relu" / "out" / "doctor.bin", path)


def test_a_bundle_with_nothing_wrong_is_no_error(tmp_path: Path) -> None:
    with cache.whole(tmp_path / "bundle") as work:
        (work / "table").write_text("whole")
        cache.stamp(work, {"key": "k", "stage": "bundle"})
    healthy = CliRunner().invoke(cli.app, ["doctor", str(tmp_path / "bundle")])
    assert healthy.exit_code == 0, healthy.output
    assert "every file is as it was made" in healthy.output


def test_a_file_of_the_same_size_and_other_contents_is_found(tmp_path: Path) -> None:
    with cache.whole(tmp_path / "bundle") as work:
        (work / "table").write_text("whole")
        cache.stamp(work, {"key": "k", "stage": "bundle"})
    (tmp_path / "bundle" / "table").write_text("wholf")
    with pytest.raises(EdgeForgeError, match="table has other contents than it was made with"):
        doctor.explain(str(tmp_path / "bundle"))


@pytest.mark.parametrize("nothing", ["", " "])
def test_nothing_is_not_the_folder_that_one_is_in(nothing: str) -> None:
    with pytest.raises(RecipeError, match="an empty text has no cause"):
        doctor.explain(nothing)


def test_the_command() -> None:
    runner = CliRunner()
    plain = runner.invoke(cli.app, ["doctor", "0x80000416"])
    assert plain.exit_code == 0
    assert "ADSP_LIBRARY_PATH" in plain.output
    assert "qualcomm/ai-hub-apps#158" in plain.output
    raw = json.loads(runner.invoke(cli.app, ["doctor", "1002", "--json"]).output)
    assert raw["codes"] == ["1002"]
    whole = runner.invoke(cli.app, ["doctor"])
    assert whole.exit_code == 0, whole.output
    assert "no problems found" in whole.output
