"""The first layers of a decoder at one width, without a past: what both searches are given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from edgeforge_runtime.rope import Tables
from onnx_ir.passes import common

from edgeforge.adapt.shape import Decoder
from edgeforge.calibrate import whole
from edgeforge.graph import bind
from edgeforge.graph.empty import DropEmpty
from edgeforge.quantize.products import Product, products
from peer.job import Array

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def layer(name: str) -> int | None:
    """The layer that a weight belongs to, by its module path."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def kind(name: str) -> str:
    """q_proj of model.layers.3.self_attn.q_proj.weight."""
    return name.removesuffix(".weight").rpartition(".")[2]


def first(model: ir.Model, layers: int, tokens: int) -> ir.Model:
    """model, in place, up to the last product of its first layers.

    Raises:
        ValueError: it has fewer layers.
    """
    bind.bind(model, tokens, tokens)
    DropEmpty()(model)
    graph = model.graph
    inside = [p for p in products(graph) if layer(p.name) == layers - 1]
    if not inside:
        raise ValueError(f"the graph has no layer {layers - 1}")
    graph.outputs[:] = [inside[-1].node.outputs[0]]
    common.RemoveUnusedNodesPass()(model)
    for value in [v for v in graph.inputs if not v.uses()]:
        graph.inputs.remove(value)
    return model


def samples(graph: ir.Graph, decoder: Decoder, windows: Sequence[npt.NDArray[np.int64]],
            tables: Tables) -> list[dict[str, Array]]:
    """Windows of token ids as the cut graph's inputs."""
    names = {str(v.name) for v in graph.inputs}
    found = (whole.feeds(decoder, ids, tables) for ids in windows)
    return [{name: tensor.numpy() for name, tensor in feeds.items() if name in names} for feeds in found]


def searched(graph: ir.Graph) -> list[Product]:
    """The products that both sides search."""
    return [p for p in products(graph) if layer(p.name) is not None]
