"""Did the whole graph land on HTP, in integers? Read from what the provider built, not from what we asked.

The provider says nothing when it wraps operators in Dequantize/Quantize, when it rounds a MatMul operand
to u8, or when a graph compiles in float: all three compile cleanly and cost accuracy or speed. Its dump
of the QNN graph (``<graph>.qnn.json``) and its ONNX-to-QNN trace (``<graph>.trace.json``) show them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgeforge.backends.qnn.binary import DTYPES
from edgeforge.errors import CompilerError

_FLOATS = {"float16", "float32"}
# The trace's name for a Convert that stands for a DequantizeLinear-QuantizeLinear pair of the ONNX graph.
_ASKED = "DQQFusion"
# Qnn_QuantizationEncoding_t of QNN's core API 2.40.
_EXPANSION, _FLOAT_BLOCKS = 5, 11


class Kind(StrEnum):
    """What is wrong with an op."""

    FLOAT_ISLAND = "float island"
    FLOAT_TENSOR = "float tensor"
    NARROWED = "narrowed operand"
    FLOAT_BLOCKS = "float blocks"
    OUTSIDE = "outside HTP"


@dataclass(frozen=True)
class Finding:
    """One op that is not where, or not in the grid, that it should be.

    onnx: the ONNX node it comes from; empty when the trace does not say.
    """

    kind: Kind
    op: str
    op_type: str
    onnx: str
    why: str


@dataclass(frozen=True)
class Placement:
    """Verdict over one graph.

    ops: QNN op type -> count. idle_converts: Convert ops whose two ends have the same grid; correct, but
    work for nothing, so they are listed and do not fail the verdict. expanded: the weights in 4-bit blocks that
    HTP expands by whole numbers (QNN's BLOCKWISE_EXPANSION).
    """

    graph: str
    ops: Mapping[str, int]
    findings: tuple[Finding, ...]
    idle_converts: tuple[str, ...]
    expanded: frozenset[str]

    @property
    def ok(self) -> bool:
        return not self.findings


def check_placement(graph: str, dump: Path, trace: Path) -> Placement:
    """Reads both files of one compiled graph.

    Raises:
        CompilerError: a file is missing or is not in the form that onnxruntime-qnn 2.7.0 writes.
    """
    try:
        net = json.loads(dump.read_text(encoding="utf-8"))["graph"]
        story = json.loads(trace.read_text(encoding="utf-8"))
        return _check(graph, net, story)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(
            f"graph {graph}: cannot read {dump.name} and {trace.name} in {dump.parent}: "
            f"{type(error).__name__} {error}"
        ) from error


def _check(graph: str, net: dict[str, Any], story: dict[str, Any]) -> Placement:
    nodes, tensors = net["nodes"], net["tensors"]
    mappings = {m["dst_name"]: m for part in story["subgraph_traces"] for m in part["op_mappings"]}
    findings = [*_outside(story), *_float_blocks(nodes, tensors, mappings)]
    idle: list[str] = []
    for name, node in nodes.items():
        kind, source = node["type"], _source(name, mappings.get(name))
        if kind in ("Dequantize", "Quantize"):
            neighbour = _neighbour(node, nodes)
            why = f"the ops around it run in float, next to {neighbour}: its inputs and outputs mix dtypes,"
            findings.append(
                Finding(Kind.FLOAT_ISLAND, name, kind, source, f"{why} or a QuantizeLinear is missing")
            )
            continue
        floats = [t for t in node["output_names"] if DTYPES.get(tensors[t]["data_type"]) in _FLOATS]
        if floats:
            why = f"its output {floats[0]} is {DTYPES[tensors[floats[0]]['data_type']]}"
            findings.append(Finding(Kind.FLOAT_TENSOR, name, kind, source, why))
        if kind == "Convert":
            before, after = tensors[node["input_names"][0]], tensors[node["output_names"][0]]
            if mappings.get(name, {}).get("node_group_type") == _ASKED:
                if _grid(before) == _grid(after):
                    idle.append(name)
            elif _bits(after) < _bits(before):
                readers = [n for n, v in nodes.items() if node["output_names"][0] in v["input_names"]]
                why = (
                    f"{node['input_names'][0]} goes from {_name(before)} to {_name(after)} for"
                    f" {', '.join(readers)}; the ONNX graph does not ask for that"
                )
                findings.append(Finding(Kind.NARROWED, name, kind, source, why))
    ops = Counter(node["type"] for node in nodes.values())
    expanded = frozenset(n for n, t in tensors.items() if t["quant_params"]["encoding"] == _EXPANSION)
    return Placement(graph, dict(sorted(ops.items())), tuple(findings), tuple(idle), expanded)


def _float_blocks(nodes: dict[str, Any], tensors: dict[str, Any], mappings: dict[str, Any]) -> Iterator[Finding]:
    """Weights in blocks that HTP multiplies by floats: the op that reads one runs in float too."""
    for name, node in nodes.items():
        for weight in node["input_names"]:
            if tensors[weight]["quant_params"]["encoding"] == _FLOAT_BLOCKS:
                yield Finding(Kind.FLOAT_BLOCKS, name, node["type"], _source(name, mappings.get(name)),
                              f"{weight} has blocks with float scales, which run in float")


def _outside(story: dict[str, Any]) -> list[Finding]:
    """Nodes that the provider left to the CPU, and graphs that it had to cut."""
    found = [
        Finding(
            Kind.OUTSIDE,
            str(n.get("name", n) if isinstance(n, dict) else n),
            str(n.get("type", "") if isinstance(n, dict) else ""),
            str(n.get("name", n) if isinstance(n, dict) else n),
            "the provider does not support it",
        )
        for n in story["unsupported_nodes"]
    ]
    pieces = len(story["subgraph_traces"])
    if pieces != 1:
        found.append(Finding(Kind.OUTSIDE, "", "", "", f"the model became {pieces} QNN graphs, not one"))
    return found


def _source(name: str, mapping: dict[str, Any] | None) -> str:
    """The ONNX node that an op stands for: the one it is named after, else the first inside its unit."""
    operators: list[str] = [s["name"] for s in (mapping or {}).get("sources", []) if s["type"] == "OP"]
    if name in operators:
        return name
    inner = [o for o in operators if "QuantizeLinear" not in o and "DequantizeLinear" not in o]
    return (inner or operators or [""])[0]


def _neighbour(node: dict[str, Any], nodes: dict[str, Any]) -> str:
    """The float op on the other side of a Dequantize or Quantize."""
    if node["type"] == "Dequantize":
        ends = [
            f"{n} ({v['type']})"
            for n, v in nodes.items()
            if set(v["input_names"]) & set(node["output_names"])
        ]
    else:
        ends = [
            f"{n} ({v['type']})"
            for n, v in nodes.items()
            if set(v["output_names"]) & set(node["input_names"])
        ]
    return ", ".join(ends) or "a graph input or output"


def _grid(tensor: dict[str, Any]) -> tuple[int, int, float, int]:
    pair = tensor["quant_params"]["scale_offset"]
    return tensor["data_type"], tensor["quant_params"]["encoding"], pair["scale"], pair["offset"]


def _name(tensor: dict[str, Any]) -> str:
    return DTYPES.get(tensor["data_type"], hex(tensor["data_type"]))


def _bits(tensor: dict[str, Any]) -> int:
    digits = "".join(c for c in _name(tensor) if c.isdigit())
    return int(digits) if digits else 0
