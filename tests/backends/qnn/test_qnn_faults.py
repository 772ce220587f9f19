"""Each way in which the compiler, its wheel or its output can be broken, made to happen."""

from __future__ import annotations

import importlib
import platform
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import qnn_small_graphs as small
from qnn_fixtures import Compiler

from edgeforge.backends import faults, orphan, process
from edgeforge.backends.ending import ChildFailed, Ending
from edgeforge.backends.qnn import binary, compiler, decoder, emulator, wheel
from edgeforge.backends.qnn.compiler import PartJob, compile_part, recorded
from edgeforge.backends.qnn.faults import FAULTS
from edgeforge.errors import CompilerError

EAT = "held = []\nwhile True: held.append(bytearray(b'x' * (16 << 20))); time.sleep(0.02)"
REAL = "from edgeforge.backends.qnn.worker import main; main(sys.argv[1:])\n"


def worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The compiler's child becomes this code; its argument is job.json."""
    head = "import json, os, signal, sys, time; from pathlib import Path; here = Path(sys.argv[1]).parent\n"
    monkeypatch.setattr(compiler, "WORKER", (sys.executable, "-c", head + code))


def failure(job: PartJob, timeout_s: float = 60, memory_bytes: int | None = None) -> tuple[Ending, str]:
    """The ending and the whole message; checks what holds for every failure."""
    with pytest.raises(ChildFailed) as caught:
        compile_part(job, timeout_s, memory_bytes)
    text = str(caught.value)
    assert text.startswith(f"part {job.name} ({', '.join(g.name for g in job.graphs)}): the HTP compiler ")
    assert f"edgeforge bisect {job.failure}" in text
    assert f"python -m edgeforge.backends.qnn.worker {job.failure / 'job.json'}" in text
    assert recorded(job.failure) == (caught.value.ending, memory_bytes)
    assert not job.out.exists()
    assert not job.out.with_name(job.out.name + ".partial").exists()
    assert not [c for c in psutil.Process().children(recursive=True) if "job.json" in " ".join(c.cmdline())]
    return caught.value.ending, text


def test_memory_over_the_limit(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, EAT)
    ending, text = failure(compiler.job("part", small.conv(1)), memory_bytes=150 << 20)
    assert ending.kind == "memory"
    assert "limit of 150 MiB" in text
    assert "MiB at its largest" in text
    assert "split.part_bytes" in text
    assert "compile.memory_mb" in text


def test_the_real_compiler_over_the_limit(compiler: Compiler) -> None:
    ending, _ = failure(compiler.job("part", small.conv(128, 2048)), memory_bytes=100 << 20)
    assert ending.kind == "memory"


