"""What is damaged, and who reads it: each kind writes a case into a folder by seed, and feeds it to our code."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import foreign
import mutate
import numpy as np

Bases = dict[str, bytes]


@dataclass(frozen=True)
class Kind:
    """bases: undamaged files by name, made once a worker. damage: those of one case.

    read: what may only fail with our own errors, and leaves the folder as it was. weight: share of all cases.
    seconds: most for one case.
    """

    name: str
    bases: Callable[[], Bases]
    damage: Callable[[Random, Bases], Bases]
    read: Callable[[Path], object]
    weight: int
    seconds: float = 5.0

    def write(self, seed: int, folder: Path) -> None:
        """The case's files; the same for the same seed."""
        rng = Random(f"{self.name}:{seed}")
        for name, content in self.damage(rng, _bases(self)).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@cache
def _bases(kind: Kind) -> Bases:
    return kind.bases()


def _one(rng: Random, bases: Bases, **how: Callable[[Random, bytes], bytes]) -> Bases:
    """The bases with one file (rarely two) damaged by its suffix's way, or missing."""
    made = dict(bases)
    names = sorted(n for n in made if Path(n).suffix[1:] in how)
    for name in rng.sample(names, k=min(len(names), rng.choice((1, 1, 1, 2)))):
        if rng.random() < 0.03:
            del made[name]
        else:
            made[name] = how[Path(name).suffix[1:]](rng, made[name])
    return made


def _json(rng: Random, raw: bytes) -> bytes:
    return mutate.json_bytes(rng, json.loads(raw))


# --- recipes ---------------------------------------------------------------------------------------------------------

_RECIPE: dict[str, Any] = {
    "model": "../models/tiny", "out": "../out/tiny",
    "target": {"chip": "snapdragon-8-gen-3", "context": 1024, "prefill": 128},
    "calibrate": {"text": "text.txt", "windows": 16, "tokens": 512},
    "quantize": {"weights": 8, "activations": 16, "kv": 8, "embedding": 16, "rounding": "gptq",
                 "transforms": ["rotate", "equalize_kv", "split_outliers"]},
    "split": {"part_bytes": 1 << 30}, "compile": {"timeout_s": 1800},
    "gates": {"windows": 2, "adapt_db": 60, "quantize_kl": 0.02, "shared_bytes": 1.05}}
_BOMBS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in itertools.pairwise("abcdefghij")) + "model: *i\n",
    "model: &m {out: *m}\n", "model: !!python/object/apply:os.system [touch bomb]\n", "<<: &x {model: a}\nout: *x\n",
    "? [a, b]\n: c\n", "model: 2026-01-01\nout: 1_000\n", "--- a\n--- b\n", "model: !!binary aGk=\n", "!!set {model}\n",
    "model: !!timestamp 9999-99-99\n", "0o17: 0x1F\n", "&a [*a]\n", "model: " + "{a: " * 2000 + "1" + "}" * 2000)


def _damage_recipe(rng: Random, bases: Bases) -> Bases:
    import yaml

    if rng.random() < 0.05:
        return {"recipe.yaml": rng.choice(_BOMBS).encode() + (bases["recipe.yaml"] if rng.random() < 0.5 else b"")}
    if rng.random() < 0.4:
        return {"recipe.yaml": mutate.text(rng, bases["recipe.yaml"].decode())}
    made = mutate.dump(mutate.tree(rng, _RECIPE))
    if rng.random() < 0.5 and len(made) < 5000:
        with contextlib.suppress(yaml.YAMLError, ValueError):  # a lone surrogate, say: then the JSON is the YAML
            made = yaml.safe_dump(json.loads(made), allow_unicode=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return {"recipe.yaml": made}


def _recipes() -> Bases:
    import yaml

    return {"recipe.yaml": yaml.safe_dump(_RECIPE, sort_keys=False).encode()}


def _read_recipe(folder: Path) -> object:
    from edgeforge import recipe

    return recipe.load(folder / "recipe.yaml")


# --- encodings -------------------------------------------------------------------------------------------------------

_TABLE: dict[str, Any] = {
    "hidden": {"bits": 16, "signed": False, "scale": 0.5, "zero_point": 100},
    "q.weight": {"bits": 8, "signed": True, "scale": [0.5, 0.125], "zero_point": [0, 0], "axis": 0},
    "up.weight": {"bits": 4, "signed": True, "scale": [0.5, 1.0], "zero_point": [[0, 0], [0, 0]], "axis": 1,
                  "block": 32, "block_scale": [[1, 16], [2, 3]], "channel": 0}}


def _read_table(folder: Path) -> object:
    from edgeforge.encodings import Table
    from edgeforge.export import aimet

    table = Table.load(folder / "table.json")
    for encoding in table.values():
        assert encoding.dtype
        assert encoding.steps().size
        assert encoding.low <= encoding.high
    printed = folder / "printed.encodings"
    aimet.write(printed, table, [n for n in table if n.endswith("weight")], "fuzz")
    Table.load(folder / "table.json").save(printed)
    printed.unlink()
    return table


# --- bundles and what lies in them -----------------------------------------------------------------------------------

def _bundle() -> Bases:
    """A bundle that answers: two layers of linear algebra in ONNX, four tokens of context."""
    import tempfile

    import toy

    with tempfile.TemporaryDirectory() as place:
        toy.bundle(Path(place))
        return {str(p.relative_to(place)): p.read_bytes() for p in sorted(Path(place).rglob("*")) if p.is_file()}


def _damage_bundle(rng: Random, bases: Bases) -> Bases:
    if rng.random() < 0.8:
        return bases | {"manifest.json": _json(rng, bases["manifest.json"])}
    return _one(rng, bases, json=_json, npz=mutate.binary, onnx=mutate.binary)


def _read_bundle(folder: Path) -> object:
    from edgeforge_runtime.session import Session

    with Session.open(folder, threads=1) as session:
        return [session.prompt([1, 2, 3]), session.step(0)]


def _locked() -> Bases:
    import hashlib

    files = {"model.onnx": b"model", "device/part.bin": b"binary"}
    listed = {n: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest(), "reproducible": True}
              for n, c in files.items()}
    inputs = {"edgeforge": "0", "python": "3", "threads": 2, "recipe": {}, "model": "0" * 64, "text": None,
              "tools": {"x": "1"}}
    lock = {"format": "edgeforge-lock-1", "source": "nowhere", "inputs": inputs, "data": {}, "stages": {},
            "files": listed}
    return files | {"edgeforge.lock.json": json.dumps(lock).encode()}


