"""ONNX Runtime sessions on the QNN provider (worker processes only)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgeforge.backends.qnn import wheel

Arrays = Mapping[str, npt.NDArray[np.generic]]


def register() -> wheel.Wheel:
    """Loads the provider into this process, once."""
    found = wheel.find()
    ort.register_execution_provider_library(wheel.EP_NAME, str(found.library(wheel.PROVIDER)))
    return found


def open_session(
    model: Path,
    found: wheel.Wheel,
    options: Mapping[str, str],
    config: Mapping[str, str],
) -> ort.InferenceSession:
    """A session whose every node runs on the QNN provider, or no session at all.

    Args:
        model: QDQ ONNX, or an EPContext wrapper beside its binary.
        options: provider options beyond backend_path. config: session configuration entries.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 2  # the lines that name a rejected node are warnings
    settings.intra_op_num_threads = 1
    for key, value in {"session.disable_cpu_ep_fallback": "1", **config}.items():
        settings.add_session_config_entry(key, value)
    devices = [d for d in ort.get_ep_devices() if d.ep_name == wheel.EP_NAME][:1]
    if not devices:
        raise RuntimeError("ONNX Runtime registered the QNN provider but lists no device for it")
    settings.add_provider_for_devices(devices, {"backend_path": str(found.library(wheel.HTP)), **options})
    session = ort.InferenceSession(str(model), settings)
    session.disable_fallback()  # otherwise python retries a failed run() on CPU
    return session


def run(session: ort.InferenceSession, feeds: Arrays) -> dict[str, npt.NDArray[np.generic]]:
    """All outputs by name; extra feeds are ignored, a missing one is a KeyError."""
    names = [o.name for o in session.get_outputs()]
    return dict(
        zip(names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()}), strict=True)
    )