def test_hang(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "print('optimising', flush=True); time.sleep(600)")
    ending, text = failure(compiler.job("part", small.conv(1)), timeout_s=1)
    assert ending.kind == "hung"
    assert ending.lines == ("optimising",)
    assert "compile.timeout_s" in text


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_signals(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    worker(monkeypatch, f"print('last words', flush=True); os.kill(os.getpid(), signal.{name})")
    ending, text = failure(compiler.job("part", small.conv(1)))
    assert (ending.kind, ending.signal, ending.lines) == ("crashed", name, ("last words",))
    assert ("out of memory" in text) == (name == "SIGKILL")


@pytest.mark.parametrize(("code", "words"), [
    ("pass", "result.json: FileNotFoundError"),
    ("(here / 'result.json').write_text('{')", "result.json: JSONDecodeError"),
    ("(here / 'result.json').write_text('[1]')", "result.json: TypeError"),
    ("(here / 'result.json').write_text('{\"graphs\": []}')", "result.json: KeyError"),
    (REAL + "p = here / 'part.bin'; p.write_bytes(p.read_bytes()[:5000])", "cannot read .*part.bin"),
    (REAL + "(here / 'part.bin').write_bytes(bytes(range(256)) * 64)", "cannot read .*part.bin"),
    (REAL + "(here / 'part.bin').unlink()", "cannot read .*part.bin"),
])
def test_a_compiler_that_ends_well_and_leaves_garbage(
        compiler: Compiler, monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    worker(monkeypatch, code)
    ending, _ = failure(compiler.job("part", small.conv(1)))
    assert ending.kind == "garbage"
    assert re.search(words, ending.words)


def test_a_refused_node_brings_cause_and_remedy(compiler: Compiler) -> None:
    ending, text = failure(compiler.job("bad", small.unsupported()))
    assert ending.kind == "refused"
    assert ending.nodes == {"determinant/Det"}
    assert "the HTP compiler does not take a node" in text


def fake_wheel(folder: Path, broken: str, content: bytes | None) -> Path:
    """The installed wheel again, with one library replaced (None: left out)."""
    package = folder / "shadow" / wheel.PACKAGE
    package.mkdir(parents=True)
    for path in wheel.find().folder.iterdir():
        if path.name == broken:
            if content is not None:
                (package / broken).write_bytes(content)
        elif path.is_file():
            (package / path.name).symlink_to(path)
    return package.parent


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(100)


@pytest.mark.parametrize(("library", "content", "words"), [
    (wheel.HTP, None, "has no libQnnHtp.so"),
    (wheel.PREPARE, b"", "libHtpPrepare.so is not a Linux library"),
    (wheel.PROVIDER, b"garbage" * 100, "is not a Linux library"),
    (wheel.HTP, "cut", "libQnnHtp.so is truncated: 4,096 bytes of at least"),
    (wheel.HTP, elf(0xB7), f"is built for aarch64, and this machine is {platform.machine()}"),
])
def test_a_broken_wheel_is_named_before_the_compiler_starts(
        compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        library: str, content: bytes | str | None, words: str) -> None:
    job = compiler.job("part", small.conv(1))
    if content == "cut":
        content = (wheel.find().folder / library).read_bytes()[:4096]
    assert not isinstance(content, str)
    monkeypatch.syspath_prepend(fake_wheel(tmp_path, library, content))
    with pytest.raises(CompilerError, match=words) as caught:
        compile_part(job, 60)
    assert "pip install --force-reinstall" in caught.value.hint
    assert not job.out.exists()
    assert faults.in_text(FAULTS, caught.value.message)[0].name == "damaged library"


def test_the_readers_garbage_is_an_error(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    part = compiler("part", small.conv(1))
    for code in ("pass", "import sys; open(sys.argv[2], 'w').write('[{}]')"):
        monkeypatch.setattr(binary, "READER", (sys.executable, "-c", code))
        with pytest.raises(CompilerError, match="no usable answer"):
            binary.read_binary(part.binary)


@pytest.mark.parametrize(("code", "words"), [
    ("import time; time.sleep(600)", "did not finish within 1 s"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    ("import time\n" + EAT, "limit of 150 MiB"),
    ("pass", "left no readable outputs"),
])
def test_the_emulator_is_held_to_the_same(
        compiler: Compiler, monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    part = compiler("part", small.conv(1))
    monkeypatch.setattr(emulator, "WORKER", (sys.executable, "-c", code))
    feeds = [{"x": np.zeros((1, 1, 1, 64), np.uint16)}]
    limit = 1 if "did not" in words else 60
    with pytest.raises(CompilerError, match=rf"part part, graph part0: the HTP emulator .*{words}"):
        emulator.emulate(part, "part0", feeds, limit, 150 << 20)


@pytest.mark.parametrize(("damage", "name"), [
    ("truncated", "damaged binary"), ("garbage", "damaged binary"), ("empty", "damaged binary"),
    ("missing", "missing binary"), ("shared", "shared weights on x86"),
])
def test_binaries_that_do_not_load(compiler: Compiler, damage: str, name: str) -> None:
    """What the runtime's and the emulator's log says of each is in the table, with its remedy."""
    if damage == "shared":
        device = compiler("part", small.conv(4, 512), small.conv(1, 512), sharing=True)
        with pytest.raises(CompilerError, match="SIGSEGV"):
            emulator.emulate(replace(device, weight_sharing=False), "part0", [], 60)
        with pytest.raises(CompilerError) as caught:
            emulator.emulate(device, "part0", [], 60)
        assert "twin" in caught.value.hint
        return
    part = compiler("part", small.conv(1))
    whole = part.binary.read_bytes()
    part.binary.unlink()
    content = {"truncated": whole[: len(whole) // 2], "garbage": bytes(range(256)) * 64, "empty": b""}
    if damage in content:
        part.binary.write_bytes(content[damage])
    with pytest.raises(CompilerError) as caught:
        emulator.emulate(part, "part0", [{"x": np.zeros((1, 1, 1, 64), np.uint16)}], 60)
    found = faults.in_text(FAULTS, caught.value.message)
    assert [f.name for f in found] == [name]
    assert found[0].remedy in caught.value.hint
    assert found[0].reproduced


def test_too_little_memory_for_two_at_once_compiles_one_after_the_other(
        compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is free stops both; all of it is enough for one."""
    worker(monkeypatch, "held = bytearray(b'x' * (200 << 20)); time.sleep(0.6)\n" + REAL)
    monkeypatch.setattr(decoder.process, "free_bytes", lambda: 500 << 20)
    jobs = [compiler.job(n, small.conv(1)) for n in ("one", "two")]
    said: list[str] = []
    limits = type("L", (), {"timeout_s": 60.0, "memory_mb": None})
    build = type("B", (), {"say": staticmethod(said.append), "recipe": type("R", (), {"compile": limits})})
    parts = decoder._compile_pair(build, jobs, "part")  # type: ignore[arg-type]
    assert [p.name for p in parts] == ["one", "two"]
    assert "one after the other" in said[0]
    limits.memory_mb = 150  # a limit that the recipe gives is kept
    with pytest.raises(ChildFailed, match="limit of 150 MiB"):
        decoder._compile_pair(build, jobs, "part")  # type: ignore[arg-type]


def test_a_compiler_that_was_stopped_for_its_sibling_leaves_no_failure(
        compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "good = json.loads((here / 'job.json').read_text())['name'] == 'good'\n"
           "(here.parent / f'{here.name}.up').write_text('')\n"
           "while not good and not (here.parent / 'good.partial.up').exists(): time.sleep(0.05)\n"
           "time.sleep(600 if good else 0); sys.exit(7)")
    jobs = [compiler.job(n, small.conv(1)) for n in ("good", "bad")]
    limits = type("L", (), {"timeout_s": 60.0, "memory_mb": None})
    build = type("B", (), {"recipe": type("R", (), {"compile": limits})})
    with pytest.raises(ChildFailed, match="part bad .*exited with code 7"):
        decoder._compile(build, jobs, 2)  # type: ignore[arg-type]
    good, bad = jobs
    assert recorded(bad.failure)[0] is not None
    assert not good.failure.exists(), "nothing is wrong with it"
    assert not good.out.exists()
    assert not good.out.with_name("good.partial").exists()


def test_ctrl_c_leaves_no_failure(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*command: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run_child", interrupted)
    job = compiler.job("part", small.conv(1))
    with pytest.raises(KeyboardInterrupt):
        compile_part(job, 60)
    assert not [p for p in (job.out, job.failure, job.out.with_name(job.out.name + ".partial")) if p.exists()]


def test_the_wheel_is_named_with_its_version_in_one_place() -> None:
    home = Path(wheel.__file__).parents[2]
    pinned = [p.name for p in home.rglob("*.py") if f"{wheel.DISTRIBUTION}==" in p.read_text(encoding="utf-8")]
    assert pinned == [], "wheel.TESTED says which"


def test_codes_are_found_however_they_are_written() -> None:
    for code in ("1002", "0x3ea", "0x3EA"):
        assert [f.name for f in faults.by_code(FAULTS, code)] == ["no room in a process domain"]
    for code in ("0x80000416", "2147484694", "-2147482602"):
        assert [f.name for f in faults.by_code(FAULTS, code)] == ["skel not found"]
    assert faults.by_code(FAULTS, "77") == faults.by_code(FAULTS, "abc") == []


def test_every_row_says_where_it_was_seen() -> None:
    assert len({f.name for f in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.reproduced or fault.seen.startswith("seen in public threads, not reproduced here: ")
        assert fault.codes or fault.phrase


def test_the_compiler_ends_with_a_parent_that_was_killed(compiler: Compiler) -> None:
    """kill -9 of a build must not leave a compiler at work for minutes."""
    job = compiler.job("part", small.conv(512, 4096))
    job.save(compiler.folder / "given.json")
    code = ("from pathlib import Path; from edgeforge.backends.qnn.compiler import PartJob, compile_part\n"
            f"compile_part(PartJob.load(Path({str(compiler.folder / 'given.json')!r})), 300)")
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (found := [c for c in psutil.Process(parent.pid).children() if "job.json" in " ".join(c.cmdline())]):
            assert parent.poll() is None
            time.sleep(0.05)
        while not (compiler.folder / "part.partial" / "dumps").exists():  # it is at work, deaf to Python's signals
            assert parent.poll() is None
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(found, timeout=5)
    assert not alive
    assert not list((compiler.folder / "part.partial").glob("*.bin"))


@pytest.mark.parametrize("name", ["worker", "emulator_worker", "binary_worker", "genie_worker"])
def test_no_worker_is_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks the kernel first; a process started by hand, without the variable, is left alone."""
    module = importlib.import_module(f"edgeforge.backends.qnn.{name}")

    def asked() -> None:
        raise StopIteration

    monkeypatch.setattr(orphan, "end_with_parent", asked)
    with pytest.raises(StopIteration):
        module.main([])
