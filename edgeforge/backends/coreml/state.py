"""`kv: state`: the model keeps its cache, a slot a position, and takes the slot of the first new token instead."""

from __future__ import annotations

import onnx_ir as ir
from edgeforge_runtime.manifest import new_name, past_layer

from edgeforge.graph.in_place import CacheInPlace

SCATTER = "TensorScatter"


def keep(model: ir.Model, context: int) -> None:
    """Rewrites model in place: caches [kv, 1, .., context, ..] are inputs that a TensorScatter writes into; no cache
    leaves. UnsupportedError: see CacheInPlace."""
    graph = model.graph
    caches = [(name, new_name(name)) for name in (str(v.name) for v in graph.inputs) if past_layer(name)]
    CacheInPlace(context, caches)(model)
    given = {name for _, name in caches}
    for value in [v for v in graph.outputs if v.name in given]:
        graph.outputs.remove(value)


def is_state(value: ir.Value) -> bool:
    """Does the function keep this input of its graph?"""
    return any(use.node.op_type == SCATTER and use.idx == 0 for use in value.uses())


def name(cache: str) -> str:
    """What the state of a cache input is called: `past_key_0`."""
    return cache.removesuffix("_in")
