"""edgeforge bisect with the real HTP compiler: refusals, crashes, hangs, wrong numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import qnn_small_graphs as small
from qnn_fixtures import Compiler
from typer.testing import CliRunner

from edgeforge import cli, targets
from edgeforge.backends.ending import ChildFailed
from edgeforge.backends.failed import FAILURE
from edgeforge.backends.qnn import compiler as module
from edgeforge.backends.qnn import trial
from edgeforge.backends.qnn.compiler import compile_part
from edgeforge.bisect import run
from edgeforge.bisect.run import Found
from edgeforge.errors import CompilerError, EdgeForgeError

CHIP = targets.chip("snapdragon-8-gen-3")


def chain(*middle: str, before: int = 6, after: int = 6) -> small.Small:
    """Adds, some other operators, adds; x and y are [1,1,8,8]."""
    g = small.Small()
    y = g.input("x", 1, 1, 8, 8)
    for i in range(before):
        y = g.q(g.op("Add", [y, y], f"before{i}"))
    for i, kind in enumerate(middle):
        y = g.q(g.op(kind, [y], f"{kind.lower()}{i}"))
    for i in range(after):
        y = g.q(g.op("Add", [y, y], f"after{i}"))
    g.output(g.op("Relu", [y], "last"), 1, 1, 8, 8)
    return g


def refused() -> onnx.ModelProto:
    """Det in the middle of a chain of sixteen."""
    g = small.Small()
    y = g.input("x", 1, 4, 4)
    for i in range(6):
        y = g.q(g.op("Relu", [y], f"relu{i}"))
    y = g.q(g.op("Det", [y], "determinant"))
    for i in range(6):
        y = g.q(g.op("Add", [y, y], f"add{i}"))
    g.output(g.op("Relu", [y], "last"), 1)
    return g.model()


def search(model: Path, out: Path, timeout_s: float = 60, below_db: float | None = None,
           feeds: Path | None = None) -> Found:
    return run.bisect([trial.of_file(model, feeds, CHIP)], out, timeout_s, below_db, lambda text: None)


def saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def break_on(monkeypatch: pytest.MonkeyPatch, kinds: list[str], how: str) -> None:
    """The compiler's child does `how` when the graph holds all of these operators; else the real compile."""
    code = (
        "import json, os, signal, sys, time, onnx\n"
        "from pathlib import Path\n"
        "here = Path(sys.argv[1]).parent\n"
        "job = json.loads(Path(sys.argv[1]).read_text())\n"
        "have = {n.op_type for g in job['graphs'] for n in onnx.load(here / g['onnx']).graph.node}\n"
        f"if set({kinds!r}) <= have: print('optimising', flush=True); {how}\n"
        "from edgeforge.backends.qnn.worker import main; sys.exit(main(sys.argv[1:]))\n"
    )
    monkeypatch.setattr(module, "WORKER", (sys.executable, "-c", code))


def operators(found: Found) -> set[str]:
    kinds = {n.op_type for n in onnx.load(found.folder / run.MODEL).graph.node}
    return kinds - {"QuantizeLinear", "DequantizeLinear"}


def test_a_refused_node_of_a_failed_job_is_cut_out_and_fails_alone(compiler: Compiler, tmp_path: Path) -> None:
    feeds = tmp_path / "feeds.npz"
    codes = np.arange(16, dtype=np.uint16).reshape(1, 4, 4) * 1000 + 30000
    np.savez(feeds, x=codes)
    job = compiler.job("part", refused())
    job = replace(job, graphs=(replace(job.graphs[0], feeds=feeds),), dsp_arch=75)
    with pytest.raises(ChildFailed):
        compile_part(job, 60)
    trials = trial.of_job(job.failure)
    assert trials is not None
    found = run.bisect(trials, tmp_path / "out", 60, None, lambda text: None)
    assert found.units == (1, 14)
    assert found.verified
    assert found.tries <= 3  # the log names the node: no need to halve
    assert operators(found) == {"Det"}
    inputs = np.load(tmp_path / "out" / run.INPUTS)
    relu = np.maximum(codes.astype(int), 32768).astype(np.uint16)  # real activations, not random ones
    np.testing.assert_array_equal(inputs["relu5.q"], relu)
    facts = json.loads((tmp_path / "out" / run.REPRO).read_text())
    assert facts["refused"] == ["determinant/Det"]
    assert facts["versions"]["onnxruntime-qnn"] == "2.7.0"
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    again = subprocess.run([sys.executable, *facts["command"].split()[1:]], cwd=moved, capture_output=True, text=True,
                           check=False, timeout=60)
    assert again.returncode == 1
    assert "determinant/Det" in again.stdout + again.stderr


