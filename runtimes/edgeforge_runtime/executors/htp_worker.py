"""The child process of the qnn-htp executor: loads wrapper files, answers runs, until stdin ends."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

import onnxruntime as ort
import onnxruntime_qnn as qnn

from .base import Arrays

_EP = "QNNExecutionProvider"


class _Host:
    def __init__(self) -> None:
        self._sessions: dict[str, ort.InferenceSession] = {}

    def load(self, files: dict[str, str], options: dict[str, str]) -> None:
        ort.register_execution_provider_library(_EP, qnn.get_library_path())
        devices = [d for d in ort.get_ep_devices() if d.ep_name == _EP][:1]
        if not devices:
            raise RuntimeError("onnxruntime-qnn offers no device on this machine")
        for name, path in files.items():
            settings = ort.SessionOptions()
            settings.log_severity_level = 3
            settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **options})
            session = ort.InferenceSession(path, settings)
            session.disable_fallback()
            self._sessions[name] = session

    def run(self, file: str, outputs: list[str], feeds: Arrays) -> list[Any]:
        return list(self._sessions[file].run(outputs, feeds))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers (True, result) or (False, message) to each (method, *arguments) until requests end."""
    host = _Host()
    while True:
        try:
            method, *arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = (True, getattr(host, method)(*arguments))
        except Exception as error:  # anything that the library throws goes to the parent as text
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


def _private_stdout() -> BinaryIO:
    """stdout for answers only: what the library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    serve(sys.stdin.buffer, _private_stdout())
