"""qnn-htp: Qualcomm context binaries (or, on x86, their emulator) in a child process.

The library ends its process with SIGSEGV on binaries that it dislikes, so it never lives in ours.
Requests and answers are pickles over the child's stdin and stdout: both ends are this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgeforge_runtime.errors import ExecutorError
from edgeforge_runtime.manifest import Graph, Part, Target

from .base import Arrays, run_parts

_WORKER = "edgeforge_runtime.executors.htp_worker"
_LOG_TAIL = 1500


class HtpExecutor:
    """Runs EPContext wrapper files (.onnx beside its .bin) through onnxruntime-qnn."""

    def __init__(self, target: Target, folder: Path) -> None:
        if importlib.util.find_spec("onnxruntime_qnn") is None:
            raise ExecutorError("this target needs onnxruntime-qnn: pip install 'edgeforge-runtime[qnn]'")
        files = dict.fromkeys(part.file for graph in target.graphs for part in graph.parts)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        package_root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        self._child = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent, which then closes the child
        )
        try:
            self._ask("load", {f: str((folder / f).resolve()) for f in files}, dict(target.options))
        except ExecutorError:
            self.close()
            raise

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Ends the child process."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(OSError):  # bytes that a dead child never took
                    pipe.close()

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        names = [t.name for t in part.outputs]
        arrays = self._ask("run", part.file, names, feeds)
        return dict(zip(names, arrays, strict=True))

    def _ask(self, *request: Any) -> Any:
        """Sends one request; ExecutorError holds the child's complaint, or how it died."""
        if self._child.stdin is None or self._child.stdout is None or self._child.stdin.closed:
            raise ExecutorError("the executor is closed")
        try:
            pickle.dump(request, self._child.stdin, protocol=5)
            self._child.stdin.flush()
            ok, answer = pickle.load(self._child.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ExecutorError(self._obituary(request)) from error
        if not ok:
            raise ExecutorError(f"QNN refused to {request[0]} {_subject(request)}: {answer}")
        return answer

    def _obituary(self, request: tuple[Any, ...]) -> str:
        code = self._child.wait()
        try:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            how = f"signal {-code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL))
        tail = self._log.read().decode(errors="replace").strip()
        hint = ""
        if request[0] == "load" and code < 0:
            hint = " (the x86 emulator cannot load weight-shared binaries: use the bundle's unshared twin)"
        what = f"{request[0]} {_subject(request)}"
        return f"QNN died with {how} while it tried to {what}{hint}\n{tail}".rstrip()


def _subject(request: tuple[Any, ...]) -> str:
    return ", ".join(request[1]) if isinstance(request[1], dict) else str(request[1])