def test_a_convolution_that_mixes_dtypes(tmp_path: Path) -> None:
    g = small.Small()
    w = g.weight("w", np.random.default_rng(0).normal(0, 0.1, (64, 64, 1, 1)).astype(np.float32))
    x = g.q(g.op("Relu", [g.input("x", 1, 64, 1, 32)], "first"))
    y = g.q(g.op("Conv", [x, w], "conv", kernel_shape=[1, 1]), 8)
    g.output(g.op("Relu", [g.q(y)], "last"), 1, 64, 1, 32)
    found = search(saved(tmp_path, g.model()), tmp_path / "out")
    assert found.verified
    assert operators(found) == {"Conv"}


@pytest.mark.parametrize(("how", "kind", "timeout_s"), [
    ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", 60.0), ("os.abort()", "crashed", 60.0),
    ("time.sleep(600)", "hung", 3.0),
])
def test_a_crash_and_a_hang_on_one_operator(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: str, timeout_s: float) -> None:
    break_on(monkeypatch, ["Sigmoid"], how)
    found = search(saved(tmp_path, chain("Sigmoid", before=0, after=0).model()), tmp_path / "out", timeout_s)
    assert found.ending.kind == kind
    assert found.verified
    assert operators(found) == {"Sigmoid"}
    assert found.ending.lines == ("optimising",)


def test_a_crash_that_needs_two_operators_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_on(monkeypatch, ["Sigmoid", "Relu"], "os.abort()")
    found = search(saved(tmp_path, chain("Sigmoid", before=3, after=3).model()), tmp_path / "out")
    assert operators(found) == {"Sigmoid", "Relu"}
    assert found.units[0] == 2
    assert found.verified


def reciprocal() -> onnx.ModelProto:
    """A range without 1.0: HTP's constant 1 saturates (a wrong-result trap: it compiles cleanly)."""
    g = small.Small()
    g.const("low", np.float32(0.5 / 65535))
    g.const("none", np.uint16(0))
    y = g.input("x", 1, 1, 8, 8)
    for i in range(4):
        y = g.q(g.op("Relu", [y], f"relu{i}"))
    codes = g.op("QuantizeLinear", [y, "low", "none"], "narrow")
    y = g.op("DequantizeLinear", [codes, "low", "none"], "narrow.dq")
    y = g.q(g.op("Reciprocal", [y], "reciprocal"))
    y = g.q(g.op("Add", [y, y], "twice"))
    g.output(g.op("Relu", [y], "last"), 1, 1, 8, 8)
    return g.model()


def test_wrong_numbers_of_a_reciprocal(tmp_path: Path) -> None:
    feeds = tmp_path / "feeds.npz"
    real = np.random.default_rng(0).uniform(0.2, 0.5, (1, 1, 8, 8))
    np.savez(feeds, x=np.round(real * 4096 + 32768).astype(np.uint16))
    found = search(saved(tmp_path, reciprocal()), tmp_path / "out", below_db=30, feeds=feeds)
    assert found.ending.kind == "wrong"
    assert operators(found) == {"Reciprocal"}
    assert found.verified
    assert "dB off the CPU in reciprocal.q" in found.ending.words


