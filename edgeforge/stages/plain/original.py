"""What the ONNX file itself answers to the samples that gates measure on: what all later figures are held against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from edgeforge_runtime.executors.cpu import exact_options

from edgeforge.build import Build
from edgeforge.calibrate.samples import Arrays, Samples
from edgeforge.errors import UnsupportedError
from edgeforge.export import record
from edgeforge.gates import Check

REFERENCE = "reference.npz"


def save_reference(build: Build, out: Path) -> Check:
    """Writes the answers: output -> [samples, *shape]. The check: how many outputs a gate can judge.

    Raises:
        UnsupportedError: onnxruntime does not run the file, or what it answers is not finite.
    """
    path, samples = build.onnx.path, build.onnx.samples
    options = exact_options()
    options.intra_op_num_threads = build.threads
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        made = [session.run(names, feeds) for feeds in samples.evaluation]
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise UnsupportedError(f"{path}: onnxruntime does not run it: {error}",
                               "the file itself, not what was made of it; does it run elsewhere?") from error
    answers = {n: np.stack([m[i] for m in made]) for i, n in enumerate(names)}
    _require_finite(build, answers)
    record.save_arrays(out / REFERENCE, answers)
    return judged(answers, samples)


def _require_finite(build: Build, answers: Arrays) -> None:
    samples = build.onnx.samples
    for index, feeds in enumerate(samples.evaluation):
        for name, array in answers.items():
            if not np.isfinite(array[index]).all():
                kind = "NaN" if np.isnan(array[index]).any() else "infinity"
                fed = ", ".join(f"{n!r} from {a.min():.4g} to {a.max():.4g}" for n, a in feeds.items())
                raise UnsupportedError(
                    f"{build.onnx.path}: before anything was done to it, the model answers sample "
                    f"{samples.first_evaluated + index} of {build.onnx.calibration} ({fed}) with {kind} in output "
                    f"{name!r}", "nothing can be measured against that: mend or drop the sample if the model was not "
                    "made for such inputs (were they normalised?), else the model: one of its values leaves the range "
                    "of its numbers")


def judged(answers: Mapping[str, npt.NDArray[Any]], samples: Samples) -> Check:
    """A figure that fails where no output could: a number that stands everywhere, or an answer that is the same
    whatever goes in, is met by any graph that forgot its inputs.

    Args:
        answers: output -> [samples, *shape].
    """
    alike = {name: why for name, array in answers.items() if (why := _alike(array, samples.evaluation))}
    note = "; ".join(f"{name} {why}" for name, why in alike.items())
    if len(alike) == len(answers):
        note += ": give samples in model.calibration that it tells apart"
    return Check("optimize: outputs that samples tell apart", len(answers) - len(alike), f"of {len(answers)}", 1,
                 note=note)


def _alike(array: npt.NDArray[Any], feeds: list[Arrays]) -> str:
    """Why an output's answers [samples, ...] say nothing; empty when they do, or when there is no second to compare."""
    if array.size > 1 and (array == array.flat[0]).all():
        return f"is {array.flat[0].item():g} throughout"
    varied = any(not np.array_equal(first, one[name]) for one in feeds for name, first in feeds[0].items())
    if varied and (array == array[0]).all():
        return f"is the same for {len(array)} different samples"
    return ""
