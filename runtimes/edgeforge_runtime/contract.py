"""What a target's graphs must agree on, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .errors import ManifestError
from .manifest import COS, IDS, LOGITS, MASK, SIN, Graph, Model, Target, Tensor, new_name, past_layer


def check(model: Model, target: Target) -> None:
    """Raises ManifestError where the decode loop could not feed a graph, or would mix two encodings.

    Every graph takes ids, mask, cos and sin, gives logits, and returns each cache tensor that it takes
    in the same encoding; that encoding is the same in all graphs.
    """
    if not target.graphs:
        raise ManifestError("the target has no graphs")
    first: dict[str, Tensor] = {}
    for graph in target.graphs:
        where = f"graph ar{graph.ar}_cl{graph.cl}"
        inputs, outputs = graph.boundary()
        _require(where, inputs, (IDS, MASK, COS, SIN))
        _require(where, outputs, (LOGITS,))
        for tensor in (*inputs.values(), *outputs.values()):
            _check_dtype(where, tensor)
        for name, shape in _feeds(graph).items():
            if inputs[name].shape != shape:
                raise ManifestError(f"{where}: {name} is {inputs[name].shape}, not {shape}")
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
    for graph in target.graphs:
        _require(f"graph ar{graph.ar}_cl{graph.cl}", graph.boundary()[1], tuple(map(new_name, first)))


def logit_rows(graph: Graph) -> int:
    """Rows of the graph's logits: AR, or 1 for the last token's alone."""
    shape = graph.boundary()[1][LOGITS].shape
    return int(np.prod(shape[:-1]))


def _feeds(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {IDS: (1, graph.ar), MASK: (1, 1, graph.ar, graph.cl)}


def _require(where: str, have: Iterable[str], wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if name not in set(have)]
    if missing:
        raise ManifestError(f"{where} has no {', '.join(missing)}")


def _check_dtype(where: str, tensor: Tensor) -> None:
    try:
        kind = np.dtype(tensor.dtype).kind
    except TypeError:
        raise ManifestError(f"{where}: {tensor.name} has unknown dtype {tensor.dtype!r}") from None
    if tensor.scale is not None and (kind not in "iu" or not tensor.scale > 0):
        raise ManifestError(f"{where}: {tensor.name} is {tensor.dtype} with scale {tensor.scale}")
    if tensor.scale is None and kind != "f" and tensor.name != IDS:
        raise ManifestError(f"{where}: {tensor.name} holds {tensor.dtype} codes without a scale")


def _check_cache(where: str, graph: Graph, axis: int, past: Tensor, new: Tensor) -> None:
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
