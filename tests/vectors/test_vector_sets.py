"""Sets of test vectors: made from a bundle, replayed on it, judged from what a device wrote, and damaged on purpose."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.manifest import Manifest
from tiny_build import Built

from edgeforge import lock
from edgeforge.backends.qnn.binary import read_binaries
from edgeforge.cli import _guarded, app
from edgeforge.errors import EdgeForgeError
from edgeforge.vectors import check, make
from edgeforge.vectors import format as sets
from edgeforge.vectors.format import Expected, TensorSpec, Tolerance

X = TensorSpec(name="x/in", dtype="uint16", shape=(2, 3), scale=0.5, zero_point=3)
CODES = Expected(name="y.codes", dtype="uint8", shape=(4,), scale=0.25, zero_point=128, tolerance=Tolerance(lsb=1))
FLOATS = Expected(name="z", dtype="float32", shape=(2,), tolerance=Tolerance(sqnr_db=60.0))
NEAR = Expected(name="near", dtype="float64", shape=(), tolerance=Tolerance(max_abs=0.5))


def _arrays(seed: int) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    x = np.arange(6, dtype=np.uint16).reshape(2, 3) + seed
    made = {"y.codes": np.array([0, 1, 254, 255], np.uint8), "z": np.array([1.0, -2.0], np.float32),
            "near": np.array(3.0)}
    return f"call{seed}", {"x/in": x}, made


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A set of two graphs, two calls each."""
    place = tmp_path / "a set"
    graphs = [(name, [X], [CODES, FLOATS, NEAR], [_arrays(0), _arrays(1)]) for name in ("prompt", "token")]
    sets.write(place, "small", {"edgeforge": "test"}, graphs)
    return place


def _command(*words: object) -> int:
    return _guarded(lambda: app([str(w) for w in words], standalone_mode=False))


def test_files_lie_as_qnn_net_run_reads_and_writes_them(small: Path) -> None:
    lines = (small / "input_lists" / "token.txt").read_text().splitlines()
    assert lines == ["x/in:=inputs/token/0/x_in.raw", "x/in:=inputs/token/1/x_in.raw"]
    for row, entry in enumerate(lines):
        raw = (small / entry.partition(":=")[2]).read_bytes()
        assert raw == b"".join((i + row).to_bytes(2, "little") for i in range(6))
    assert sorted(p.name for p in (small / "expected" / "prompt" / "Result_1").iterdir()) == [
        "near_native.raw", "y_codes_native.raw", "z.raw"]
    assert check.inspect(small)[1] == 16


