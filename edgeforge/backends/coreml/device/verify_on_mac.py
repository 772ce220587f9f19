"""On a Mac: does this package compute there what it computed where it was built, where does each op run, how fast?

    pip install "coremltools>=9" numpy
    python verify_on_mac.py [--units CPU_AND_NE]

Reads the packages, golden/*.npz (recorded calls) and golden/units (what they were built for) beside this file. Prints
one JSON object; exit code 1 when an output of a function is below --least dB. Only numpy and coremltools are needed;
both are imported on the Mac alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
IN, OUT, STATE, UNITS = "in:", "out:", "state:", "units"
WARM, TIMED = 3, 20


def golden(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs of one recorded call."""
    return side(path, IN), side(path, OUT)


def side(path: Path, which: str) -> dict[str, Any]:
    """What stands under a prefix: IN, OUT, or STATE, which is what the model kept before the call."""
    with np.load(path, allow_pickle=False) as held:
        return {n.removeprefix(which): held[n] for n in held.files if n.startswith(which)}


def named(path: Path) -> tuple[Path, str]:
    """The package and the function that a recorded call is of: `<function>.npz`, `<package>.<function>.npz`."""
    *package, function = path.stem.split(".")
    return HERE / f"{package[0] if package else 'model'}.mlpackage", function


def sqnr_db(expected: Any, made: Any) -> float:
    """10 log10(|expected|^2 / |expected - made|^2)."""
    theirs, ours = np.asarray(expected, np.float64), np.asarray(made, np.float64).reshape(np.shape(expected))
    noise = float(np.square(theirs - ours).sum())
    power = float(np.square(theirs).sum())
    if not math.isfinite(noise) or (noise and not power):
        return -math.inf
    return 10 * math.log10(power / noise) if noise else math.inf


def compare(expected: dict[str, Any], made: dict[str, Any]) -> dict[str, float]:
    """dB of every output; one that is missing has none at all."""
    return {name: sqnr_db(array, made[name]) if name in made else -math.inf for name, array in expected.items()}


def measure(call: Path, units: str) -> dict[str, Any]:
    """One function on these compute units: its numbers, its time, and the device of each op. Where the model keeps the
    cache, a call writes the same slots each time."""
    import coremltools as ct

    package, function = named(call)
    model = ct.models.MLModel(str(package), function_name=function, compute_units=ct.ComputeUnit[units])
    inputs, expected = golden(call)
    kept = side(call, STATE)
    state: Any = model.make_state() if kept else None
    for name, array in kept.items():
        state.write_state(name, array)
    for _ in range(WARM):
        made = model.predict(inputs, state=state)
    times = []
    for _ in range(TIMED):
        begun = time.perf_counter()
        model.predict(inputs, state=state)
        times.append(1000 * (time.perf_counter() - begun))
    decibels = compare(expected, made)
    return {"decibels": {n: db if math.isfinite(db) else str(db) for n, db in decibels.items()},
            "worst": min(decibels.values()), "milliseconds": statistics.median(times),
            "devices": placement(model.get_compiled_model_path(), function, units)}


def placement(compiled: str, function: str, units: str) -> dict[str, dict[str, int]]:
    """Number of ops by the device that Core ML prefers for them, and by type."""
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(path=compiled, compute_units=ct.ComputeUnit[units])
    found: dict[str, Counter[str]] = {}
    for op in plan.model_structure.program.functions[function].block.operations:
        usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
        if usage is not None:  # constants have no device
            device = type(usage.preferred_compute_device).__name__
            found.setdefault(device, Counter())[op.operator_name] += 1
    return {device: dict(kinds.most_common()) for device, kinds in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    meant = (GOLDEN / UNITS).read_text(encoding="utf-8").strip() if (GOLDEN / UNITS).is_file() else "CPU_AND_NE"
    parser.add_argument("--units", default=meant, choices=("ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"),
                        help="what to run on; default: what the package was built for")
    parser.add_argument("--least", type=float, default=35.0, help="dB of every output (default 35)")
    options = parser.parse_args()
    if sys.platform != "darwin":
        print("error: Core ML runs on macOS only; copy this folder to a Mac", file=sys.stderr)
        return 2
    found = {path.stem: measure(path, options.units) for path in sorted(GOLDEN.glob("*.npz"))}
    worst = min((f.pop("worst") for f in found.values()), default=-math.inf)
    print(json.dumps({"units": options.units, "functions": found}, indent=1))
    return int(worst < options.least)


if __name__ == "__main__":
    sys.exit(main())
