"""What a target's graphs must agree on, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from .errors import ManifestError
from .manifest import COS, IDS, LOGITS, MASK, SIN, WRITE, Graph, Model, Target, Tensor, new_name, past_layer
from .rope import ARRAYS
from .typed import shown

_DTYPES = {"uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "float16", "float32", "float64"}
_CACHE_RANK = 4


def check(model: Model, target: Target) -> None:
    """Raises ManifestError where the decode loop could not feed a graph, or would mix two encodings.

    Every graph takes ids, mask, cos and sin (of two rotary tables perhaps), gives logits, and returns each
    cache tensor that it takes in the same encoding; that encoding is the same in all graphs. Where one takes
    `write_index`, all do, and none takes a cache: the executor keeps them.
    """
    if not target.graphs:
        raise ManifestError("the target has no graphs")
    if model.vocab_size < 1 or not 0 <= model.pad < 1 << 31 or model.context < 1:
        raise ManifestError(f"a vocabulary of {model.vocab_size}, padding id {model.pad}, context {model.context}")
    first: dict[str, Tensor] = {}
    for graph in target.graphs:
        where = f"graph ar{graph.ar}_cl{graph.cl}"
        inputs, outputs = graph.boundary()
        _require(where, inputs, (IDS, MASK, COS, SIN))
        _require(where, outputs, (LOGITS,))
        for tensor in (*inputs.values(), *outputs.values()):
            _check_dtype(where, tensor)
        if not 0 < graph.ar <= graph.cl:
            raise ManifestError(f"{where}: the width is not within the context")
        for name, shape in _feeds(graph, inputs).items():
            if inputs[name].shape != shape:
                raise ManifestError(f"{where}: {name} is {inputs[name].shape}, not {shape}")
        if (WRITE in inputs) is not (WRITE in target.graphs[0].boundary()[0]):
            raise ManifestError(f"{where}: it takes {WRITE}, or another graph does: all do, or none")
        if WRITE in inputs and (logit_rows(graph) != graph.ar or any(past_layer(name) for name in inputs)):
            raise ManifestError(f"{where}: with {WRITE} it takes no cache, and its logits have {graph.ar} rows")
        if logit_rows(graph) not in (1, graph.ar):
            raise ManifestError(f"{where}: logits {outputs[LOGITS].shape} are neither 1 nor {graph.ar} rows")
        if outputs[LOGITS].shape[-1] < model.vocab_size:
            raise ManifestError(f"{where}: logits {outputs[LOGITS].shape} lack ids of {model.vocab_size}")
        for name, tensor in inputs.items():
            kind = past_layer(name)
            if kind is None:
                continue
            _require(where, outputs, (new_name(name),))
            axis = model.key_axis if kind[0] == "key" else model.value_axis
            _check_cache(where, graph, axis, tensor, outputs[new_name(name)])
            _check_same(where, tensor, first.setdefault(name, tensor))
            _check_heads(where, tensor, first[name], axis)
    for graph in target.graphs:
        _require(f"graph ar{graph.ar}_cl{graph.cl}", graph.boundary()[1], tuple(map(new_name, first)))


def logit_rows(graph: Graph) -> int:
    """Rows of the graph's logits: AR, or 1 for the last token's alone."""
    shape = graph.boundary()[1][LOGITS].shape
    return int(np.prod(shape[:-1]))


def _feeds(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    rows = {name: (1, 1, graph.ar, *inputs[name].shape[-1:]) for name in ARRAYS if name in inputs}
    return {IDS: (1, graph.ar), MASK: (1, 1, graph.ar, graph.cl), **rows, **({WRITE: (1,)} if WRITE in inputs else {})}


def _require(where: str, have: Iterable[str], wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if name not in set(have)]
    if missing:
        raise ManifestError(f"{where} has no {', '.join(missing)}")


def _check_dtype(where: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        raise ManifestError(f"{where}: {tensor.name} has unknown dtype {shown(tensor.dtype)}")
    kind = np.dtype(tensor.dtype).kind
    if tensor.scale is not None and (kind not in "iu" or not tensor.scale > 0):
        raise ManifestError(f"{where}: {tensor.name} is {tensor.dtype} with scale {tensor.scale}")
    if tensor.scale is None and kind != "f" and tensor.name not in (IDS, WRITE):
        raise ManifestError(f"{where}: {tensor.name} holds {tensor.dtype} codes without a scale")
    limits = np.iinfo(tensor.dtype) if tensor.scale is not None else None
    if limits is not None and not limits.min <= tensor.zero_point <= limits.max:
        raise ManifestError(f"{where}: {tensor.name} is {tensor.dtype} with zero point {tensor.zero_point}")
    if tensor.name in (IDS, WRITE) and kind not in "iu":
        raise ManifestError(f"{where}: {tensor.name} is {tensor.dtype}: token ids and slots are integers")


def _check_cache(where: str, graph: Graph, axis: int, past: Tensor, new: Tensor) -> None:
    if len(past.shape) != _CACHE_RANK or len(new.shape) != _CACHE_RANK or axis not in range(_CACHE_RANK):
        raise ManifestError(f"{where}: {past.name} {past.shape} and {new.name} {new.shape} do not have "
                            f"{_CACHE_RANK} axes, or tokens not along axis {axis} of them")
    _check_heads(where, new, past, axis)
    if past.shape[axis] != graph.cl - graph.ar or new.shape[axis] != graph.ar:
        raise ManifestError(
            f"{where}: {past.name} {past.shape} and {new.name} {new.shape} "
            f"should have {graph.cl - graph.ar} and {graph.ar} tokens along axis {axis}"
        )
    _check_same(where, new, past)


def _check_same(where: str, tensor: Tensor, reference: Tensor) -> None:
    mine = (tensor.dtype, tensor.scale, tensor.zero_point)
    theirs = (reference.dtype, reference.scale, reference.zero_point)
    if mine != theirs:
        raise ManifestError(
            f"{where}: {tensor.name} is encoded as {mine}, {reference.name} elsewhere as {theirs}: "
            "the cache can have only one encoding"
        )


def _check_heads(where: str, tensor: Tensor, reference: Tensor, axis: int) -> None:
    mine, theirs = (tuple(d for i, d in enumerate(t.shape) if i != axis) for t in (tensor, reference))
    if mine != theirs:
        raise ManifestError(f"{where}: {tensor.name} {tensor.shape} is {reference.shape} elsewhere: other heads")
