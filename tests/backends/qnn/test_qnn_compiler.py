"""compile_part: what it makes, and what it says when it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import qnn_small_graphs as small
from qnn_fixtures import Built, Compiler, pid_is_running
from qnn_tiny_llama import cpu_session

from edgeforge.backends import process
from edgeforge.backends.qnn import compiler as module
from edgeforge.backends.qnn.compiler import compile_part, load_part
from edgeforge.backends.qnn.emulator import emulate
from edgeforge.errors import CompilerError
from edgeforge.metrics import sqnr_db


def test_both_binaries_hold_the_graphs_under_our_names(built: Built) -> None:
    for part in (*built.device, *built.twin):
        names = [g.name for g in part.graphs]
        assert sorted(g.name for g in part.info.graphs) == sorted(names)
        assert part.info.soc_model == 57
        assert part.info.dsp_arch == 75
        for graph in part.graphs:
            (node,) = onnx.load(graph.wrapper).graph.node
            attributes = {a.name: a for a in node.attribute}
            assert attributes["partition_name"].s.decode() == graph.name
            assert attributes["ep_cache_context"].s.decode() == part.binary.name


def test_a_part_records_cost_and_versions(built: Built) -> None:
    part = built.device[1]
    assert part.compile_seconds > 0
    assert part.peak_rss_bytes > 50e6
    assert part.versions["onnxruntime-qnn"] == "2.7.0"
    assert part.log.is_file()


def test_device_twin_and_emulator_give_the_same_bits_close_to_the_cpu(built: Built, tmp_path: Path) -> None:
    for device, twin in zip(built.device, built.twin, strict=True):
        moved = tmp_path / "elsewhere" / twin.name
        shutil.copytree(twin.folder, moved)
        for graph in device.graphs:
            feeds = dict(np.load(built.feeds[graph.name]))
            outputs = dict(np.load(graph.outputs))
            same = dict(np.load(next(g.outputs for g in twin.graphs if g.name == graph.name)))
            first, second = emulate(load_part(moved), graph.name, [feeds, feeds], 60)
            cpu = cpu_session(built.onnx[graph.name])
            names = [o.name for o in cpu.get_outputs()]
            assert set(outputs) == set(names)
            for name, expected in zip(names, cpu.run(names, feeds), strict=True):
                for other in (same, first, second):
                    np.testing.assert_array_equal(outputs[name], other[name])
                assert outputs[name].dtype == expected.dtype
                zero = next(t.zero_point for t in device.info.graph(graph.name).outputs if t.name == name)
                # 55 dB at least were seen; the u8 cache was never off by more than one code.
                assert sqnr_db(expected.astype(float) - zero, outputs[name].astype(float) - zero) > 45


def test_unsupported_op_is_named_and_nothing_is_published(compiler: Compiler) -> None:
    job = compiler.job("bad", small.unsupported())
    with pytest.raises(CompilerError, match=r"determinant/Det \(Det\)") as caught:
        compile_part(job, 60)
    assert "part bad" in str(caught.value)
    assert not job.out.exists()
    failed = job.out.with_name("bad.failed")
    assert f"python -m edgeforge.backends.qnn.worker {failed / 'job.json'}" in caught.value.hint
    # The kept job fails alone in the same way.
    again = process.run_child(
        [*module.WORKER, str(failed / "job.json")], log=failed / "again.log", timeout_s=60
    )
    assert again.returncode == 1
    assert "determinant/Det" in again.log


def test_symbolic_dimension_and_unreadable_model_are_named(compiler: Compiler) -> None:
    model = small.conv(4)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "tokens"
    with pytest.raises(CompilerError, match=r"x has dimensions without a size \(tokens\)"):
        compiler("dynamic", model)
    job = compiler.job("garbage", small.conv(4))
    job.graphs[0].onnx.write_bytes(b"not onnx")
    with pytest.raises(CompilerError, match=r"garbage0\.onnx is not a readable ONNX file"):
        compile_part(job, 60)


def test_three_widths_with_external_weights_in_one_binary(compiler: Compiler) -> None:
    widths = (64, 16, 1)
    job = compiler.job("part", *(small.conv(w, 256) for w in widths))
    for graph in job.graphs:
        model = onnx.load(graph.onnx)
        onnx.save(
            model, graph.onnx, save_as_external_data=True, location=f"{graph.name}.data", size_threshold=64
        )
    shared = compile_part(replace(job, weight_sharing=True), 60).info
    twin = compile_part(job, 60).info
    assert {g.name for g in shared.graphs} == {g.name for g in twin.graphs} == {g.name for g in job.graphs}
    assert twin.file_bytes - shared.file_bytes > 1.9 * 256 * 256


def test_failure_keeps_the_part_that_was_there(compiler: Compiler) -> None:
    good = compiler("part", small.conv(4))
    before = good.binary.read_bytes()
    bad = replace(compiler.job("part", small.unsupported()), out=good.folder)
    with pytest.raises(CompilerError):
        compile_part(bad, 60)
    assert load_part(good.folder).binary.read_bytes() == before
    assert not good.folder.with_name("part.partial").exists()


def test_recompiling_replaces_the_part_and_gives_the_same_bytes(compiler: Compiler) -> None:
    first = compiler("part", small.conv(4)).binary.read_bytes()
    (compiler.folder / "part" / "stray").touch()
    second = compiler("part", small.conv(4))
    assert second.binary.read_bytes() == first
    assert not (second.folder / "stray").exists()
    assert {p.name for p in compiler.folder.iterdir()} == {"part", "part0.onnx"}


def test_unknown_soc_is_refused_by_the_compiler(compiler: Compiler) -> None:
    with pytest.raises(CompilerError, match="QNN_DEVICE_ERROR_INVALID_CONFIG"):
        compiler("soc", small.conv(4), soc=9999)


def test_binary_for_another_architecture_is_not_published(compiler: Compiler) -> None:
    job = compiler.job("arch", small.conv(4), dsp_arch=79)
    with pytest.raises(CompilerError, match="is for v75, not v79"):
        compile_part(job, 60)
    assert not job.out.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"soc_model": 0}, "soc_model 0"),
        ({"optimization": 7}, "optimization 7"),
        ({"graphs": ()}, "graph names"),
        ({"name": "a/b"}, "not a usable name"),
    ],
)
def test_bad_jobs_are_refused_before_any_work(compiler: Compiler, change: dict, words: str) -> None:
    job = replace(compiler.job("part", small.conv(1)), **change)
    with pytest.raises(CompilerError, match=words):
        compile_part(job, 60)
    assert not list(compiler.folder.glob("*.failed"))


def test_missing_model_and_equal_names_are_refused(compiler: Compiler) -> None:
    job = compiler.job("part", small.conv(1))
    with pytest.raises(CompilerError, match=r"no such file: .*gone\.onnx"):
        compile_part(replace(job, graphs=(replace(job.graphs[0], onnx=Path("gone.onnx")),)), 60)
    with pytest.raises(CompilerError, match="distinct"):
        compile_part(replace(job, graphs=job.graphs * 2), 60)


def test_killed_worker_is_reported(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, signal; print('about to crash', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(module, "WORKER", (sys.executable, "-c", code))
    job = compiler.job("part", small.conv(1))
    with pytest.raises(CompilerError, match=r"(?s)part part .* was killed by SIGSEGV.*about to crash"):
        compile_part(job, 60)
    assert not job.out.exists()
    assert (job.out.with_name("part.failed") / "job.json").is_file()


def test_hanging_worker_is_stopped_with_its_children(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    monkeypatch.setattr(module, "WORKER", (sys.executable, "-c", code))
    job = compiler.job("part", small.conv(1))
    with pytest.raises(CompilerError, match="did not finish within"):
        compile_part(job, 1.5)
    pid = int((job.out.with_name("part.failed") / "compile.log").read_text())
    assert not pid_is_running(pid)


def test_missing_wheel_says_how_to_install_it(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompilerError, match="not installed") as caught:
        compiler("part", small.conv(1))
    assert "pip install" in caught.value.hint


def test_unknown_api_version_is_refused(wheel: None) -> None:
    code = (
        "from edgeforge.backends.qnn import interface, wheel\n"
        "interface.KNOWN_CORE_API = ((2, 39),)\n"
        "interface.Hooks(wheel.find().library(wheel.HTP), share_weights=True)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert (
        "speaks QNN core API 2.40 for backend 6; the table layout is known for HTP (6) at 2.39" in run.stderr
    )


def test_emulator_refuses_what_would_crash_it(built: Built) -> None:
    name = built.device[0].graphs[0].name
    with pytest.raises(CompilerError, match="shared weights"):
        emulate(built.device[0], name, [{}], 60)
    with pytest.raises(CompilerError, match="no graph 'other'"):
        emulate(built.twin[0], "other", [{}], 60)
    with pytest.raises(CompilerError, match="no feed for input_ids"):
        emulate(built.twin[0], name, [{}], 60)


def test_emulator_crash_is_survived(built: Built) -> None:
    # Told that it is a twin, the emulator tries: this is the crash that the refusal above avoids.
    lying = replace(built.device[1], weight_sharing=False)
    name = lying.graphs[0].name
    with pytest.raises(CompilerError, match=r"emulator (was killed by SIGSEGV|exited)"):
        emulate(lying, name, [dict(np.load(built.feeds[name]))], 60)
