"""`edgeforge selfcheck`: what the owner of a GPU sees, with onnxruntime in the GPU's place; and without one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import trt_tiny as t
from edgeforge_runtime import rope
from edgeforge_runtime import session as sessions
from edgeforge_runtime.executors import Executor, open_executor
from edgeforge_runtime.manifest import LOGITS, Manifest, Target
from edgeforge_runtime.session import Session

from edgeforge import selfcheck
from edgeforge.backends.tensorrt import decoder, emulate
from edgeforge.backends.tensorrt.emit import emit
from edgeforge.cli import _guarded, app
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.export import record
from edgeforge.graph import store
from edgeforge.stages import export


def command(*words: object) -> int:
    return _guarded(lambda: app([str(w) for w in words], standalone_mode=False))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the device side reads of a bundle: both targets, the vectors, the ONNX where the engine would lie."""
    folder = t.artifact(tmp_path_factory.mktemp("selfcheck") / "bundle", "llama", Table())
    emitted = emit(t.floats("llama"), Table(), t.CONTEXT)
    (folder / "device").mkdir()
    store.save(emitted.model, folder / "device")
    manifest = Manifest.load(folder)
    own = emulate.target(emitted.model, "device/model.engine", list(t.WIDTHS), t.CONTEXT)
    dataclasses.replace(manifest, targets=manifest.targets | {decoder.TARGET: own}).save(folder)
    (folder / "device" / "model.engine").write_bytes(b"vtrt")
    cpu = manifest.targets["cpu"]
    recorder = record.Recorder(open_executor(cpu, folder, exact=True, threads=1))
    with Session(manifest, cpu, recorder, rope.read(folder / manifest.rope)) as session:
        for index, call in enumerate(record.record(session, recorder, t.IDS, t.PREFILL, 3)):
            record.save(folder / "vectors" / "whole" / export.label(call.ar, index - 1), call)
    return folder


@pytest.fixture
def onnxruntime_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(target: Target, folder: Path, *, exact: bool = False, threads: int | None = None) -> Executor:
        if target.executor == "tensorrt":
            return emulate.InPlaceOnCpu(folder / "device" / store.MODEL, 1)
        return open_executor(target, folder, exact=exact, threads=threads)
    monkeypatch.setattr(sessions, "open_executor", opened)


@pytest.mark.usefixtures("onnxruntime_for_the_gpu")
def test_a_gpu_that_computes_right(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("selfcheck", bundle, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["name"] for r in rows] == [
        "trt against cpu, logits", "trt against cpu, top-1 flips", "trt: first token", "trt: decode"]
    assert float(rows[0]["value"]) > 50
    assert rows[2]["note"] == "a prompt of 27 tokens"
    assert float(rows[3]["value"]) > 0


@pytest.mark.usefixtures("onnxruntime_for_the_gpu")
def test_a_gpu_that_computes_wrong_is_exit_3(bundle: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """A cache that is lost between calls: prefill is right, every step behind it is not."""
    def forgetful(self: emulate.InPlaceOnCpu, graph: object, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for cache in self._caches.values():
            cache[...] = 0
        return kept(self, graph, feeds)  # type: ignore[arg-type]
    kept = emulate.InPlaceOnCpu.run
    monkeypatch.setattr(emulate.InPlaceOnCpu, "run", forgetful)
    assert command("selfcheck", bundle) == 3
    assert "✗ trt against cpu, logits" in capsys.readouterr().out


def _noisy(monkeypatch: pytest.MonkeyPatch, loss_db: float) -> None:
    kept, random = emulate.InPlaceOnCpu.run, np.random.default_rng(0)

    def run(self: emulate.InPlaceOnCpu, graph: object, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = kept(self, graph, feeds)  # type: ignore[arg-type]
        right = made[LOGITS].astype(np.float32)
        noise = random.standard_normal(right.shape) * right.std() * 10 ** (-loss_db / 20)
        return made | {LOGITS: (right + noise).astype(np.float32)}
    monkeypatch.setattr(emulate.InPlaceOnCpu, "run", run)


@pytest.mark.usefixtures("onnxruntime_for_the_gpu")
@pytest.mark.parametrize(("loss", "ends"), [(30, 3), (45, 0)])
def test_float16_is_held_to_what_float16_loses(bundle: Path, monkeypatch: pytest.MonkeyPatch, loss: float,
                                               ends: int) -> None:
    """A GPU that is wrong by 30 dB, with an engine whose build had 50 to reach."""
    _noisy(monkeypatch, loss)
    assert command("selfcheck", bundle) == ends


@pytest.mark.usefixtures("onnxruntime_for_the_gpu")
def test_codes_may_flip(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise passes where products read codes: their target states no bound of its own."""
    floats = t.floats("llama", 1)
    emitted = emit(floats.clone(), t.table(floats, 8, read=True), t.CONTEXT)
    assert emulate.target(emitted.model, "e", list(t.WIDTHS), t.CONTEXT).least_db is None
    other = tmp_path / "codes"
    shutil.copytree(bundle, other)
    manifest = Manifest.load(other)
    assert manifest.targets[decoder.TARGET].least_db == emulate.FLOAT16_DB
    loose = {n: dataclasses.replace(one, least_db=None) for n, one in manifest.targets.items()}
    dataclasses.replace(manifest, targets=loose).save(other)
    _noisy(monkeypatch, 30)
    assert command("selfcheck", other) == 0
    _noisy(monkeypatch, 10)
    assert command("selfcheck", other) == 3


def test_without_the_gpu_it_says_so(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("selfcheck", bundle) == 1
    said = capsys.readouterr().err
    assert "cuda-python" in said or "cudaError" in said, "NVIDIA's package is missing, or the driver"
    assert "on the machine that the bundle was built for" in said


def test_what_cannot_be_checked(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such target"):
        selfcheck.run(bundle, "tpu")
    with pytest.raises(EdgeForgeError, match="not an EdgeForge bundle"):
        selfcheck.run(tmp_path)
    assert selfcheck.run(bundle, "cpu")[0].value == np.inf
