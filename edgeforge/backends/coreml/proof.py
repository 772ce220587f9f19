"""One product of a vector with codes of 4 bits: written, read from disk, executed."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def product(path: Path) -> str:
    """What is wrong with it; empty when nothing is. path: where to write the package."""
    from edgeforge.backends.coreml import mil, package
    from edgeforge.backends.coreml.interpret.run import Interpreter

    codes = np.arange(-8, 8).reshape(4, 4, 1, 1)
    with mil.function({"x": ((1, 4, 1, 1), mil.FLOAT16)}) as made:
        weight = mil.mb.constexpr_blockwise_shift_scale(
            data=codes.astype(mil.integers(4, True)), scale=np.full((4, 1, 1, 1), 0.5, np.float16))
        made.set_outputs([mil.mb.conv(x=made.inputs["x"], weight=weight, pad_type="valid", name="y")])
    package.write({"main": made}, "main", path, {})
    found = Interpreter.open(path).run("main", {"x": np.ones((1, 4, 1, 1))})["y"].ravel()
    wanted = codes.sum((1, 2, 3)) * 0.5
    return "" if np.array_equal(found, wanted) else f"it makes {found.tolist()}, not {wanted.tolist()}"
