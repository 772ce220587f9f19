"""What the command line prints where nobody looks at it: one line a sentence; and its version."""

from __future__ import annotations

import subprocess
import sys

from builds import cli

import edgeforge


def test_a_sentence_in_a_log_is_one_line() -> None:
    """CI greps for it; wrapped at 80 columns it is not found."""
    code = "from edgeforge.cli.console import OUT, ERR; OUT.print('word ' * 100); ERR.print('word ' * 100)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("\n") == done.stderr.count("\n") == 1


def test_the_version() -> None:
    done = cli("--version")
    assert (done.returncode, done.stdout) == (0, f"edgeforge {edgeforge.__version__}\n")
