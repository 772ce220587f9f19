"""The recipe's section `apple`: what each system reads, said before any work; and a build with a state in three
packages, whose bundle answers through the simulator."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_checkpoint
import yaml
from edgeforge_runtime.executors.base import Arrays
from edgeforge_runtime.manifest import WRITE, Manifest, Part
from edgeforge_runtime.session import Session

from edgeforge import check, pipeline, recipe, selfcheck, targets
from edgeforge.backends import require_runnable
from edgeforge.backends.coreml import chain, limits, systems
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.backends.coreml.interpret.run import Interpreter
from edgeforge.backends.coreml.simulator import SimulatorExecutor
from edgeforge.cli import _guarded, app
from edgeforge.errors import RecipeError


def _recipe(root: Path, apple: dict[str, Any], **more: Any) -> Path:
    raw = {"model": "tiny", "out": "out/phone", "calibrate": {"windows": 4, "tokens": 96, "samples": 0},
           "target": {"chip": "apple-a18", "context": 96, "prefill": 32}, "quantize": {"weights": 8},
           "apple": apple} | more
    path = root / "phone.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apple")
    tiny_checkpoint.make(folder / "tiny", tie_word_embeddings=True)
    return folder


def _said(root: Path, apple: dict[str, Any], **more: Any) -> list[tuple[str, str, str]]:
    found = check.examine(recipe.load(_recipe(root, apple, **more))).findings
    return [(f.severity, f.what, f.change) for f in found]


@pytest.mark.parametrize(("apple", "more", "what", "change"), [
    ({"system": "ios17"}, {}, "iOS 17, macOS 14: a package holds one function", "set apple.system to ios18, or a"),
    ({"system": "ios17"}, {"quantize": {"weights": 4}}, "iOS 17, macOS 14: no blockwise constants",
     "set apple.system to ios18, or quantize.weights and quantize.head to 8"),
    ({"system": "ios17", "kv": "state"}, {}, "iOS 17, macOS 14: no states", "set apple.system to ios18"),
    ({"system": "ios26", "format": "aimodel"}, {}, "iOS 26, macOS 26 reads no .aimodel", "set apple.system to ios27"),
    ({"system": "ios27", "format": "both", "kv": "state"}, {}, "takes the cache as inputs here",
     "leave apple.kv out"),
    ({"system": "ios27", "format": "both"}, {"quantize": {"activations": 8}}, "computes in float16 here",
     "set quantize.activations to 16"),
    ({"system": "ios27", "format": "aimodel", "package_bytes": 100_000}, {}, "packages are cut to this size",
     "leave apple.package_bytes out, or set apple.format to mlpackage"),
    ({"package_bytes": 20_000}, {}, "the embedding, the head or one layer holds", "set apple.package_bytes to"),
])
def test_what_a_system_does_not_read_is_said_before(root: Path, apple: dict[str, Any], more: dict[str, Any], what: str,
                                                    change: str) -> None:
    found = [(s, c) for s, w, c in _said(root, apple, **more) if what in w]
    assert [s for s, _ in found] == ["recipe"]
    assert found[0][1].startswith(change)


@pytest.mark.parametrize("system", ["ios18", "ios26", "ios27"])
def test_later_systems_read_packages(root: Path, system: str) -> None:
    assert [s for s, _, _ in _said(root, {"system": system})] == []


def test_an_asset_is_one_file_of_the_chip_s_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """package_bytes cuts the packages beside it, and does not count for the asset."""
    both = {"system": "ios27", "format": "both", "package_bytes": 90_000}
    assert _said(root, both) == []
    small = dataclasses.replace(targets.APPLES["apple-a18"], package_bytes=100_000)
    monkeypatch.setitem(targets.CHIPS, "apple-a18", small)
    ((severity, what, change),) = _said(root, both)
    assert severity == "recipe"
    assert re.match(r"\d{3},\d{3} bytes of weights, an .aimodel is one file, and apple-a18 is known to load 100,000$",
                    what)
    assert change.startswith("take fewer bits a weight")


def test_the_traps_of_states_are_told_by_name(root: Path) -> None:
    said = _said(root, {"kv": "state"}, target={"chip": "apple-a18", "context": 512, "prefill": 128})
    assert {s for s, _, _ in said} == {"warning"}
    for name in ("coremltools issue 2631", "ANEMLL issue 27", "ANECCompile() FAILED"):
        assert [w for _, w, _ in said if name in w], name
    tables = _said(root, {"kv": "state"}, quantize={"weights": 4, "palette": 16})
    assert [w for _, w, _ in tables if "issue 2716" in w]
    on_a_gpu = _said(root, {"kv": "state"}, target={"chip": "apple-m4-gpu", "context": 96, "prefill": 32})
    assert on_a_gpu == []


def test_a_missing_or_another_core_ai_is_said_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"system": "ios27", "format": "aimodel"}
    monkeypatch.setattr(systems, "COREAI", {"coreai-core": "1.0.0b9", "coreai-torch": "0.4.3"})
    assert [(s, w, c) for s, w, c in _said(root, wanted)] == [
        ("error", "coreai-core 1.0.0b3 is installed, and 1.0.0b9 is what was tested", systems.INSTALL_COREAI)]
    monkeypatch.setattr(systems.importlib.util, "find_spec", lambda name: None)
    assert "coreai and coreai-torch: not installed" in [w for _, w, _ in _said(root, wanted)]


def test_another_coremltools_is_said_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PINNED", "9.9")
    assert ("error", "coremltools 9.0 is installed, and 9.9 is what was tested",
            "pip install coremltools==9.0") in _said(root, {})


def test_the_section_is_for_apple_s_chips(root: Path) -> None:
    path = _recipe(root, {"kv": "io"}, target={"chip": "snapdragon-8-elite", "context": 96, "prefill": 32})
    with pytest.raises(RecipeError, match="apple.kv: only for Apple's chips, and snapdragon-8-elite is none"):
        recipe.load(path)


@pytest.fixture(scope="module")
def bundle(root: Path) -> Path:
    """One layer a package, the cache in the model."""
    return pipeline.build(recipe.load(_recipe(root, {"kv": "state", "package_bytes": 90_000})), lambda event: None)


def test_states_in_several_packages_pass_the_gates(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    parts = manifest.targets["ane"].graphs[0].parts
    assert [Path(p.file).parts[1] for p in parts] == [f"model_{k}_of_{len(parts)}.mlpackage"
                                                     for k in range(1, len(parts) + 1)]
    assert len(parts) > 1
    assert WRITE in manifest.targets["ane"].graphs[0].boundary()[0]
    raw = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    figures = {c["name"]: float(c["value"]) for c in raw["stages"][-1]["checks"]}
    for name in ("prefill", "decode"):
        assert figures[f"compile: {name} of the package in float32 against the float graph"] > 90
        assert figures[f"compile: {name} of the package in float16 against the float graph"] > 45
    assert figures["compile: known to leave the Neural Engine"] == 0


def test_a_mac_can_repeat_each_call_with_the_state_before_it(bundle: Path) -> None:
    device = bundle / "device"
    calls = sorted((device / "golden").glob("*.npz"))
    assert len(calls) == 2 * len(Manifest.load(bundle).targets["ane"].graphs[0].parts)
    for call in calls:
        package, function = verify_on_mac.named(call)
        interpreter = Interpreter.open(device / package.name)
        inputs, expected = verify_on_mac.golden(call)
        kept = verify_on_mac.side(call, verify_on_mac.STATE)
        assert set(kept) == {s.name for s in interpreter.functions[function].states}
        interpreter.keep(kept)
        assert min(verify_on_mac.compare(expected, interpreter.run(function, inputs)).values()) == np.inf


def test_what_the_script_calls_for_states_is_there() -> None:
    import inspect

    import coremltools as ct
    from coremltools.models.model import MLState

    assert list(inspect.signature(ct.models.MLModel.predict).parameters) == ["self", "data", "state"]
    assert list(inspect.signature(ct.models.MLModel.make_state).parameters) == ["self"]
    assert list(inspect.signature(MLState.write_state).parameters) == ["self", "name", "value"]


def test_the_simulator_answers_as_the_cpu_does(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(bundle), "hello", "--on", "coreml-sim", "--max-tokens", "3", "--raw"]
    assert _guarded(lambda: app(words, standalone_mode=False)) == 0
    assert "executed here op by op" in capsys.readouterr().err.replace("\n", " ")
    manifest = Manifest.load(bundle)
    require_runnable("coreml-sim", manifest.targets["coreml-sim"])
    with Session.open(bundle, "coreml-sim") as simulated, Session.open(bundle, exact=True) as cpu:
        ids = list(range(40))
        ours, theirs = simulated.prompt(ids), cpu.prompt(ids)
    assert int(ours.argmax()) == int(theirs.argmax())


def test_a_selfcheck_says_what_runs_here_and_whose_times_it_shows(bundle: Path, capsys: pytest.CaptureFixture[str],
                                                                  ) -> None:
    def said(*more: str) -> tuple[int, str]:
        code = _guarded(lambda: app(["selfcheck", str(bundle), *more], standalone_mode=False))
        made = capsys.readouterr()
        return code, made.out + made.err

    code, text = said()
    assert code == 2
    assert "has the targets ane, coreml-sim, cpu" in text
    assert "hint: say which with --on; of its targets this machine runs coreml-sim\n" in text
    code, text = said("--on", "ane")
    assert (code, "Apple's devices alone" in text, "--on cpu" in text) == (2, True, False)
    assert "hint: of its targets this machine runs coreml-sim\n" in text
    code, text = said("--on", "coreml-sim")
    assert code == 0, text
    assert "executed here op by op: true to float16, slow, and no device" in text, "whose times these are"


def test_selfcheck_reads_the_prompt_as_an_app_does(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks through prefill, whose last row is all that its packages say."""
    called: list[str] = []
    kept = SimulatorExecutor._run

    def spy(self: SimulatorExecutor, part: Part, feeds: Arrays) -> Arrays:
        called.append(part.graph)
        return kept(self, part, feeds)
    monkeypatch.setattr(SimulatorExecutor, "_run", spy)
    checks = selfcheck.run(bundle, "coreml-sim")
    assert checks[0].passed, checks[0]
    prompt = int(checks[2].note.split()[-2])
    assert prompt > 32, "more than one chunk"
    assert called.count("prefill") >= 2 * 2, "compared, and timed"


