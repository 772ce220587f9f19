"""A context binary's own account, as facts for `edgeforge inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeforge.backends.qnn.binary import ContextBinary, GraphInfo, TensorInfo, read_binaries
from edgeforge.targets import SNAPDRAGONS


def describe(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """CompilerError: a file is damaged or no context binary, or the wheel that reads them is not installed."""
    return [_facts(path, info) for path, info in zip(paths, read_binaries(paths), strict=True)]


def brief(facts: dict[str, Any]) -> dict[str, Any]:
    """One row of a bundle's table."""
    return {"bytes": facts["bytes"], "soc": facts["soc_model"], "arch": facts["hexagon"], "qairt": facts["qairt"],
            "shared_weights": facts["shared_weight_bytes"], "graphs": len(facts["graphs"])}


def _facts(path: Path, info: ContextBinary) -> dict[str, Any]:
    chips = [c.name for c in SNAPDRAGONS.values() if c.soc_model == info.soc_model]
    shared = max((g.shared_bytes for g in info.graphs), default=0)
    return {
        "kind": "QNN context binary", "path": str(path), "bytes": info.file_bytes, "soc_model": info.soc_model,
        "chip": ", ".join(chips) or "not in the table", "hexagon": f"v{info.dsp_arch}", "qairt": info.build_id,
        "core_api": ".".join(map(str, info.core_api)), "htp_api": ".".join(map(str, info.backend_api)),
        "shared_weight_bytes": shared,
        "runs_on": "the device only: x86 cannot load shared weights" if shared else "the device and the x86 emulator",
        "graphs": [_graph(g) for g in info.graphs],
    }


def _graph(graph: GraphInfo) -> dict[str, Any]:
    return {"name": graph.name, "optimization": graph.optimization, "vtcm_bytes": graph.vtcm_bytes,
            "spill_fill_bytes": graph.spill_fill_bytes, "weight_bytes": graph.const_bytes,
            "op_bytes": graph.op_bytes, "io_bytes": graph.io_bytes,
            "inputs": [_tensor(t) for t in graph.inputs], "outputs": [_tensor(t) for t in graph.outputs]}


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.dims), "scale": tensor.scale,
            "zero_point": tensor.zero_point if tensor.scale is not None else None}
