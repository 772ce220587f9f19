"""past‖new -> a cache of the whole context that each step writes into: TensorScatter (ONNX opset 24).

A target that updates its cache in place never moves a token: slot t holds token t at every width, so the mask's
columns are positions and prefill hands its cache to decode as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from edgeforge_runtime.manifest import WRITE
from onnx_ir.passes import common

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit
from edgeforge.graph.edit import PAST, Dim

_OPSET = 24


class CacheInPlace(ir.passes.InPlacePass):
    """Concat(past, new) -> TensorScatter(cache, new, write_index); the cache in and out has `context` slots along the
    axis of its tokens.

    write_index is a new graph input, int64 [1]: the slot that the first new token takes; AR slots are written from it.

    Pre: symbolic AR and past. Post: no dimension but AR is open, and
    attention reads all context slots, those without a token too (the mask forbids them; they must be finite).

    Raises:
        UnsupportedError: a cache that is read by anything but one Concat.
    """

    def __init__(self, context: int, caches: Sequence[tuple[str, str]]) -> None:
        """caches: names of each cache's input and output."""
        super().__init__()
        self._context = context
        self._caches = caches

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        graph.opset_imports[""] = max(_OPSET, graph.opset_imports.get("", 0))
        index = ir.Value(name=WRITE, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        graph.inputs.append(index)
        inputs = {str(v.name): v for v in graph.inputs}
        for taken, given in self._caches:
            self._scatter(graph, inputs[taken], given, index)
        for value in [*graph.inputs, *(o for n in graph for o in n.outputs)]:
            shape = edit.dims(value)
            if shape is not None:
                edit.set_shape(value, [self._bound(d) for d in shape])
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, bool(self._caches))

    def _scatter(self, graph: ir.Graph, cache: ir.Value, given: str, index: ir.Value) -> None:
        joined = edit.only_user(cache)
        new = joined.inputs[1] if joined is not None and joined.op_type == "Concat" else None
        if joined is None or new is None or len(joined.inputs) != 2:
            raise UnsupportedError(f"{cache.name}: the cache is not read by one Concat along its tokens",
                                   "caches that attention reads otherwise cannot be updated in place")
        axis = joined.attributes["axis"].as_int() % len(edit.known_dims(cache))
        place = next(i for i, v in enumerate(graph.outputs) if v.name == given)
        old = graph.outputs[place]
        old.name = f"{given}/new"
        written = edit.node_before(joined, "TensorScatter", [cache, _unmarked(new), index], given,
                                   edit.known_dims(cache), [ir.AttrInt64("axis", axis)])
        graph.outputs[place] = written
        edit.replace(joined.outputs[0], written)

    def _bound(self, dim: Dim) -> Dim:
        return self._context if isinstance(dim, str) and PAST in (t.strip() for t in dim.split("+")) else dim


def _unmarked(value: ir.Value) -> ir.Value:
    """The value itself: a Requantize between it and the cache means nothing where the cache is a float."""
    node = edit.producer(value, "Identity")
    return node.inputs[0] if node is not None and node.inputs[0] is not None else value
