"""AIMET's own files of encodings, and the graph that they belong to (see test_vectors/aimet)."""

from __future__ import annotations

from pathlib import Path

_FILES = Path(__file__).parents[2] / "test_vectors" / "aimet"
_GRAPH = """<ir_version: 10, opset_import: ["" : 23]>
g (float[1, 1, 6, 32] x, float[48, 32, 1, 1] w1, float[48, 64] w2, float[64, 5] w3) => (float[1, 1, 6, 5] y)
<float[1, 32, 1, 6] t, float[1, 48, 1, 6] c, float[1, 1, 6, 48] u, float[1, 1, 6, 48] s, float[1, 1, 6, 48] p,
 float[1, 1, 6, 64] m, float[1, 1, 6, 64] h> {
    t = Transpose<perm = [0, 3, 1, 2]>(x) c = Conv(t, w1) u = Transpose<perm = [0, 2, 3, 1]>(c) s = Sigmoid(u)
    p = Mul(u, s) m = MatMul(p, w2) h = Tanh(m) y = MatMul(h, w3) }"""


def files() -> dict[str, bytes]:
    """One file of each version."""
    return {f"{p.stem}.json": p.read_bytes() for p in sorted(_FILES.glob("theirs-*.encodings"))}


def read(folder: Path) -> object:
    """Every file as a recipe's check and the quantize stage read it."""
    import numpy as np
    import onnx_ir as ir

    from edgeforge.export import aimet_file, aimet_read
    from edgeforge.quantize import assign, foreign

    graph = ir.from_onnx_text(_GRAPH).graph
    for value in [v for v in graph.inputs if str(v.name).startswith("w")]:
        graph.inputs.remove(value)
        value.const_value = ir.tensor(np.ones([int(d) for d in value.shape or ()], np.float32), name=value.name)
        graph.register_initializer(value)
    found = []
    for path in sorted(folder.iterdir()):
        found.append((aimet_file.glances(path), foreign.take(graph, aimet_read.read(path, graph), assign.Grids(), {})))
    return found
