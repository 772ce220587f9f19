"""Heads apart: same function, codes and encodings sliced with the weights, and anything unknown refused by name."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from made_grids import lpbq

from edgeforge import encodings
from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit, sha
from edgeforge.quantize.weights.grid import per_channel

KV, GROUP, D, WIDTH = 2, 2, 4, 8
"""2 key heads, 4 query heads of 4, hidden 8"""

INPUTS = f"float[1,{WIDTH},1,s] x, float[1,1,s,t] mask, float[{KV},1,{D},past] past_k, float[{KV},1,past,{D}] past_v"
OUTPUTS = f"float[1,{WIDTH},1,s] y, float[{KV},1,{D},s] new_k, float[{KV},1,s,{D}] new_v"
ATTENTION = """
    q_shape = Constant<value = int64[4] {1, -1, 4, 4}>()
    k_shape = Constant<value = int64[4] {1, -1, 2, 4}>()
    grouped = Constant<value = int64[4] {2, 2, -1, 4}>()
    flat = Constant<value = int64[4] {1, 4, -1, 4}>()
    merged = Constant<value = int64[4] {1, 1, -1, 16}>()
    qc = Conv(x, wq, bq)
    qt = Transpose<perm=[0,2,3,1]>(qc)
    qr = Reshape(qt, q_shape)
    qh = Transpose<perm=[0,2,1,3]>(qr)
    qg = Reshape(qh, grouped)
    kc = Conv(x, wk, bk)
    kt = Transpose<perm=[0,2,3,1]>(kc)
    kr = Reshape(kt, k_shape)
    new_k = Transpose<perm=[2,0,3,1]>(kr)
    k = Concat<axis=3>(past_k, new_k)
    vc = Conv(x, wv)
    vt = Transpose<perm=[0,2,3,1]>(vc)
    vr = Reshape(vt, k_shape)
    new_v = Transpose<perm=[2,0,1,3]>(vr)
    v = Concat<axis=2>(past_v, new_v)
    scores = MatMul(qg, k)
    masked = Add(scores, mask)
    weights = Softmax<axis=-1>(masked)
    mixed = MatMul(weights, v)
    o = Reshape(mixed, flat)
    ot = Transpose<perm=[0,2,1,3]>(o)
    om = Reshape(ot, merged)
    oc = Transpose<perm=[0,3,1,2]>(om)
    y = Conv(oc, wo)
