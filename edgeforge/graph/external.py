"""Weights that lie beside an .onnx file: every reference is resolved and measured before anything reads it.

A reference may name any file in the model's own folder, or a symbolic link to one; a link may also lead to
the `blobs` of the HuggingFace cache that the model lies in. Whatever leaves these places is refused, as is a
file that is missing or shorter than what the graph wants from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from edgeforge.errors import CheckpointError

_HINT = "external data must lie beside the .onnx file, under the name that it was saved with"


@dataclass(frozen=True)
class Piece:
    """One tensor's place: bytes from offset on, of a file."""

    tensor: str
    file: Path
    offset: int
    length: int


def pieces(proto: onnx.ModelProto, path: Path) -> list[Piece]:
    """Every external tensor of the model file at path, proven to be there; its reference becomes absolute.

    So links that were followed here are not looked at, and refused, again by whoever reads the bytes.

    Raises:
        CheckpointError: a location leaves the model's folder, a file is missing, or too short.
    """
    found = [_piece(tensor, path) for tensor in _tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for piece in found:
        _check(piece, path)
    for tensor in _tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str((path.parent / entry.value).resolve())
    return found


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers, and tensors in nodes' attributes; those of subgraphs and functions too."""
    yield from _in_graph(proto.graph)
    for function in proto.functions:
        yield from _in_nodes(function.node)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: object) -> Iterator[onnx.TensorProto]:
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in (attribute.g, *attribute.graphs):
                yield from _in_graph(graph)


def _piece(tensor: onnx.TensorProto, path: Path) -> Piece:
    entries = {e.key: e.value for e in tensor.external_data}
    if any(isinstance(text, bytes) for text in (*entries, *entries.values())):  # protobuf's answer to bad UTF-8
        raise CheckpointError(f"{path}: the external data of {tensor.name} is named in no UTF-8", _HINT)
    location = entries.get("location", "")
    windows, posix = PureWindowsPath(location), PurePosixPath(location)
    if not location or windows.drive or windows.root or ".." in windows.parts + posix.parts or "\0" in location:
        raise CheckpointError(f"{path}: {tensor.name} lies in {location!r}, outside the model's folder", _HINT)
    expected = _bytes(tensor, path)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or expected)
    except ValueError:
        raise CheckpointError(f"{path}: {tensor.name}: offset or length of its external data is no number") from None
    if offset < 0 or length != expected:
        raise CheckpointError(f"{path}: {tensor.name} wants {expected} bytes, and its external data says {length} "
                              f"from {offset}", "the file is damaged: export the model again")
    return Piece(tensor.name, path.parent / location, offset, length)


def _bytes(tensor: onnx.TensorProto, path: Path) -> int:
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (TypeError, ValueError):
        raise CheckpointError(f"{path}: {tensor.name} has the data type {tensor.data_type}, which has no fixed "
                              "size and cannot be external") from None
    if any(d < 0 for d in tensor.dims):
        raise CheckpointError(f"{path}: {tensor.name} has a negative dimension: {list(tensor.dims)}")
    return (int(math.prod(tensor.dims)) * int(bits) + 7) // 8


def _check(piece: Piece, path: Path) -> None:
    target = piece.file.resolve()
    if not any(target.is_relative_to(root) for root in _roots(path)):
        raise CheckpointError(f"{path}: {piece.tensor} lies in {piece.file.name}, a link to {target}, outside the "
                              "model's folder", _HINT)
    if not target.is_file():
        raise CheckpointError(f"{path}: {piece.file} is missing; {piece.tensor} and perhaps other weights lie there",
                              _HINT)
    size = target.stat().st_size
    if piece.offset + piece.length > size:
        raise CheckpointError(f"{path}: {piece.tensor} wants bytes {piece.offset} to {piece.offset + piece.length} of "
                              f"{piece.file}, which has {size}", "the file is truncated: copy or export it again")


def _roots(path: Path) -> Iterator[Path]:
    """The model's folder, and the blobs of a HuggingFace cache: models--x/blobs beside models--x/snapshots/."""
    yield path.parent.resolve()
    for folder in path.absolute().parents:
        if folder.name == "snapshots" and (folder.parent / "blobs").is_dir():
            yield (folder.parent / "blobs").resolve()
            return