def _read_lock(folder: Path) -> object:
    from edgeforge import lock

    return lock.check(folder)


def _read_npz(folder: Path) -> object:
    from edgeforge.vectors import make

    out = folder / "set"
    count = make.make(folder, out)
    shutil.rmtree(out)
    return count


def _sets() -> Bases:
    import tempfile

    from edgeforge.vectors import format as sets
    from edgeforge.vectors.format import Expected, TensorSpec, Tolerance

    x = TensorSpec(name="x", dtype="uint16", shape=(2, 3), scale=0.5, zero_point=3)
    y = Expected(name="y", dtype="float32", shape=(2,), tolerance=Tolerance(sqnr_db=40.0))
    with tempfile.TemporaryDirectory() as place:
        call = ("c", {"x": np.ones((2, 3), np.uint16)}, {"y": np.ones(2, np.float32)})
        sets.write(Path(place) / "s", "fuzz", {}, [(name, [x], [y], [call, call]) for name in ("a", "b")])
        return {str(p.relative_to(Path(place) / "s")): p.read_bytes() for p in Path(place).rglob("*") if p.is_file()}


def _damage_set(rng: Random, bases: Bases) -> Bases:
    if rng.random() < 0.8:
        return bases | {"manifest.json": _json(rng, bases["manifest.json"])}
    return _one(rng, bases, json=_json, raw=mutate.binary)


def _read_set(folder: Path) -> object:
    from edgeforge.vectors import check

    return check.device(folder, folder / "expected")


# --- ONNX ------------------------------------------------------------------------------------------------------------

def _onnx(build: str) -> Bases:
    import tempfile

    import toy

    from edgeforge.graph import store

    with tempfile.TemporaryDirectory() as place:
        store.save(getattr(toy, build)(), Path(place))
        return {p.name: p.read_bytes() for p in Path(place).iterdir()}


def _damage_onnx(rng: Random, bases: Bases) -> Bases:
    import toy

    made = toy.damaged(rng, bases["model.onnx"]) if rng.random() < 0.5 else mutate.binary(rng, bases["model.onnx"])
    data = bases["model.data"] if rng.random() < 0.8 else mutate.binary(rng, bases["model.data"])
    return {"model.onnx": made, "model.data": data} if rng.random() < 0.97 else {"model.onnx": made}


def _read_onnx(folder: Path) -> object:
    """An artifact of ours (whose bytes the cache answers for): parsed or refused."""
    from edgeforge.graph import edit, store

    return edit.names(store.load(folder).graph)


def _read_any_onnx(folder: Path) -> object:
    """A stranger's model: what is taken can be read to its last weight."""
    from edgeforge.graph import edit, enter

    model = enter.read(folder / "model.onnx")
    return [edit.constant(v) for v in model.graph.initializers.values()], enter.signature(model.graph)


def _samples() -> Bases:
    import io

    content = io.BytesIO()
    np.savez(content, x=np.arange(12, dtype=np.float32).reshape(4, 1, 3), ids=np.ones((4, 2), np.int64))
    return {"data.npz": content.getvalue()}


def _read_samples(folder: Path) -> object:
    from edgeforge.calibrate import samples

    inputs = [samples.Input("x", "float32", (1, 3)), samples.Input("ids", "int64", (1, 2))]
    found = samples.load(folder / "data.npz", inputs)
    return found.calibration, found.evaluation


# --- checkpoints -----------------------------------------------------------------------------------------------------

