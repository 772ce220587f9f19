"""Names for life: parameters keep their module path, and a module's output is named after the module.

An exported value that leaves its module alone bears the module's path (`model.layers.3.mlp.down_proj`);
any other value is `<module path>/<Op>` (`model.layers.3.self_attn/Softmax`), numbered from the second on.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

_SCOPES = "pkg.torch.onnx.name_scopes"
_SLICED = re.compile(r"slice\([^)]*\)\.")
_PLUMBING = {"Constant", "Shape", "Cast", "CastLike", "Expand"}
"""what the exporter writes around shapes and constants: never a module's output"""

_ROOT = "model."
"""the attribute under which DecoderGraph holds the HuggingFace model"""


def apply(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str], dims: Mapping[str, str]) -> None:
    """Renames inputs, outputs, parameters, intermediate values and symbolic dimensions in place."""
    graph = model.graph
    for value, name in zip(graph.inputs, inputs, strict=True):
        value.name = name
    for value in list(graph.initializers.values()):
        if value.name is not None and value.name.startswith(_ROOT):
            value.name = value.name.removeprefix(_ROOT)
    _rename_values(graph)
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    _rename_dims(graph, dims)
    for node in graph:
        node.name = f"{node.outputs[0].name}:{node.op_type}"
        node.metadata_props.clear()


def _scope(node: ir.Node) -> str:
    raw = node.metadata_props.get(_SCOPES, "[]")
    scopes = [s for s in ast.literal_eval(raw)[:-1] if s and not s.startswith("_")]
    path = _SLICED.sub("", scopes[-1]) if scopes else ""
    return path.removeprefix(_ROOT) if path != _ROOT.rstrip(".") else ""


def _rename_values(graph: ir.Graph) -> None:
    scopes = {node: _scope(node) for node in graph}
    leaving: Counter[str] = Counter()
    leaves: set[ir.Value] = set()
    for node, scope in scopes.items():
        for value in node.outputs:
            inside = all(scopes[use.node] == scope or scopes[use.node].startswith(scope + ".")
                         for use in value.uses())
            if scope and node.op_type not in _PLUMBING and (not inside or value.is_graph_output()):
                leaving[scope] += 1
                leaves.add(value)
    seen: Counter[str] = Counter(list(graph.initializers) + [str(v.name) for v in graph.inputs])
    for node, scope in scopes.items():
        for value in node.outputs:
            single = value in leaves and leaving[scope] == 1
            base = scope if single else f"{scope}/{node.op_type}" if scope else f"graph/{node.op_type}"
            seen[base] += 1
            value.name = base if seen[base] == 1 else f"{base}_{seen[base]}"


def _rename_dims(graph: ir.Graph, dims: Mapping[str, str]) -> None:
    """Replaces the exporter's symbols (s69) by ours, also inside expressions (s69 + s71)."""
    pattern = re.compile("|".join(rf"\b{re.escape(d)}\b" for d in sorted(dims, key=len, reverse=True)))
    values = [*graph.inputs, *(o for n in graph for o in n.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) or d.value is None
                                    else pattern.sub(lambda m: dims[m[0]], str(d.value)) for d in value.shape])
