"""Ctrl-C where Python or an extension would swallow it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SWALLOWED = """
import os, signal
from edgeforge import interrupt
interrupt.listen()
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass
Dying()
print("went on", interrupt.asked(), flush=True)
interrupt.check()
"""
OTHER = """
from edgeforge import interrupt
interrupt.listen()
class Dying:
    def __del__(self):
        raise ValueError("of the finalizer")
Dying()
"""
BEGUN = """
import os, pathlib, signal, sys
from edgeforge import cache, interrupt
interrupt.listen()
real = os.mkdir
def mkdir(*args, **kwargs):
    real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGINT)
os.mkdir = mkdir
with cache.whole(pathlib.Path(sys.argv[1]) / "place"):
    print("begun", flush=True)
"""
CAUGHT = """
import os, pathlib, signal, sys
from edgeforge import cache, interrupt
interrupt.listen()
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        pass
except KeyboardInterrupt:
    with cache.whole(pathlib.Path(sys.argv[1]) / "place") as folder:
        (folder / "best so far").touch()
"""
IMPORTED = """
import os, signal, sys
from edgeforge import cli
def build(*args, **kwargs):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass
    except KeyboardInterrupt:
        raise ImportError("an extension's own words") from None
cli.app.registered_commands.clear()
cli.app.command("build")(lambda: build())
cli.app.command("other")(lambda: None)
sys.argv = ["edgeforge", "build"]
cli.main()
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children would ignore it
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)


def test_an_interrupt_in_a_finalizer_is_remembered_and_not_printed() -> None:
    done = run(SWALLOWED)
    assert done.stdout == "went on True\n"
    assert "Exception ignored" not in done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), "raised where the build asks"
    assert done.returncode not in (0, 1)


def test_an_interrupt_between_a_folder_and_its_undoing_leaves_nothing(tmp_path: Path) -> None:
    done = run(BEGUN, str(tmp_path))
    assert done.stdout == ""
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert not list(tmp_path.iterdir())


def test_who_caught_an_interrupt_may_still_save(tmp_path: Path) -> None:
    """As bisect does."""
    done = run(CAUGHT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "place" / "best so far").exists()


def test_other_errors_of_finalizers_are_told_as_ever() -> None:
    assert "ValueError: of the finalizer" in run(OTHER).stderr


def test_an_interrupt_that_became_another_error_ends_in_130() -> None:
    done = run(IMPORTED)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ignored", [True, False])
def test_a_background_job_goes_on_ignoring_it(ignored: bool) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    code += ("import signal; from edgeforge import interrupt; interrupt.listen()\n"
             "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)")
    assert run(code).stdout == f"{ignored}\n"