"""


def _parameters() -> dict[str, np.ndarray]:
    heads = KV * GROUP * D
    return {"wq": graphs.rows(heads, WIDTH, 1, 1, seed=1), "bq": graphs.rows(heads, seed=2),
            "wk": graphs.rows(KV * D, WIDTH, 1, 1, seed=3), "bk": graphs.rows(KV * D, seed=4) * 8,
            "wv": graphs.rows(KV * D, WIDTH, 1, 1, seed=5), "wo": graphs.rows(WIDTH, heads, 1, 1, seed=6)}


def _model(body: str = ATTENTION, **changes: np.ndarray) -> ir.Model:
    """Shapes are written where inference cannot know them (a -1 over symbols)."""
    model = graphs.parse(body, INPUTS, OUTPUTS, **_parameters() | changes)
    tokens = {
        "qc": [1, 16, 1, "s"], "qt": [1, 1, "s", 16], "qr": [1, "s", 4, 4], "qh": [1, 4, "s", 4], "qg": [2, 2, "s", 4],
        "kc": [1, 8, 1, "s"], "kt": [1, 1, "s", 8], "kr": [1, "s", 2, 4], "new_k": [2, 1, 4, "s"], "k": [2, 1, 4, "t"],
        "vc": [1, 8, 1, "s"], "vt": [1, 1, "s", 8], "vr": [1, "s", 2, 4], "new_v": [2, 1, "s", 4], "v": [2, 1, "t", 4],
        "scores": [2, 2, "s", "t"], "masked": [2, 2, "s", "t"], "weights": [2, 2, "s", "t"], "extra": [2, 2, "s", "t"],
        "mixed": [2, 2, "s", 4], "o": [1, 4, "s", 4], "ot": [1, "s", 4, 4], "om": [1, 1, "s", 16],
        "oc": [1, 16, 1, "s"], "y": [1, 8, 1, "s"]}
    for node in model.graph:
        if node.outputs[0].name in tokens:
            edit.set_shape(node.outputs[0], tokens[str(node.outputs[0].name)])
    return model


def _feeds(model: ir.Model) -> dict[str, np.ndarray]:
    return graphs.feeds(model, s=3, t=8, past=5)


def test_heads_apart_compute_the_same() -> None:
    model = _model()
    data = _feeds(model)
    before = graphs.run(model, data)
    sha.split_heads(model, Table())
    graphs.same(before, graphs.run(model, data), rtol=1e-5)
    assert graphs.ops(model).count("Softmax") == KV * GROUP
    assert graphs.ops(model).count("MatMul") == 2 * KV * GROUP
    assert graphs.ops(model).count("Conv") == KV * GROUP + 2 * KV + 1
    names = [v.name for n in model.graph for v in n.outputs]
    assert len(set(names)) == len(names)
    assert [v.name for v in model.graph.outputs] == ["y", "new_k", "new_v"]
    text = str(model.graph)
    sha.split_heads(model, Table())
    assert str(model.graph) == text, "one head cannot be split again"


def test_query_heads_read_their_own_key_head() -> None:
    """Key heads valued 1 and 2: query heads get 1, 1, 2, 2, never 1, 2, 1, 2."""
    wide = np.zeros((WIDTH, 16), np.float32)
    for head in range(4):
        wide[head, head * D] = 1
    model = _model(wq=np.zeros((16, WIDTH, 1, 1), np.float32), bq=np.zeros(16, np.float32),
                   wv=np.zeros_like(_parameters()["wv"]), wo=wide[..., None, None])
    data = _feeds(model)
    data["past_v"] = np.ones_like(data["past_v"]) * np.array([1, 2], np.float32).reshape(2, 1, 1, 1)
    data["mask"] = np.where(np.arange(8) < 5, 0, -50).astype(np.float32) * np.ones((1, 1, 3, 1), np.float32)
    sha.split_heads(model, Table())
    np.testing.assert_allclose(graphs.run(model, data)["y"][0, :4, 0, 0], [1, 1, 2, 2], atol=1e-5)


def test_biases_are_sliced_with_their_weights() -> None:
    """A bias of 8 on the keys, dropped or given to the wrong head, leaves nothing of the output."""
    model = _model()
    sha.split_heads(model, Table())
    for name, whole in _parameters().items():
        if name in ("wq", "bq", "wk", "bk", "wv"):
            heads = [v.const_value.numpy() for k, v in sorted(model.graph.initializers.items())
                     if k.startswith(f"{name}/h")]
            np.testing.assert_array_equal(np.concatenate(heads), whole)


def test_encodings_follow_by_the_same_slice() -> None:
    model = _model()
    wq = _parameters()["wq"]
    whole = per_channel(wq, 0, 4)
    activation = encodings.per_tensor(-3, 5, 16)
    table = Table({"wq": whole, "qc": activation, "masked": activation, "past_k": activation, "k": activation,
                   "y": activation, "om": activation, "o": activation, "mixed": activation})
    made = sha.split_heads(model, table)
    codes = [made[f"wq/h{h}"].quantize(wq[h * D:(h + 1) * D]) for h in range(4)]
    np.testing.assert_array_equal(np.concatenate(codes), whole.quantize(wq))
    names = edit.names(model.graph)
    assert set(made) <= names, "no encoding without its value"
    assert "wq" not in made
    for name in ("qc", "masked"):
        assert all(encodings.equal(made[f"{name}/h{h}"], activation) for h in range(4)), name
    assert encodings.equal(made["om"], activation), "the merged value keeps its own"
    assert all(encodings.equal(made[f"k/h{h}"], activation) for h in range(KV))


def test_blocks_follow_their_heads() -> None:
    """A head's blocks mean what they meant in the whole; the output projection keeps its own."""
    model, wholes = _model(), _parameters()
    table = Table({n: lpbq(wholes[n], 0, 4) for n in ("wq", "wk", "wv", "wo")})
    made = sha.split_heads(model, table)
    for name, heads in (("wq", 4), ("wk", 2), ("wv", 2)):
        parts = [made[f"{name}/h{h}"] for h in range(heads)]
        codes = [e.quantize(wholes[name][h * D:(h + 1) * D]) for h, e in enumerate(parts)]
        np.testing.assert_array_equal(np.concatenate(codes), table[name].quantize(wholes[name]))
        assert all(e.block_scale is not None and e.block_scale.max((1, 2, 3)).min() == 16 for e in parts)
    assert encodings.equal(made["wo"], table["wo"])


@pytest.mark.parametrize(("old", "new", "named"), [
    ("weights = Softmax<axis=-1>(masked)", "weights = Softmax<axis=1>(masked)", "weights: Softmax works across heads"),
    ("weights = Softmax<axis=-1>(masked)", "weights = LpNormalization<axis=-1>(masked)",
     "weights: LpNormalization inside attention heads"),
    ("mixed = MatMul(weights, v)", "extra = Transpose<perm=[1,0,2,3]>(weights)\n mixed = MatMul(extra, v)",
     "extra: Transpose reorders head axes"),
    ("om = Reshape(ot, merged)", "om = Reshape(mixed, merged)", "om: Reshape .* mixes heads with other dimensions"),
])
def test_what_mixes_heads_is_refused_by_name(old: str, new: str, named: str) -> None:
    assert old in ATTENTION
    model = _model(ATTENTION.replace(old, new))
    with pytest.raises(UnsupportedError, match=named):
        sha.split_heads(model, Table())


def test_heads_that_are_born_in_a_way_nobody_knows_are_refused() -> None:
    """Else the graph would go on with whole attention, and nobody would know."""
    model = _model()
    for node in model.graph:
        if node.outputs[0].name in ("qt", "kt", "vt"):
            node.outputs[0].shape = ir.Shape([1, 1, "other", edit.known_dims(node.outputs[0])[-1]])
    with pytest.raises(UnsupportedError, match="scores: attention over several heads"):
        sha.split_heads(model, Table())


def test_a_graph_without_heads_is_left_alone() -> None:
    model = graphs.parse("a = Relu(x)\n y = Neg(a)", "float[1,s,8] x", "float[1,s,8] y")
    text = str(model.graph)
    assert len(sha.split_heads(model, Table())) == 0
    assert str(model.graph) == text