def test_the_swift_loop_reads_keys_that_are_there(bundle: Path) -> None:
    """All that can be held of it without a Mac: its keys are the manifest's, its tables lie where it looks."""
    text = (bundle / "device" / "Decode.swift").read_text(encoding="utf-8")
    assert "NOT COMPILED" in text
    raw = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    target = raw["targets"]["ane"]
    places = {"Tensor": target["graphs"][0]["parts"][0]["inputs"][0], "Part": target["graphs"][0]["parts"][0],
              "Graph": target["graphs"][0], "Target": target, "Model": raw["model"]}
    for name, place in places.items():
        body = re.search(rf"struct {name}: Decodable \{{(.*?)\}}", text, re.DOTALL)
        assert body is not None, name
        assert set(re.findall(r"(?:let|,) (\w+): ", body[1])) <= set(place), name
    with np.load(bundle / raw["rope"]) as tables:
        for name, table in tables.items():
            half = np.fromfile(bundle / "device" / f"position_ids_{name}.f16", "<f2")
            assert np.array_equal(half, table.astype(np.float16).ravel()), name


def test_the_chain_on_disk_is_what_was_written(bundle: Path) -> None:
    cache = bundle.parent / ".edgeforge" / "compile" / Manifest.load(bundle).stamps["stage.compile"]
    packages = chain.load(cache)
    assert [p.file for p in packages] == sorted(p.name for p in cache.glob("*.mlpackage"))
    assert [chain.Package.parse(p.dump()) for p in packages] == packages