def _checkpoint() -> Bases:
    import tempfile

    import toy

    with tempfile.TemporaryDirectory() as place:
        toy.checkpoint(Path(place))
        return {p.name: p.read_bytes() for p in Path(place).iterdir()}


def _damage_checkpoint(rng: Random, bases: Bases) -> Bases:
    return _one(rng, bases, json=_json, safetensors=mutate.safetensors)


def _read_checkpoint(folder: Path) -> object:
    from edgeforge import checkpoint

    found = checkpoint.open_checkpoint(folder)
    memory = folder / "hashes.json"
    found.fingerprint(memory)
    memory.unlink(missing_ok=True)
    return found


def _project() -> Bases:
    import yaml

    recipe = _RECIPE | {"model": "model", "out": "out/x", "calibrate": {"windows": 4, "tokens": 16},
                        "target": {"chip": "snapdragon-8-gen-3", "context": 64, "prefill": 16}}
    model = {f"model/{name}": raw for name, raw in _checkpoint().items()}
    return model | {"recipe.yaml": yaml.safe_dump(recipe).encode()}


def _damage_project(rng: Random, bases: Bases) -> Bases:
    import yaml

    if rng.random() < 0.5:
        return bases | {"recipe.yaml": mutate.dump(mutate.tree(rng, yaml.safe_load(bases["recipe.yaml"])))}
    if rng.random() < 0.7:
        return bases | {"model/config.json": _json(rng, bases["model/config.json"])}
    return _one(rng, bases, json=_json, safetensors=mutate.safetensors)


def _read_project(folder: Path) -> object:
    """All that is asked before the first minute of work."""
    from edgeforge import check, recipe

    report = check.examine(recipe.load(folder / "recipe.yaml"))
    return report.exit_code, [str(f) for f in report.findings], str(report.facts)


def _gguf() -> Bases:
    import tempfile

    import toy

    with tempfile.TemporaryDirectory() as place:
        return {"model.gguf": toy.gguf_file(Path(place) / "model.gguf")}


def _damage_gguf(rng: Random, bases: Bases) -> Bases:
    import toy

    raw = bases["model.gguf"]
    return {"model.gguf": mutate.binary(rng, raw, toy.gguf_boundaries(raw))}


def _read_gguf(folder: Path) -> object:
    from edgeforge import checkpoint

    return checkpoint.open_checkpoint(folder / "model.gguf")


def _damage_tokenizer(rng: Random, bases: Bases) -> Bases:
    return _one(rng, {n: bases[n] for n in bases if n.startswith(("tokenizer", "chat"))}, json=_json,
                jinja=lambda r, raw: mutate.text(r, raw.decode()))


def _read_tokenizer(folder: Path) -> object:
    from edgeforge_runtime.text import TextCodec

    codec = TextCodec(folder)
    return codec.encode("a"), codec.decode([0, 5, 7]), codec.encode_chat([{"role": "user", "content": "Why?"}])


# --- context binaries ------------------------------------------------------------------------------------------------

def _binary() -> Bases:
    import tempfile

    import toy

    with tempfile.TemporaryDirectory() as place:
        return {"part.bin": toy.context_binary(Path(place))}


def _damage_binary(rng: Random, bases: Bases) -> Bases:
    raw = bases["part.bin"]
    return {"part.bin": mutate.binary(rng, raw, (*range(0, 512, 4), len(raw) - 1))}


def _read_binary(folder: Path) -> object:
    from edgeforge.backends.qnn import binary

    return binary.read_binary(folder / "part.bin", 20.0)


KINDS = {kind.name: kind for kind in (
    Kind("recipe", _recipes, _damage_recipe, _read_recipe, 30),
    Kind("table", lambda: {"table.json": json.dumps(_TABLE).encode()}, lambda r, b: _one(r, b, json=_json),
         _read_table, 20),
    Kind("foreign", foreign.files, lambda r, b: _one(r, b, json=_json), foreign.read, 12),
    Kind("bundle", _bundle, _damage_bundle, _read_bundle, 12),
    Kind("vectors", _bundle, lambda r, b: _one(r, b, npz=mutate.binary, json=_json), _read_npz, 5),
    Kind("lock", _locked, lambda r, b: _one(r, b, json=_json), _read_lock, 6),
    Kind("set", _sets, _damage_set, _read_set, 12),
    Kind("onnx", lambda: _onnx("graph"), _damage_onnx, _read_onnx, 12),
    Kind("project", _project, _damage_project, _read_project, 15),
    Kind("any-onnx", lambda: _onnx("network"), _damage_onnx, _read_any_onnx, 12),
    Kind("samples", _samples, lambda r, b: _one(r, b, npz=mutate.binary), _read_samples, 5),
    Kind("gguf", _gguf, _damage_gguf, _read_gguf, 12),
    Kind("context-binary", _binary, _damage_binary, _read_binary, 1, 60.0),
    Kind("checkpoint", _checkpoint, _damage_checkpoint, _read_checkpoint, 12),
    Kind("tokenizer", _checkpoint, _damage_tokenizer, _read_tokenizer, 6),
)}
