"""What a context binary says about itself, as read by the vendor's own library."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge.backends import process
from edgeforge.backends.qnn import complaints, wheel
from edgeforge.errors import CompilerError

READER = process.module_command("edgeforge.backends.qnn.binary_worker")
TIMEOUT_S = 120.0

# Qnn_DataType_t -> numpy's name for the codes in memory (fixed point says that an encoding belongs to them).
DTYPES = {
    0x008: "int8",
    0x016: "int16",
    0x032: "int32",
    0x064: "int64",
    0x108: "uint8",
    0x116: "uint16",
    0x132: "uint32",
    0x164: "uint64",
    0x216: "float16",
    0x232: "float32",
    0x304: "int4",
    0x308: "int8",
    0x316: "int16",
    0x332: "int32",
    0x404: "uint4",
    0x408: "uint8",
    0x416: "uint16",
    0x432: "uint32",
    0x508: "bool",
}
# Graph blob, little endian: u32 version, u32 -, u64 spill-fill, u32 vtcm, u32 level, then the sizes below.
_BLOB = struct.Struct("<IIQII")
_SIZES = {"io_bytes": 72, "op_bytes": 80, "const_bytes": 88, "shared_bytes": 104}


@dataclass(frozen=True)
class TensorInfo:
    """One graph input or output.

    dtype is numpy's name for the stored codes. QNN writes real = (code + offset) * scale, so its offset is
    minus ONNX's zero point; scale is None when the tensor has no per-tensor encoding.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str
    scale: float | None
    offset: int

    @property
    def zero_point(self) -> int:
        return -self.offset


@dataclass(frozen=True)
class GraphInfo:
    """One graph of a binary. All sizes in bytes.

    vtcm: memory planned for. spill_fill: DDR that activations overflow into. io: buffers for inputs and
    outputs (not in the file). op: operator descriptions. const: weights that only this graph has.
    shared: weights that all graphs of the binary have in common (each graph states the same number).
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    vtcm_bytes: int
    spill_fill_bytes: int
    optimization: int
    io_bytes: int
    op_bytes: int
    const_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class ContextBinary:
    """A context binary's own account. dsp_arch is HTP's number, e.g. 75 for v75."""

    path: Path
    file_bytes: int
    build_id: str
    core_api: tuple[int, int, int]
    backend_api: tuple[int, int, int]
    soc_model: int
    dsp_arch: int
    graphs: tuple[GraphInfo, ...]

    def graph(self, name: str) -> GraphInfo:
        """A graph by name; KeyError lists those there are."""
        for graph in self.graphs:
            if graph.name == name:
                return graph
        raise KeyError(f"{self.path} has no graph {name!r}, only {[g.name for g in self.graphs]}")


def read_binaries(paths: Sequence[Path], timeout_s: float = TIMEOUT_S) -> list[ContextBinary]:
    """Reads context binaries in one child process (the vendor's reader may crash on a damaged file).

    CompilerError names the file that cannot be read.
    """
    library = wheel.find().library(wheel.SYSTEM)
    with tempfile.TemporaryDirectory(prefix="edgeforge-qnn-") as scratch:
        result = Path(scratch) / "info.json"
        command = [*READER, str(library), str(result), *(str(p.resolve()) for p in paths)]
        run = process.run_child(command, log=Path(scratch) / "read.log", timeout_s=timeout_s)
        if not run.ok:
            raise CompilerError(
                f"cannot read {' or '.join(str(p) for p in paths)}: the reader {run.ending()}: "
                + " | ".join(complaints.culprits(run.log)),
                "the file is damaged or of another SDK",
            )
        try:
            return [_binary(entry) for entry in json.loads(result.read_text(encoding="utf-8"))]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CompilerError(f"cannot read {' or '.join(map(str, paths))}: the reader left no usable answer: {error}"
                                ) from error


def read_binary(path: Path, timeout_s: float = TIMEOUT_S) -> ContextBinary:
    """Reads one context binary; see :func:`read_binaries`."""
    return read_binaries([path], timeout_s)[0]


def _binary(raw: dict[str, Any]) -> ContextBinary:
    core, backend = tuple(raw["core_api"]), tuple(raw["backend_api"])
    return ContextBinary(
        Path(raw["path"]),
        raw["file_bytes"],
        raw["build_id"],
        core,
        backend,
        raw["soc_model"],
        raw["dsp_arch"],
        tuple(_graph(g, raw["path"]) for g in raw["graphs"]),
    )


def _graph(raw: dict[str, Any], path: str) -> GraphInfo:
    blob = bytes.fromhex(raw["blob"])
    if len(blob) < max(_SIZES.values()) + 8:
        raise CompilerError(
            f"{path}: graph {raw['name']} carries {len(blob)} bytes of HTP data, expected 112",
            "this binary comes from an SDK whose layout is not known here",
        )
    version, _, spill, vtcm, level = _BLOB.unpack_from(blob)
    if version != 1:
        raise CompilerError(f"{path}: HTP graph data of version {version}; version 1 is known here")
    sizes = {name: int(struct.unpack_from("<Q", blob, at)[0]) for name, at in _SIZES.items()}
    return GraphInfo(
        raw["name"],
        tuple(map(_tensor, raw["inputs"])),
        tuple(map(_tensor, raw["outputs"])),
        vtcm_bytes=vtcm,
        spill_fill_bytes=spill,
        optimization=level,
        **sizes,
    )


def _tensor(raw: dict[str, Any]) -> TensorInfo:
    code = raw["dtype"]
    return TensorInfo(
        raw["name"], tuple(raw["dims"]), DTYPES.get(code, f"qnn-{code:#x}"), raw["scale"], raw["offset"]
    )