def test_wrong_numbers_of_a_product_of_two_activations(tmp_path: Path) -> None:
    """HTP rounds the second operand of u16 x u16 to u8 on its own; both sides are computed, so no grid shows it."""
    g = small.Small()
    a, b = (g.q(g.op("Relu", [g.input(n, 1, 1, 32, 32)], f"{n}.relu")) for n in ("a", "b"))
    g.const("wide", np.float32(1 / 512))
    codes = g.op("QuantizeLinear", [g.op("MatMul", [a, b], "product"), "wide", "zero"], "product.q")
    y = g.op("DequantizeLinear", [codes, "wide", "zero"], "product.qdq")
    g.output(g.op("Tanh", [y], "last"), 1, 1, 32, 32)
    feeds = tmp_path / "feeds.npz"
    draw = np.random.default_rng(0)
    np.savez(feeds, **{n: draw.integers(32768, 36000, (1, 1, 32, 32)).astype(np.uint16) for n in ("a", "b")})
    found = search(saved(tmp_path, g.model()), tmp_path / "out", below_db=60, feeds=feeds)
    assert operators(found) == {"MatMul"}
    assert found.verified
    assert {v.name for v in onnx.load(found.folder / run.MODEL).graph.input} == {"a.relu.q", "b.relu.q"}


def test_a_job_over_its_memory_limit_is_tried_with_the_same_limit(compiler: Compiler, tmp_path: Path) -> None:
    job = compiler.job("part", small.conv(32))
    with pytest.raises(ChildFailed):
        compile_part(job, 60, 60 << 20)
    trials = trial.of_job(job.failure)
    assert trials is not None
    found = run.bisect(trials, tmp_path / "out", 60, None, lambda text: None)
    assert found.ending.kind == "memory"
    assert "limit of 60 MiB" in found.ending.words


def test_numeric_mode_says_when_there_is_nothing_to_compare(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(CompilerError, match="nothing is below 20 dB"):
        run.bisect([trial.of_file(saved(tmp_path, refused()), None, CHIP)], tmp_path / "out", 60, 20, said.append)
    assert "does not even compile" in said[-1]


def test_ctrl_c_keeps_the_smallest_piece_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_on(monkeypatch, ["Sigmoid"], "os.abort()")
    model = saved(tmp_path, chain("Sigmoid", before=6, after=6).model())
    tries = 0

    def say(text: str) -> None:
        nonlocal tries
        tries += text.startswith("try ")
        if tries == 2 and text.startswith("try "):
            raise KeyboardInterrupt

    found = run.bisect([trial.of_file(model, None, CHIP)], tmp_path / "out", 60, None, say)
    assert found.stopped
    assert not found.verified
    assert 1 < found.units[0] < found.units[1]
    assert "Sigmoid" in operators(found)
    assert json.loads((found.folder / run.REPRO).read_text())["stopped_early"]


def test_what_compiles_is_not_bisected_and_nothing_is_written(tmp_path: Path) -> None:
    model = saved(tmp_path, chain(before=1, after=1).model())
    done = CliRunner().invoke(cli.app, ["bisect", str(model), "--chip", CHIP.name, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "nothing is refused, crashes or hangs when compiled alone" in done.output
    with pytest.raises(CompilerError, match=r"nothing is below 20 dB"):
        search(model, tmp_path / "out", below_db=20)
    assert not (tmp_path / "out").exists()


def test_a_job_whose_files_are_gone_or_damaged_and_a_foreign_folder(compiler: Compiler, tmp_path: Path) -> None:
    job = compiler.job("part", refused())
    with pytest.raises(ChildFailed):
        compile_part(job, 60)
    job.graphs[0].onnx.unlink()
    with pytest.raises(CompilerError, match=r"no such file: .*part0\.onnx"):
        trial.of_job(job.failure)
    (job.failure / "job.json").write_text("{")
    with pytest.raises(CompilerError, match="is not a compile job"):
        trial.of_job(job.failure)
    assert trial.of_job(tmp_path) is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(EdgeForgeError, match="is not a bisect's folder"):
        search(tmp_path / "any.onnx", tmp_path / "mine")


def test_another_failure_than_the_builds_is_not_taken_for_it(compiler: Compiler, tmp_path: Path) -> None:
    """The job crashed in the build; alone its graph is refused: that is not what was asked about."""
    job = compiler.job("part", refused())
    with pytest.raises(ChildFailed):
        compile_part(job, 60)
    path = job.failure / FAILURE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kind": "crashed", "signal": "SIGSEGV"}))
    trials, said = trial.of_job(job.failure), []
    assert trials is not None
    with pytest.raises(CompilerError, match="when compiled alone"):
        run.bisect(trials, tmp_path / "out", 60, None, said.append)
    assert "another failure" in said[-1]
