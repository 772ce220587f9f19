from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgeforge_runtime.errors import ExecutorError, ManifestError
from edgeforge_runtime.executors import open_executor
from edgeforge_runtime.executors import threads as threads_module
from edgeforge_runtime.executors.cpu import fast_options
from edgeforge_runtime.executors.threads import physical_cores
from edgeforge_runtime.manifest import Graph, Part, Target, Tensor
from edgeforge_runtime.session import Session
from onnx import TensorProto, helper, numpy_helper
from tiny_models import VOCAB, Tiny

CODES = np.arange(64, dtype=np.uint16).reshape(1, 64) * 1000


def times(folder: Path, name: str, source: str, result: str, factor: float) -> Part:
    """A u16 graph: result = source * factor, on one grid (scale 1/256, zero point 32768)."""
    scale, zero = np.float32(1 / 256), np.uint16(32768)
    constants = {"s": scale, "z": zero, "f": np.uint16(32768 + int(factor * 256))}
    nodes = [
        helper.make_node("DequantizeLinear", [source, "s", "z"], ["x"]),
        helper.make_node("DequantizeLinear", ["f", "s", "z"], ["y"]),
        helper.make_node("Mul", ["x", "y"], ["xy"]),
        helper.make_node("QuantizeLinear", ["xy", "s", "z"], [result]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.UINT16, [1, 64]) for n in (source, result)]
    initial = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    made = helper.make_graph(nodes, name, ends[:1], ends[1:], initial)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, str(folder / f"{name}.onnx"))
    tensors = [Tensor(n, "uint16", (1, 64), 1 / 256, 32768) for n in (source, result)]
    return Part(f"{name}.onnx", name, (tensors[0],), (tensors[1],))


def chain(folder: Path, executor: str, **options: str) -> tuple[Target, Graph]:
    parts = (times(folder, "a", "source", "between", 0.5), times(folder, "b", "between", "result", 1.5))
    graph = Graph(1, 2, parts)
    return Target(executor, (graph,), options), graph


def test_values_flow_between_parts_by_name(tmp_path: Path) -> None:
    target, graph = chain(tmp_path, "onnx-cpu")
    executor = open_executor(target, tmp_path)
    made = executor.run(graph, {"source": CODES})
    assert list(made) == ["result"]
    assert made["result"].dtype == np.uint16
    wanted = (np.rint((CODES.astype(float) - 32768) * 0.5)) * 1.5 + 32768
    assert np.abs(made["result"] - wanted).max() <= 1
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="closed"):
        executor.run(graph, {"source": CODES})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "got no source"),
        ({"source": CODES.astype(np.int32)}, r"wants source as uint16\[1, 64\], got int32\[1, 64\]"),
        ({"source": CODES[:, :3]}, r"got uint16\[1, 3\]"),
    ],
)
def test_wrong_feeds_are_named(tmp_path: Path, feeds: dict[str, Any], message: str) -> None:
    target, graph = chain(tmp_path, "onnx-cpu")
    with pytest.raises(ExecutorError, match=message):
        open_executor(target, tmp_path).run(graph, feeds)


def test_a_failing_graph_is_named(tmp_path: Path) -> None:
    target, graph = chain(tmp_path, "onnx-cpu")
    times(tmp_path, "b", "other", "result", 1.0)
    with pytest.raises(ExecutorError, match=r"b\.onnx failed"):
        open_executor(target, tmp_path).run(graph, {"source": CODES})


def test_widths_share_one_session(tmp_path: Path) -> None:
    with Session.open(Tiny(widths=(8, 4, 1)).write(tmp_path)) as session:
        assert len(session._executor._sessions) == 1  # type: ignore[attr-defined]


def test_fast_folds_weights_and_nothing_else(tmp_path: Path) -> None:
    folder = Tiny(quantized=True).write(tmp_path)
    options = fast_options()
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")
    ort.InferenceSession(str(folder / "model_0.onnx"), options, providers=["CPUExecutionProvider"])

    def kinds(file: str) -> tuple[int, int, int]:
        graph = onnx.load(str(tmp_path / file)).graph
        constant = {i.name for i in graph.initializer}
        quantized = sum(n.op_type == "QuantizeLinear" for n in graph.node)
        dequantized = [n.input[0] in constant for n in graph.node if n.op_type == "DequantizeLinear"]
        return quantized, dequantized.count(False), dequantized.count(True)

    assert kinds("model_0.onnx") == (5, 12, 9)
    activations, weights = kinds("seen.onnx")[:2], kinds("seen.onnx")[2]
    assert weights == 0
    assert activations >= (5, 11), "a transpose may get a pair of its own, on the same grid"


