"""What really goes through a graph: every value at which it can be cut, computed on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from edgeforge_runtime.executors.cpu import exact_options

from edgeforge.errors import EdgeForgeError

Arrays = dict[str, npt.NDArray[np.generic]]


def feeds_for(graph: ir.Graph, given: Mapping[str, npt.NDArray[np.generic]] | None) -> Arrays:
    """The given arrays, checked, or fixed random ones: whole code range for 8 and 16 bits, 0 and 1 for wider integers.

    Raises:
        EdgeForgeError: a dimension without a size, or a given array is missing or has another type or shape.
    """
    rng = np.random.default_rng(0)
    feeds: Arrays = {}
    for value in graph.inputs:
        shape = tuple(value.shape.numpy()) if value.shape is not None and value.shape.is_static() else None
        if shape is None or value.dtype is None:
            raise EdgeForgeError(f"input {value.name} has dimensions without a size ({value.shape})",
                                 "bind every dimension first: compilers for accelerators want fixed shapes")
        dtype = value.dtype.numpy()
        if given is not None:
            array = given.get(str(value.name))
            if array is None or array.dtype != dtype or array.shape != shape:
                found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
                raise EdgeForgeError(f"input {value.name} is {dtype}{list(shape)}, and the feeds hold {found}")
            feeds[str(value.name)] = array
        elif dtype.kind in "iu":
            low, high = (0, 1) if dtype.itemsize > 2 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            feeds[str(value.name)] = rng.integers(low, high, shape, dtype, endpoint=True)
        else:
            feeds[str(value.name)] = rng.normal(size=shape).astype(dtype)
    return feeds


def compute(model: ir.Model, wanted: Sequence[ir.Value], feeds: Arrays, work: Path) -> Arrays:
    """Values of model by name, on onnxruntime's CPU without optimisation; graph inputs are the feeds themselves."""
    asked = [v for v in wanted if v.producer() is not None]
    before = list(model.graph.outputs)
    path = work / "values.onnx"
    try:
        model.graph.outputs.extend(v for v in asked if not v.is_graph_output())
        ir.save(model, path, external_data="values.data", size_threshold_bytes=1024)
    finally:
        model.graph.outputs[:] = before
    names = [str(v.name) for v in asked]
    try:
        session = ort.InferenceSession(str(path), exact_options(), providers=["CPUExecutionProvider"])
        made = session.run(names, feeds)
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise EdgeForgeError(f"the model does not run on the CPU either: {error}",
                             "mend that first: there is no reference to bisect against") from error
    return feeds | dict(zip(names, made, strict=True))


def declare(graph: ir.Graph, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Gives a graph's inputs and outputs the types and shapes that were seen."""
    for value in (*graph.inputs, *graph.outputs):
        array = arrays[str(value.name)]
        value.shape = ir.Shape(array.shape)
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
