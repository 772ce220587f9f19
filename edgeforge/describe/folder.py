"""Bundles and stages' folders: stamps, targets, gates, sizes, and whether every file is as long as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeforge_runtime.errors import ManifestError
from edgeforge_runtime.manifest import NAME, Graph, Manifest, Target, Tensor
from edgeforge_runtime.plain import PlainManifest
from edgeforge_runtime.plain import load as load_manifest
from edgeforge_runtime.typed import read_json

from edgeforge import backends, gates
from edgeforge.build import STAMP
from edgeforge.errors import EdgeForgeError
from edgeforge.report.record import REPORT


def describe(path: Path) -> dict[str, Any]:
    """See the module. EdgeForgeError: neither a bundle nor a finished stage, or its small files are damaged."""
    stamp, manifest = _stamp(path), _manifest(path)
    if stamp is None and manifest is None:
        raise EdgeForgeError(f"{path} is neither a bundle nor a stage's folder: no {NAME}, no {STAMP}",
                             "give the bundle's own folder, or <cache>/<stage>/<key>")
    stage = "bundle" if stamp is None else str(stamp.get("stage"))
    facts: dict[str, Any] = {"kind": "bundle" if stage == "bundle" else f"stage {stage}", "path": str(path)}
    if manifest is not None:
        facts |= {"model": _model(manifest), "targets": {n: _target(t) for n, t in manifest.targets.items()},
                  "stamps": dict(manifest.stamps)}
    if stamp is not None:
        facts["made_by"] = {k: stamp.get(k) for k in ("edgeforge", "key", "seconds", "peak_rss_mib", "tools")}
    facts["gates"] = _gates(path)
    facts["folders"] = _sizes(path)
    facts["binaries"], unreadable = _binaries(path)
    facts["problems"] = [*_changed(path, stamp or {}), *unreadable, *_unlike(facts["binaries"])]
    return facts


def is_ours(path: Path) -> bool:
    """A bundle or a stage's folder, whatever it is called?"""
    return (path / NAME).exists() or (path / STAMP).exists()


def _stamp(path: Path) -> dict[str, Any] | None:
    raw = _read(path / STAMP)
    if raw is not None and not (isinstance(raw, dict) and isinstance(raw.get("files"), dict)):
        raise EdgeForgeError(f"{path / STAMP} is damaged", "build again, or copy the folder again")
    return raw


def _manifest(path: Path) -> Manifest | PlainManifest | None:
    if not (path / NAME).exists():
        return None
    try:
        return load_manifest(path)
    except ManifestError as error:
        raise EdgeForgeError(str(error), "build again, or copy the folder again") from error


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise EdgeForgeError(f"{path} is damaged: {error}", "build again, or copy the folder again") from error


def _model(manifest: Manifest | PlainManifest) -> dict[str, Any]:
    if isinstance(manifest, PlainManifest):
        return {"name": manifest.name}
    m = manifest.model
    return {"name": m.name, "layers": m.layers, "vocabulary": m.vocab_size, "context": m.context, "eos": list(m.eos)}


def _target(target: Target) -> dict[str, Any]:
    return {"executor": target.executor, "options": dict(target.options), "graphs": [_graph(g) for g in target.graphs]}


def _graph(graph: Graph) -> dict[str, Any]:
    """At its widths; with its tensors where it reads no tokens, for then nothing else says what it takes."""
    facts = {"parts": len(graph.parts), "files": " ".join(p.file for p in graph.parts)}
    if graph.cl:
        return {"ar": graph.ar, "cl": graph.cl, **facts}
    return {"name": graph.parts[0].graph, **facts,
            **{side: list(map(_tensor, t.values())) for side, t in zip(("inputs", "outputs"), graph.boundary(),
                                                                        strict=True)}}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "scale": tensor.scale,
            "zero_point": tensor.zero_point if tensor.scale is not None else None}


def _gates(path: Path) -> dict[str, Any]:
    """Of the whole build where there is a report, else of this stage."""
    report = _read(path / REPORT)
    try:
        if report is not None:
            checks = [gates.Check(**{**c, "value": float(c["value"])}) for s in report["stages"] for c in s["checks"]]
        else:
            checks = gates.load(path) if (path / gates.FILE).exists() else []
    except (ValueError, KeyError, TypeError) as error:
        raise EdgeForgeError(f"{path}: {REPORT} or {gates.FILE} is damaged: {error}") from error
    judged = [c for c in checks if c.threshold is not None]
    facts: dict[str, Any] = {"passed": sum(c.passed for c in judged), "of": len(judged),
                             "failed": [str(c) for c in judged if not c.passed]}
    return facts | ({"not_seen": report["not_seen"]} if report is not None and "not_seen" in report else {})


def _sizes(path: Path) -> dict[str, int]:
    """Bytes in each folder, and in the files beside them."""
    sizes: dict[str, int] = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        first = file.relative_to(path).parts
        name = f"{first[0]}/" if len(first) > 1 else first[0]
        sizes[name] = sizes.get(name, 0) + file.stat().st_size
    return sizes


def _changed(path: Path, stamp: Mapping[str, Any]) -> list[str]:
    """Files that are not as long as when the stage was finished."""
    found = []
    for name, size in _written(path, stamp):
        file = path / name
        now = file.stat().st_size if file.is_file() else None
        if now is None:
            found.append(f"{name} is missing ({size:,} bytes)")
        elif now != size:
            found.append(f"{name} has {now:,} bytes, was written with {size:,}")
    return found


def _written(path: Path, stamp: Mapping[str, Any]) -> list[tuple[str, int]]:
    try:
        return [(name, int(seen["bytes"])) for name, seen in stamp.get("files", {}).items()]
    except (ValueError, KeyError, TypeError) as error:
        raise EdgeForgeError(f"{path / STAMP} is damaged: {type(error).__name__} {error}",
                             "build again, or copy the folder again") from error


def _binaries(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Every compiled file in short, by the backend that knows its kind; and those that it cannot read."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    suffixes = {name: backends.backend(name).suffixes for name in backends.names()}
    found_by = {name: [p for s in mine for p in path.rglob(f"*{s}")] for name, mine in suffixes.items()}
    packages = {p for paths in found_by.values() for p in paths if p.is_dir()}
    for name, paths in found_by.items():
        owner = backends.backend(name)
        files = sorted(p for p in paths if packages.isdisjoint(p.parents))  # a package's own files are its backend's
        if not files:
            continue
        try:
            found = owner.describe(files)
        except EdgeForgeError:  # one of them: which?
            found = []
            for file in files:
                try:
                    found += owner.describe([file])
                except EdgeForgeError as error:
                    problems.append(error.message)
        rows += [{"backend": name, "file": str(Path(f["path"]).relative_to(path)), **owner.brief(f)} for f in found]
    return rows, problems


def _unlike(rows: list[dict[str, Any]]) -> list[str]:
    """Compiled files of one backend, and of one kind where it has several, that differ where all have to agree."""
    found = []
    for name, kind in dict.fromkeys((r["backend"], r.get("kind")) for r in rows):
        mine = [r for r in rows if (r["backend"], r.get("kind")) == (name, kind)]
        for key in backends.backend(name).alike:
            usual = Counter(r[key] for r in mine).most_common(1)[0][0]
            found += [f"{r['file']} has {key} {r[key]}, the other binaries {usual}" for r in mine if r[key] != usual]
    return found
