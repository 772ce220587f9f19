"""Child process: compiles one part. ``python -m edgeforge.backends.qnn.worker job.json``

Everything is written beside job.json: ``<part>.bin``, and for each graph ``<graph>.onnx`` (EPContext
wrapper), ``<graph>.outputs.npz``, ``<graph>.qnn.json`` (QNN graph) and ``<graph>.trace.json`` (ONNX to
QNN names); ``result.json`` last, so that its presence means success. Options and their traps:
onnxruntime-qnn 2.7.0, as tried on its x86 wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import onnx
import onnxruntime as ort

from edgeforge.backends import orphan
from edgeforge.backends.qnn import session as sessions
from edgeforge.backends.qnn import wheel
from edgeforge.backends.qnn.interface import Hooks
from edgeforge.backends.qnn.job import RESULT, GraphJob, PartJob
from edgeforge.errors import CompilerError, EdgeForgeError
from edgeforge.export import record

DUMPS, TRACE = "dumps", "qnn_op_trace.json"  # the provider writes the trace into the working folder


def compile_graphs(job: PartJob, folder: Path) -> None:
    """The whole job; raises on anything that is not a complete part."""
    start = time.monotonic()
    found = sessions.register()
    hooks = Hooks(found.library(wheel.HTP), share_weights=job.weight_sharing)
    opened: list[tuple[GraphJob, ort.InferenceSession]] = []
    for index, graph in enumerate(job.graphs):
        opened.append((graph, _compile(job, index, folder, found, hooks)))
    if hooks.created != [g.name for g in job.graphs]:
        raise CompilerError(f"the provider created graphs {hooks.created} through our table")
    if not job.weight_sharing and len(job.graphs) > 1 and hooks.dropped_options != 1:
        raise CompilerError(f"dropped {hooks.dropped_options} weight-sharing options, expected one")
    compiled = time.monotonic()
    for graph, session in opened:
        if graph.feeds is not None:
            feeds = record.load_arrays(graph.feeds)
            record.save_arrays(folder / f"{graph.name}.outputs.npz", sessions.run(session, feeds))
    ran = time.monotonic()
    opened.clear()
    hooks.remove()
    _own_files(job, folder)
    result = {
        "name": job.name,
        "weight_sharing": job.weight_sharing,
        "graphs": [g.name for g in job.graphs],
        "binary": f"{job.name}.bin",
        "compile_seconds": compiled - start,
        "run_seconds": ran - compiled,
        "peak_rss_bytes": _peak_rss_bytes(),
        "versions": found.stamp(),
    }
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _compile(
    job: PartJob, index: int, folder: Path, found: wheel.Wheel, hooks: Hooks
) -> ort.InferenceSession:
    """One graph into the shared context; the last one makes the provider write the binary."""
    graph = job.graphs[index]
    _check_static(graph)
    dumps = folder / DUMPS / graph.name
    shutil.rmtree(dumps, ignore_errors=True)
    dumps.mkdir(parents=True)
    options = {
        **job.options,
        "dump_json_qnn_graph": "1",
        "json_qnn_graph_dir": str(dumps),
        "enable_framework_op_trace": "1",
    }
    wrapper = folder / f"{graph.name}.onnx"
    wrapper.unlink(missing_ok=True)  # the provider refuses to overwrite, and this may be a rerun
    config = {"ep.context_enable": "1", "ep.context_file_path": str(wrapper), "ep.context_embed_mode": "0"}
    if len(job.graphs) > 1:
        config["ep.share_ep_contexts"] = "1"
        if index == len(job.graphs) - 1:
            config["ep.stop_share_ep_contexts"] = "1"
    hooks.name_next(graph.name)
    try:
        session = sessions.open_session(graph.onnx, found, options, config)
    except Exception as error:
        raise CompilerError(f"graph {graph.name}: {'; '.join([*hooks.problems, str(error)])}") from error
    # The model's tensor log lies beside the dump; both are named after the provider's hash.
    graphs = [p for p in dumps.glob("*.json") if not p.stem.endswith("_tensor_log")]
    if len(graphs) != 1:
        raise CompilerError(f"graph {graph.name}: the provider dumped {len(graphs)} QNN graphs, expected one")
    graphs[0].replace(folder / f"{graph.name}.qnn.json")
    Path(TRACE).replace(folder / f"{graph.name}.trace.json")
    return session


def _check_static(graph: GraphJob) -> None:
    """The provider drops a graph with symbolic dimensions without naming them; this does."""
    try:
        model = onnx.load(graph.onnx, load_external_data=False)
    except Exception as error:  # protobuf's own error types differ between its implementations
        raise CompilerError(
            f"graph {graph.name}: {graph.onnx} is not a readable ONNX file: {error}"
        ) from error
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        symbolic = [d.dim_param or "?" for d in dims if not d.HasField("dim_value")]
        if symbolic:
            raise CompilerError(
                f"graph {graph.name}: {value.name} has dimensions without a size"
                f" ({', '.join(symbolic)}); HTP wants every shape fixed"
            )


def _own_files(job: PartJob, folder: Path) -> None:
    """Our file and graph names in place of the provider's, so that the folder can be moved."""
    written = list(folder.glob("*_qnn.bin"))
    if len(written) != 1:
        raise CompilerError(f"the provider wrote {[p.name for p in written]}, expected one context binary")
    written[0].replace(folder / f"{job.name}.bin")
    shutil.rmtree(folder / DUMPS)
    for graph in job.graphs:
        path = folder / f"{graph.name}.onnx"
        model = onnx.load(path)
        if [n.op_type for n in model.graph.node] != ["EPContext"]:
            raise CompilerError(
                f"graph {graph.name}: nodes were left outside HTP: "
                + ", ".join(f"{n.name} ({n.op_type})" for n in model.graph.node)
            )
        node = model.graph.node[0]
        node.name = graph.name
        own = {"partition_name": graph.name, "ep_cache_context": f"{job.name}.bin"}
        missing = set(own) - {a.name for a in node.attribute}
        if missing:
            raise CompilerError(f"graph {graph.name}: its EPContext node has no {', '.join(sorted(missing))}")
        for attribute in node.attribute:
            if attribute.name in own:
                attribute.s = own[attribute.name].encode()
        onnx.save(model, path)


def _peak_rss_bytes() -> int:
    """VmHWM; getrusage would report the parent's peak, which a new process starts out with."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0]).resolve()
    folder = path.parent
    os.chdir(folder)
    job = PartJob.load(path)
    for stale in (RESULT, f"{job.name}.bin", *(f"{g.name}_qnn.bin" for g in job.graphs)):
        (folder / stale).unlink(missing_ok=True)
    try:
        compile_graphs(job, folder)
    except EdgeForgeError as error:
        print(f"Error: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
