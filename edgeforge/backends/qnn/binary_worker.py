"""Child process: reads context binaries with libQnnSystem.so. ``binary_worker library result.json bin...``

Layouts follow QNN's public system API (QnnSystemContext_BinaryInfo_t v3, QnnSystemContext_GraphInfo_t
v3), checked against binaries of QAIRT 2.51. Standard library only: it starts in a tenth of a second.
"""

from __future__ import annotations

import ctypes as c
import json
import mmap
import sys
from pathlib import Path
from typing import Any

from edgeforge.backends import orphan

_CREATE, _GET_INFO = 0, 1
_BINARY_INFO_V3, _GRAPH_INFO_V3 = 3, 3
_DEFINED, _SCALE_OFFSET = 1, 0


class _Version(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("patch", c.c_uint32)]


class _ScaleOffset(c.Structure):
    _fields_ = [("scale", c.c_float), ("offset", c.c_int32)]


class _Encoding(c.Union):
    # The widest member (bit width, axis, count, two pointers) decides the union's size.
    _fields_ = [("per_tensor", _ScaleOffset), ("widest", c.c_uint64 * 4)]


class _QuantParams(c.Structure):
    _fields_ = [("definition", c.c_uint32), ("encoding", c.c_uint32), ("value", _Encoding)]


class _Tensor(c.Structure):
    """Qnn_Tensor_t in its v2 form; v1 is a prefix of it."""

    _fields_ = [
        ("version", c.c_uint64),
        ("id", c.c_uint32),
        ("name", c.c_char_p),
        ("type", c.c_uint32),
        ("format", c.c_uint32),
        ("dtype", c.c_uint32),
        ("quant", _QuantParams),
        ("rank", c.c_uint32),
        ("dims", c.POINTER(c.c_uint32)),
        ("memory", c.c_uint32),
        ("data", c.c_void_p),
        ("size", c.c_uint32),
        ("dynamic", c.c_void_p),
        ("sparse", c.c_uint32 * 3),
        ("produced", c.c_uint8),
    ]


class _Graph(c.Structure):
    _fields_ = [
        ("version", c.c_uint64),
        ("name", c.c_char_p),
        ("n_inputs", c.c_uint32),
        ("inputs", c.POINTER(_Tensor)),
        ("n_outputs", c.c_uint32),
        ("outputs", c.POINTER(_Tensor)),
        ("n_updatable", c.c_uint32),
        ("updatable", c.c_void_p),
        ("blob_size", c.c_uint32),
        ("blob", c.c_void_p),
        ("start", c.c_uint32),
        ("end", c.c_uint32),
    ]


class _BinaryInfo(c.Structure):
    _fields_ = [
        ("version", c.c_uint64),
        ("backend_id", c.c_uint32),
        ("build_id", c.c_char_p),
        ("core", _Version),
        ("backend", _Version),
        ("soc_version", c.c_char_p),
        ("context_blob", _Version),
        ("context_size", c.c_uint64),
        ("n_tensors", c.c_uint32),
        ("tensors", c.c_void_p),
        ("n_graphs", c.c_uint32),
        ("graphs", c.POINTER(_Graph)),
        ("platform", c.c_void_p),
        ("meta_size", c.c_uint32),
        ("meta", c.POINTER(c.c_uint32)),
        ("soc_model", c.c_uint32),
    ]


class _SystemInterface(c.Structure):
    _fields_ = [
        ("backend_id", c.c_uint32),
        ("provider", c.c_char_p),
        ("version", _Version),
        ("entries", c.c_void_p * 4),
    ]


def read(library: Path, path: Path) -> dict[str, Any]:
    """What QnnSystemContext_getBinaryInfo says of one file; ValueError when it refuses."""
    system = c.CDLL(str(library))
    providers, count = c.POINTER(c.POINTER(_SystemInterface))(), c.c_uint32()
    if system.QnnSystemInterface_getProviders(c.byref(providers), c.byref(count)) or not count.value:
        raise ValueError("libQnnSystem.so offers no interface")
    interface = providers[0].contents
    create = c.CFUNCTYPE(c.c_uint64, c.POINTER(c.c_void_p))(interface.entries[_CREATE])
    info_of = c.CFUNCTYPE(
        c.c_uint64,
        c.c_void_p,
        c.c_void_p,
        c.c_uint64,
        c.POINTER(c.POINTER(_BinaryInfo)),
        c.POINTER(c.c_uint64),
    )(interface.entries[_GET_INFO])
    size = path.stat().st_size
    if not size:
        raise ValueError("the file is empty")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # the reader wants writable memory
    buffer = (c.c_char * size).from_buffer(mapped)
    handle = c.c_void_p()
    if create(c.byref(handle)):
        raise ValueError("QnnSystemContext_create failed")
    pointer, info_size = c.POINTER(_BinaryInfo)(), c.c_uint64()
    status = info_of(handle, c.addressof(buffer), size, c.byref(pointer), c.byref(info_size))
    if status:
        raise ValueError(f"not a context binary, or a damaged one (QNN error {status})")
    info = pointer.contents
    if info.version & 0xFFFFFFFF != _BINARY_INFO_V3:
        raise ValueError(f"binary info version {info.version & 0xFFFFFFFF} is not one that this reader knows")
    found = {
        "file_bytes": size,
        "build_id": _text(info.build_id),
        "core_api": _triple(info.core),
        "backend_api": _triple(info.backend),
        "context_blob": _triple(info.context_blob),
        "context_bytes": info.context_size,
        "soc_model": info.soc_model,
        "dsp_arch": info.meta[1] if info.meta_size >= 8 else 0,
        "graphs": [_graph(info.graphs[i]) for i in range(info.n_graphs)],
    }
    return found  # the context is not freed: `info` lives in it, and this process ends soon


def _graph(graph: _Graph) -> dict[str, Any]:
    blob = c.string_at(graph.blob, graph.blob_size) if graph.version & 0xFFFFFFFF >= _GRAPH_INFO_V3 else b""
    return {
        "name": _text(graph.name),
        "blob": blob.hex(),
        "inputs": [_tensor(graph.inputs[i]) for i in range(graph.n_inputs)],
        "outputs": [_tensor(graph.outputs[i]) for i in range(graph.n_outputs)],
    }


def _tensor(tensor: _Tensor) -> dict[str, Any]:
    quant = tensor.quant
    plain = quant.definition == _DEFINED and quant.encoding == _SCALE_OFFSET
    pair = quant.value.per_tensor
    return {
        "name": _text(tensor.name),
        "dtype": tensor.dtype,
        "dims": [tensor.dims[i] for i in range(tensor.rank)],
        "scale": pair.scale if plain else None,
        "offset": pair.offset if plain else 0,
    }


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _triple(v: _Version) -> list[int]:
    return [v.major, v.minor, v.patch]


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    library, result, *paths = map(Path, argv)
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            found.append({"path": str(path), **read(library, path)})
        except (OSError, ValueError) as error:
            print(f"Error: {path}: {error}", flush=True)
            return 1
    result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