def test_the_expected_outputs_pass_as_a_devices(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _command("vectors", "check", small, "--outputs", small / "expected", "--json") == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert len(rows) == 12
    assert {r["lsb"] for r in rows} == {0, None}
    assert all(r["passed"] for r in rows)


def _device(small: Path, graph: str = "prompt") -> Path:
    """A device's folder with one graph's results, to be changed."""
    place = small.parent / "device"
    shutil.copytree(small / "expected" / graph, place / graph)
    return place


@pytest.mark.parametrize(("file", "content", "passes"), [
    ("y_codes_native.raw", bytes([1, 0, 255, 254]), True),
    ("y_codes_native.raw", bytes([2, 1, 254, 255]), False),
    ("y_codes_native.raw", bytes([0, 1, 254, 0]), False),
    ("z.raw", np.array([1.0001, -2.0], "<f4").tobytes(), True),
    ("z.raw", np.array([1.1, -2.0], "<f4").tobytes(), False),
    ("z.raw", np.array([np.nan, -2.0], "<f4").tobytes(), False),
    ("near_native.raw", np.array(3.5, "<f8").tobytes(), True),
    ("near_native.raw", np.array(3.6, "<f8").tobytes(), False),
    ("near_native.raw", np.array(np.nan, "<f8").tobytes(), False),
    ("near_native.raw", np.array(np.inf, "<f8").tobytes(), False),
])
def test_each_tolerance_has_two_sides(small: Path, file: str, content: bytes, passes: bool) -> None:
    place = _device(small)
    (place / "prompt" / "Result_1" / file).write_bytes(content)
    assert _command("vectors", "check", small, "--outputs", place) == (0 if passes else 3)


def test_what_is_off_is_named(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = _device(small)
    (place / "prompt" / "Result_0" / "y_codes_native.raw").write_bytes(bytes(4))
    assert _command("vectors", "check", small, "--outputs", place) == 3
    captured = capsys.readouterr()
    assert "1 of 6 outputs are off" in captured.err
    assert "prompt call0: y.codes" in captured.err
    assert "255 LSB (at most 1 LSB)" in captured.err
    assert "not run: token" in captured.err


@pytest.mark.parametrize("name", ["y.codes_native.raw", "y_codes_native.raw"])
def test_both_spellings_of_a_name_are_found(small: Path, name: str) -> None:
    place = _device(small)
    for call in ("Result_0", "Result_1"):
        (place / "prompt" / call / "y_codes_native.raw").rename(place / "prompt" / call / name)
    assert all(v.passed for v in check.device(small, place))


@pytest.mark.parametrize(("change", "message"), [
    (lambda p: (p / "prompt/Result_0/z.raw").unlink(), "has no output z"),
    (lambda p: (p / "prompt/Result_0/z.raw").write_bytes(b"123"), "has 3 bytes; z, float32.2., has 8"),
    (lambda p: (p / "prompt/Result_0/y_codes_native.raw").rename(p / "prompt/Result_0/y_codes.raw"),
     "as floats, not as uint8 codes\n.*--use_native_output_files"),
    (lambda p: shutil.rmtree(p / "prompt/Result_1"), "Result_1 has no output y.codes"),
    (lambda p: shutil.rmtree(p / "prompt"), "holds no results of the set's graphs"),
])
def test_device_folders_that_cannot_be_judged(small: Path, change: Callable[[Path], Any], message: str) -> None:
    place = _device(small)
    change(place)
    with pytest.raises(EdgeForgeError, match=message):
        check.device(small, place)


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def run(place: Path) -> None:
        raw = json.loads((place / "manifest.json").read_text())
        change(raw)
        (place / "manifest.json").write_text(json.dumps(raw))
    return run


def _first(raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = raw["graphs"][0]
    return found


def _link(place: Path) -> None:
    file = place / "inputs/prompt/0/x_in.raw"
    shutil.copyfile(file, place.parent / "elsewhere.raw")
    file.unlink()
    file.symlink_to(place.parent / "elsewhere.raw")


@pytest.mark.parametrize(("change", "message"), [
    (lambda p: (p / "manifest.json").unlink(), "No such file"),
    (lambda p: (p / "manifest.json").write_text("{"), "not a manifest of test vectors"),
    (lambda p: (p / "manifest.json").write_text("[" * 100000), "not a manifest of test vectors"),
    (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), "not a manifest of test vectors"),
    (_edit(lambda r: r.update(format="edgeforge-vectors/2")), "edgeforge-vectors/1"),
    (_edit(lambda r: r.update(more=1)), "more"),
    (_edit(lambda r: r["graphs"].append(_first(r))), "stands twice"),
    (_edit(lambda r: r.update(graphs=[])), "graphs"),
    (_edit(lambda r: _first(r)["inputs"][0].update(name="a b")), "space"),
    (_edit(lambda r: _first(r)["inputs"][0].update(shape=[2, 4])), "has 12 bytes; x/in, uint16.2, 4., has 16"),
    (_edit(lambda r: _first(r)["inputs"][0].update(shape=[1 << 40, 1 << 40])), "has 12 bytes"),
    (_edit(lambda r: _first(r)["inputs"][0].update(shape=[-2, -3])), "shape"),
    (_edit(lambda r: _first(r)["inputs"][0].update(dtype="object")), "dtype"),
    (_edit(lambda r: _first(r)["inputs"][0].update(scale=float("nan"))), "scale"),
    (_edit(lambda r: _first(r)["outputs"][0].update(tolerance={})), "exactly one of"),
    (_edit(lambda r: _first(r)["outputs"][0].update(tolerance={"lsb": 1, "sqnr_db": 3})), "exactly one of"),
    (_edit(lambda r: _first(r)["outputs"][1].update(tolerance={"lsb": 1})), "floats have no LSB"),
    (_edit(lambda r: _first(r)["calls"][0]["inputs"].clear()), "not those that the graph declares"),
    (_edit(lambda r: _first(r)["calls"][0]["inputs"]["x/in"].update(file="../x.raw")), "plain relative path"),
    (_edit(lambda r: _first(r)["calls"][0]["inputs"]["x/in"].update(file="/etc/passwd")), "plain relative path"),
    (_edit(lambda r: _first(r)["calls"][0]["inputs"]["x/in"].update(file="inputs")), "has .* bytes"),
    (_edit(lambda r: _first(r)["calls"][0]["inputs"]["x/in"].update(file="inputs/x/y.raw")), "No such file"),
    (_link, "leads out of the set"),
    (lambda p: (p / "inputs/prompt/0/x_in.raw").write_bytes(bytes(12)), "sha256 differs"),
    (lambda p: (p / "inputs/prompt/0/x_in.raw").write_bytes(b""), "has 0 bytes"),
    (lambda p: (p / "expected/token/Result_1/z.raw").unlink(), "No such file"),
])
def test_damaged_sets_are_named(small: Path, change: Callable[[Path], Any], message: str) -> None:
    change(small)
    with pytest.raises(EdgeForgeError, match=message):
        check.inspect(small)
    assert _command("vectors", "check", small) == 1


def test_expected_values_that_are_not_finite_judge_nothing(tmp_path: Path) -> None:
    label, fed, made = _arrays(0)
    made["z"][0] = np.nan
    sets.write(tmp_path / "s", "s", {}, [("g", [X], [CODES, FLOATS, NEAR], [(label, fed, made)])])
    with pytest.raises(EdgeForgeError, match="not finite"):
        check.inspect(tmp_path / "s")


@pytest.mark.parametrize(("specs", "arrays", "message"), [
    ([X], {"x/in": np.zeros((2, 3), np.int16)}, "declared as uint16"),
    ([X], {"x/in": np.zeros((3, 2), np.uint16)}, "declared as uint16"),
    ([X, X.model_copy(update={"name": "x_in"})], {n: np.zeros((2, 3), np.uint16) for n in ("x/in", "x_in")},
     "two tensors would both be written"),
])
def test_all_or_nothing(tmp_path: Path, specs: list[TensorSpec], arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(EdgeForgeError, match=message):
        sets.write(tmp_path / "s", "s", {}, [("g", specs, [FLOATS], [("c", arrays, _arrays(0)[2])])])
    assert list(tmp_path.iterdir()) == []


def test_only_a_set_is_replaced(small: Path) -> None:
    graphs = [("other", [X], [FLOATS], [_arrays(0)])]
    sets.write(small, "again", {}, graphs)
    assert [g.graph for g in sets.load(small).graphs] == ["other"]
    assert not (small / "inputs" / "prompt").exists()
    (small / "manifest.json").write_text("{}")
    with pytest.raises(EdgeForgeError, match="holds no test vectors"):
        sets.write(small, "again", {}, graphs)
    assert (small / "inputs" / "other").is_dir()


def test_a_bundle_and_a_devices_folder_are_one_too_many(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _command("vectors", "check", small, small, "--outputs", small) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.fixture(scope="module")
def made(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vectors") / "set"
    assert make.make(built.bundle, place) == 16
    return place


@pytest.mark.parametrize(("on", "calls"), [("cpu", 4), ("htp", 12)])
def test_a_bundle_replays_its_own_vectors(built: Built, made: Path, on: str, calls: int) -> None:
    verdicts = check.replay(made, built.bundle, on)
    assert len({(v.graph, v.call) for v in verdicts}) == calls
    assert [v for v in verdicts if not v.passed] == []
    if on == "cpu":
        assert {v.lsb for v in verdicts if v.call.startswith("ar1_")} == {0}


def test_a_set_judges_by_the_builds_own_gates_and_names_its_tools(built: Built, tmp_path: Path) -> None:
    """Of the lock: not the defaults, not what is installed where the set is made."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("manifest.json", lock.FILE):
        shutil.copyfile(built.bundle / name, bundle / name)
    shutil.copytree(built.bundle / "vectors", bundle / "vectors")
    raw = json.loads((bundle / lock.FILE).read_text())
    raw["inputs"]["recipe"]["gates"] |= {"emulator_db": 51.5, "wide_db": 21.5}
    raw["inputs"]["tools"] = {"onnxruntime": "0.1"}
    (bundle / lock.FILE).write_text(json.dumps(raw))
    make.make(bundle, tmp_path / "set")
    vectors = sets.load(tmp_path / "set")
    assert {t.tolerance.sqnr_db for g in vectors.graphs for t in g.outputs} == {51.5, 21.5}
    assert vectors.made_by["onnxruntime"] == "0.1"
    assert "numpy" not in vectors.made_by


def test_the_split_models_replay_what_the_device_gets(built: Built, made: Path) -> None:
    """The parts' QDQ graphs are what the expected outputs of the device's graphs came from: bit for bit."""
    verdicts = check.replay(made, built.artifact("split"), "cpu")
    assert len({(v.graph, v.call) for v in verdicts}) == 12
    assert {v.lsb for v in verdicts} == {0}


def test_the_command_of_the_readme_fits_the_device_binaries(built: Built, made: Path) -> None:
    """One input list a graph in the binary's order (prompt, token), every input named as the binary names it."""
    for binary in read_binaries(sorted((built.bundle / "device").glob("*.bin"))):
        assert [g.name.split("_")[0] for g in binary.graphs] == ["prompt", "token"]
        for graph in binary.graphs:
            lists = (made / "input_lists" / f"{graph.name}.txt").read_text().splitlines()
            for row in lists:
                files = dict(entry.split(":=") for entry in row.split(" "))
                sizes = {t.name: int(np.prod(t.dims)) * np.dtype(t.dtype).itemsize for t in graph.inputs}
                assert {n: (made / f).stat().st_size for n, f in files.items()} == sizes


def test_a_wrong_output_of_the_model_is_off(built: Built, made: Path, tmp_path: Path) -> None:
    """The vectors of one model against another: its logits' grid moved by one code."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("model.onnx", "model.data"):
        shutil.copyfile(built.bundle / name, bundle / name)
    manifest = Manifest.load(built.bundle)
    manifest.save(bundle)
    weights = bytearray((bundle / "model.data").read_bytes())
    weights[len(weights) // 2:] = bytes(len(weights) - len(weights) // 2)
    (bundle / "model.data").write_bytes(weights)
    assert _command("vectors", "check", made, bundle) == 3


def test_bundles_of_another_build_are_refused(built: Built, made: Path, tmp_path: Path) -> None:
    manifest = Manifest.load(built.bundle)
    cpu = manifest.targets["cpu"]
    graph = cpu.graphs[0]
    tensor = dataclasses.replace(graph.parts[0].inputs[1], scale=0.001)
    part = dataclasses.replace(graph.parts[0], inputs=(graph.parts[0].inputs[0], tensor, *graph.parts[0].inputs[2:]))
    other = dataclasses.replace(cpu, graphs=(dataclasses.replace(graph, parts=(part,)), *cpu.graphs[1:]))
    dataclasses.replace(manifest, targets={"cpu": other}).save(tmp_path)
    with pytest.raises(EdgeForgeError, match="of different builds"):
        check.replay(made, tmp_path, "cpu")
    with pytest.raises(EdgeForgeError, match="has no target 'htp'"):
        check.replay(made, tmp_path, "htp")
    with pytest.raises(EdgeForgeError, match="none of the set's graphs"):
        check.replay(Path(__file__).parents[2] / "test_vectors" / "maths", built.bundle, "cpu")


@pytest.mark.parametrize(("change", "message"), [
    (lambda b: shutil.rmtree(b / "vectors"), "No such file"),
    (lambda b: (b / "vectors/whole/ar32/inputs.npz").write_bytes(b"PK"), "damaged"),
    (lambda b: (b / "vectors/parts/ar32/prompt_ar32_cl256_1_of_3").rename(b / "vectors/parts/ar32/other"),
     "a graph that .* does not declare"),
    (lambda b: (b / "manifest.json").unlink(), "not an EdgeForge bundle"),
    (lambda b: (b / lock.FILE).unlink(), "there is no .*lock"),
    (lambda b: (b / lock.FILE).write_text((b / lock.FILE).read_text().replace('"wide_db"', '"other"')),
     "does not say which gates"),
])
def test_bundles_without_usable_vectors_are_named(built: Built, tmp_path: Path, change: Callable[[Path], Any],
                                                  message: str) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("manifest.json", lock.FILE):
        shutil.copyfile(built.bundle / name, bundle / name)
    shutil.copytree(built.bundle / "vectors", bundle / "vectors")
    change(bundle)
    with pytest.raises(EdgeForgeError, match=message):
        make.make(bundle, tmp_path / "set")
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_the_commands_run_without_torch(built: Built, tmp_path: Path) -> None:
    code = ("import sys; from edgeforge.cli import main; main.__globals__['sys'].argv = sys.argv\n"
            "try: main()\nfinally: assert 'torch' not in sys.modules")
    place = str(tmp_path / "ä set")
    for words in (["vectors", "make", str(built.bundle), place], ["vectors", "check", place, str(built.bundle)]):
        subprocess.run([sys.executable, "-c", code, *words], check=True, timeout=120, capture_output=True)
