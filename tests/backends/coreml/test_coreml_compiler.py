"""The emitter in its own process: what it writes, what it refuses, and the job that is left when it fails."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import coreml_tiny
import onnx_ir as ir
import pytest
from made_grids import lpbq

from edgeforge import cli
from edgeforge.backends import failed
from edgeforge.backends.coreml import child, compiler, package
from edgeforge.backends.coreml.job import Job
from edgeforge.backends.ending import ChildFailed
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError, UnsupportedError
from edgeforge.graph import edit, store
from edgeforge.quantize.weights import palette_file

DOWN = "model.layers.1.mlp.down_proj.weight"


def _job(folder: Path, model: ir.Model, table: Table | None = None) -> Job:
    (folder / "graph").mkdir(parents=True)
    store.save(model.clone(), folder / "graph")
    (table or Table()).save(folder / "table.json")
    (folder / "out").mkdir()
    return Job(folder / "graph", folder / "table.json", None, coreml_tiny.WIDTHS, 48, folder / "out" / "a.mlpackage")


def test_the_process_writes_what_the_emitter_does(tmp_path: Path) -> None:
    """Codes from the table, tables from the palettes, the rest in float16."""
    made, model = coreml_tiny.graph("llama")
    palettes = {n: p for n, p in coreml_tiny.palettes(model, 4, 4).items() if "mlp" in n}
    table = Table({n: e for n, e in coreml_tiny.table(model, 8).items() if "mlp" not in n})
    here = coreml_tiny.emit(tmp_path / "here", made, model, table, palettes)
    palette_file.save(tmp_path / palette_file.FILE, palettes)
    job = dataclasses.replace(_job(tmp_path / "there", model, table), palettes=tmp_path / palette_file.FILE)
    (sharing,) = (p.sharing for p in compiler.write(job, 120))
    assert sharing == here.sharing
    for file in sorted(p.relative_to(here.package) for p in here.package.rglob("*") if p.is_file()):
        assert (job.package / file).read_bytes() == (here.package / file).read_bytes(), file
    assert [p.name for p in job.package.parent.iterdir()] == ["a.mlpackage"]
    with pytest.raises(EdgeForgeError, match="is there already"):
        compiler.write(job, 120)


def test_a_refusal_comes_back_as_what_it_is(tmp_path: Path) -> None:
    _, model = coreml_tiny.graph("llama")
    array = edit.constant(model.graph.initializers[DOWN])
    assert array is not None
    job = _job(tmp_path, model, Table({DOWN: lpbq(array, 0, 16)}))
    with pytest.raises(UnsupportedError, match=rf"^{DOWN}: its steps are no float16 numbers") as caught:
        compiler.write(job, 120)
    assert "quantize it for this chip" in caught.value.hint
    assert [p.name for p in job.package.parent.iterdir()] == ["a.mlpackage.failed"], "the job, to be looked at"
    left = job.package.parent / "a.mlpackage.failed"
    with pytest.raises(UnsupportedError, match="is not cut down, for it named what it refused: "
                       f"{DOWN}: its steps are no float16 numbers") as bisected:
        cli.app(["bisect", str(left)], standalone_mode=False)
    assert caught.value.hint in bisected.value.hint
    assert f"python -m {child.MODULE} {left / child.JOB}" in bisected.value.hint


def test_a_process_that_hangs_or_dies_leaves_its_job(tmp_path: Path) -> None:
    """With the log and failure.json; the job does alone what it did here."""
    _, model = coreml_tiny.graph("llama")
    job, failure = _job(tmp_path, model), tmp_path / "failed" / "a"
    with pytest.raises(ChildFailed, match=r"a.mlpackage: the Core ML emitter did not finish within 0 s") as caught:
        compiler.write(job, 0.05, failure=failure)
    assert (caught.value.ending.kind, failed.recorded(failure)) == ("hung", (caught.value.ending, None))
    with pytest.raises(ChildFailed, match="needed more than its limit of 8 MiB"):
        compiler.write(job, 120, 8 << 20, failure)
    with pytest.raises(UnsupportedError, match="It needed more than its limit of 8 MiB") as bisected:
        cli.app(["bisect", str(failure)], standalone_mode=False)
    assert f"the log is {failure / child.LOG}; to run it alone: python -m {child.MODULE}" in bisected.value.hint
    ending, limit = failed.recorded(failure)
    assert (ending and ending.kind, limit) == ("memory", 8 << 20)
    assert not list(job.package.parent.iterdir()), "nothing half-written"
    assert (failure / child.LOG).is_file()
    done = subprocess.run([*child.WORKER, str(failure / child.JOB)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (failure / "a.mlpackage" / package.MODEL).is_file()


def test_a_missing_graph_is_said(tmp_path: Path) -> None:
    _, model = coreml_tiny.graph("llama")
    job = dataclasses.replace(_job(tmp_path, model), graph=tmp_path / "nowhere")
    with pytest.raises(EdgeForgeError, match="nowhere/model.onnx does not exist"):
        compiler.write(job, 120)
