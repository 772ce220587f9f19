"""Files of encodings: our table, and AIMET's JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgeforge.encodings import Encoding, Table
from edgeforge.errors import EdgeForgeError


def describe(path: Path, raw: Any) -> dict[str, Any]:
    """raw: the file's JSON. EdgeForgeError: neither of the two."""
    if isinstance(raw, dict) and _sections(raw):
        return _aimet(path, raw)
    if isinstance(raw, dict) and raw and all(map(_is_entry, raw.values())):
        return _table(path)
    raise EdgeForgeError(f"{path} holds no encodings", "known: AIMET's JSON, and the table.json of a stage; for "
                         "manifest.json, stage.json and report.json inspect their folder")


def _is_entry(raw: Any) -> bool:
    return isinstance(raw, dict) and {"bits", "scale"} <= raw.keys()


def _table(path: Path) -> dict[str, Any]:
    table = Table.load(path)
    return {"kind": "encoding table", "path": str(path), "bytes": path.stat().st_size, "encodings": len(table),
            "grids": _count(_grid(e) for e in table.values())}


def _grid(e: Encoding) -> str:
    reach = ("LPBQ, block" if e.block_scale is not None else "per block of") + f" {e.block}" if e.block else (
        "per tensor" if e.scale.ndim == 0 else f"per channel (axis {e.axis})")
    return f"{e.dtype} {reach}{', symmetric' if e.symmetric else ''}"


def _aimet(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": f"AIMET encodings {raw.get('version', '(no version)')}", "path": str(path),
                             "bytes": path.stat().st_size, "producer": raw.get("producer", "")}
    try:
        for key, name in _sections(raw).items():
            rows = list(_rows(raw[key]))
            facts[name] = {"encodings": len(rows), "grids": _count(map(_aimet_grid, rows))}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EdgeForgeError(f"{path}: {key} is damaged: {type(error).__name__} {error}") from error
    return facts


def _sections(raw: dict[str, Any]) -> dict[str, str]:
    """Key and plain name of each list: one for both kinds of values since 2.0.0. Empty: not AIMET's."""
    if "encodings" in raw and "version" in raw:
        return {"encodings": "values"}
    known = {"activation_encodings": "activations", "param_encodings": "parameters"}
    return known if known.keys() <= raw.keys() else {}


def _rows(section: Any) -> Iterable[dict[str, Any]]:
    """1.0.0 has a list of rows; 0.6.1 a mapping from names to lists of one row a channel."""
    if isinstance(section, list):
        return section
    return [{"name": k, "channels": len(v), **v[0]} for k, v in section.items()]


def _aimet_grid(row: dict[str, Any]) -> str:
    if "output_dtype" in row:
        return _nested_grid(row)
    bits, channels = row.get("bw", row.get("bitwidth")), row.get("channels", 1)
    kind = str(row.get("enc_type") or ("PER_CHANNEL" if channels > 1 else "PER_TENSOR"))
    symmetric = str(row.get("is_sym", row.get("is_symmetric", ""))).lower() == "true"
    return f"{row['dtype']}{bits} {kind.lower().replace('_', ' ')}{', symmetric' if symmetric else ''}"


def _nested_grid(row: dict[str, Any]) -> str:
    """2.0.0 and 2.1.0."""
    block = f", block {row['block_size']}" if "block_size" in row else ""
    expanded = "per_block_int_scale" in row or isinstance(row["y_scale"], dict)
    kind = "LPBQ" if expanded else "per block" if block else "per channel" if "axis" in row else "per tensor"
    return f"{row['output_dtype']} {kind}{block}"


def _count(grids: Iterable[str]) -> dict[str, int]:
    return dict(Counter(grids).most_common())