def test_fast_stays_close_to_exact(tmp_path: Path) -> None:
    folder = Tiny(quantized=True).write(tmp_path)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, 32)]
    with Session.open(folder) as fast, Session.open(folder, exact=True, threads=1) as exact:
        wanted, got = (np.concatenate(list(s.score(ids))) for s in (exact, fast))
    noise = np.square(wanted - got).sum()
    assert noise == 0 or 10 * np.log10(np.square(wanted).sum() / noise) > 60


def test_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cores = physical_cores()
    assert 1 <= cores <= (os.cpu_count() or 1)
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(threads_module, "_QUOTA", limit)
    limit.write_text("150000 100000\n")
    assert physical_cores() == min(cores, 2)
    limit.write_text("max 100000\n")
    assert physical_cores() >= cores


def test_hyperthreads_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(threads_module, "_CPU", tmp_path)
    monkeypatch.setattr(threads_module, "_QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert physical_cores() == 2


def test_htp_without_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = chain(tmp_path, "qnn-htp")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExecutorError, match=r"pip install 'edgeforge-runtime\[qnn\]'"):
        open_executor(target, tmp_path)


def test_htp_with_a_missing_file(tmp_path: Path) -> None:
    target, _ = chain(tmp_path, "qnn-htp")
    (tmp_path / "b.onnx").unlink()
    with pytest.raises(ManifestError, match=r"b\.onnx is missing: graph b cannot run"):
        open_executor(target, tmp_path)


COMPILE = """
import sys, onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
device = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"][:1]
shared, *names = sys.argv[1:]
kept = []
for name in names:
    so = ort.SessionOptions()
    entries = {"session.disable_cpu_ep_fallback": "1", "ep.context_enable": "1", "ep.context_embed_mode": "0",
               "ep.context_file_path": name + "_ctx.onnx"}
    if shared == "shared":
        entries["ep.share_ep_contexts"] = "1"
        entries["ep.stop_share_ep_contexts"] = str(int(name == names[-1]))
    for key, value in entries.items():
        so.add_session_config_entry(key, value)
    so.add_provider_for_devices(device, {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "57"})
    kept.append(ort.InferenceSession(name + ".onnx", so))
"""


def compiled(folder: Path, shared: str) -> tuple[Target, Graph]:
    """The chain as context binaries with wrapper files."""
    pytest.importorskip("onnxruntime_qnn")
    _, graph = chain(folder, "qnn-htp")
    command = [sys.executable, "-c", COMPILE, shared, "a", "b"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (folder / "a_ctx.onnx").is_file(), done.stderr
    parts = tuple(Part(f"{p.graph}_ctx.onnx", p.graph, p.inputs, p.outputs) for p in graph.parts)
    graph = Graph(graph.ar, graph.cl, parts)
    return Target("qnn-htp", (graph,)), graph


def test_htp_equals_cpu(tmp_path: Path) -> None:
    target, graph = compiled(tmp_path, "apart")
    reference, _ = chain(tmp_path, "onnx-cpu")
    wanted = open_executor(reference, tmp_path, exact=True).run(reference.graphs[0], {"source": CODES})
    executor = open_executor(target, tmp_path)
    made = [executor.run(graph, {"source": CODES}) for _ in range(2)]
    executor.close()
    np.testing.assert_array_equal(made[0]["result"], made[1]["result"])
    assert np.abs(made[0]["result"].astype(int) - wanted["result"].astype(int)).max() <= 1
    with pytest.raises(ExecutorError, match="closed"):
        executor.run(graph, {"source": CODES})


def test_htp_names_a_file_that_it_refuses(tmp_path: Path) -> None:
    target, _ = compiled(tmp_path, "apart")
    for binary in tmp_path.glob("*.bin"):
        binary.write_bytes(b"garbage" * 100)
    with pytest.raises(ExecutorError, match=r"a_ctx\.onnx"):
        open_executor(target, tmp_path)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="hardware loads such binaries")
def test_htp_survives_its_child(tmp_path: Path) -> None:
    """A weight-shared binary ends the emulator's process, not ours."""
    target, _ = compiled(tmp_path, "shared")
    with pytest.raises(ExecutorError, match=r"died with SIGSEGV while it tried to load .*unshared twin"):
        open_executor(target, tmp_path)


def test_htp_notices_a_death_between_calls(tmp_path: Path) -> None:
    target, graph = compiled(tmp_path, "apart")
    executor: Any = open_executor(target, tmp_path)
    executor._child.kill()
    with pytest.raises(ExecutorError, match=r"died with SIGKILL while it tried to run a_ctx\.onnx"):
        executor.run(graph, {"source": CODES})
    executor.close()
