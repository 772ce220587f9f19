"""Where a graph is cut, from the bytes of its weights; the parts chained are the whole."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest

from edgeforge.encodings import Table
from edgeforge.errors import UnsupportedError
from edgeforge.graph import split
from edgeforge.quantize.weights.grid import per_channel

HIDDEN, VOCAB = 8, 32
LAYER = """
    h{0} = MatMul(r{0}, w{0})
    past_key_{0}_out = Add(h{0}, past_key_{0}_in)
    a{0} = Mul(past_key_{0}_out, rows)
    r{1} = Add(r{0}, a{0})
"""


def _decoder(widths: list[int]) -> ir.Model:
    """One weight [8, 8*k] folded to 8 columns a layer; k says how heavy the layer is."""
    body = "r0 = Gather(table, ids)\n axes = Constant<value = int64[1] {0}>()\n rows = Squeeze(cos, axes)\n"
    inputs, outputs = ["int64[s] ids", "float[1,s,8] cos"], [f"float[s,{VOCAB}] logits"]
    parameters = {"table": graphs.rows(VOCAB, HIDDEN), "head": graphs.rows(HIDDEN, VOCAB)}
    for i, width in enumerate(widths):
        layer = LAYER
        if width > 1:
            layer = layer.replace("h{0} = MatMul(r{0}, w{0})", "g{0} = MatMul(r{0}, u{0})\n h{0} = MatMul(g{0}, w{0})")
            parameters[f"u{i}"] = graphs.rows(HIDDEN, HIDDEN * (width - 1))
        parameters[f"w{i}"] = graphs.rows(HIDDEN * max(width - 1, 1), HIDDEN)
        body += layer.format(i, i + 1)
        inputs.append(f"float[s,8] past_key_{i}_in")
        outputs.append(f"float[s,8] past_key_{i}_out")
    body += f"logits = MatMul(r{len(widths)}, head)\n"
    return graphs.parse(body, ", ".join(inputs), ", ".join(outputs), **parameters)


UNIT = HIDDEN * HIDDEN * 4
"""bytes of a light layer"""


def _plan(widths: list[int], limit: int, table: Table | None = None) -> split.Plan:
    graph = _decoder(widths).graph
    return split.plan(graph, split.stored(graph, table or Table()), limit)


def test_embedding_layers_and_head_are_apart() -> None:
    plan = _plan([1, 1, 1, 1], 2 * UNIT)
    assert plan.cuts == ("r0", "r2", "r4")
    assert [round(b / UNIT) for b in plan.bytes] == [4, 2, 2, 4]


def test_everything_in_one_part_when_it_fits() -> None:
    assert _plan([1, 1, 1, 1], 100 * UNIT).cuts == ("r0", "r4")


def test_parts_are_balanced() -> None:
    assert [round(b / UNIT) for b in _plan([1] * 7, 3 * UNIT).bytes[1:-1]] == [2, 3, 2]


def test_an_uneven_graph_takes_more_parts_than_the_division_says() -> None:
    """Three layers of 2 units under a limit of 3: two parts would be 2 + 4."""
    plan = _plan([2, 2, 2], 3 * UNIT)
    assert [round(b / UNIT) for b in plan.bytes[1:-1]] == [2, 2, 2]


def test_bits_come_from_the_table() -> None:
    weights = graphs.rows(HIDDEN, HIDDEN)
    table = Table({f"w{i}": per_channel(weights, 1, 4) for i in range(4)})
    assert _plan([1] * 4, 4 * UNIT // 8, table).cuts == ("r0", "r4")
    assert _plan([1] * 4, 2 * UNIT // 8, table).cuts == ("r0", "r2", "r4")


def test_a_layer_above_the_limit_is_refused_with_numbers() -> None:
    with pytest.raises(UnsupportedError, match=f"one layer needs {6 * UNIT:,} bytes of weights, the limit a part is "
                                               f"{4 * UNIT:,}") as caught:
        _plan([1, 4, 1], 4 * UNIT)
    assert "split.part_bytes" in caught.value.hint


@pytest.mark.parametrize("body", [
    "y = MatMul(x, w)",
    "a = MatMul(x, w)\n b = MatMul(x, w2)\n c = Add(a, b)\n d = MatMul(c, w3)\n y = Mul(d, a)",
])
def test_a_graph_that_is_not_a_row_of_layers_is_refused(body: str) -> None:
    names = [n for n in ("w", "w2", "w3") if f"{n})" in body]
    model = graphs.parse(body, "float[s,8] x", "float[s,8] y", **{n: graphs.rows(8, 8) for n in names})
    with pytest.raises(UnsupportedError, match="no place to cut"):
        split.plan(model.graph, {}, 1 << 20)


def test_no_cut_inside_a_residual_branch() -> None:
    cuts = {c.value for c in split.cut_points(_decoder([1, 1]).graph, {})}
    assert {"r0", "r1", "r2"} <= cuts
    assert not cuts & {"h0", "a0", "h1", "a1", "past_key_0_out", "rows"}


def test_parts_chained_are_the_whole() -> None:
    whole = _decoder([1, 2, 1, 1])
    names = [str(v.name) for v in whole.graph.outputs]
    data: dict[str, np.ndarray] = {"ids": np.array([3, 31, 0]), "cos": graphs.rows(1, 3, 8)}
    data |= {f"past_key_{i}_in": graphs.rows(3, 8, seed=i) for i in range(4)}
    expected = graphs.run(whole, data)
    plan = split.plan(whole.graph, {}, 4 * UNIT)
    parts = split.extract(whole, plan.cuts, names)
    assert len(parts) == len(plan.cuts) + 1 == len(plan.bytes)
    values = dict(data)
    for part, entering in zip(parts, [None, *plan.cuts], strict=True):
        inputs = [str(v.name) for v in part.graph.inputs]
        assert entering is None or inputs[0] == entering
        values |= graphs.run(part, {n: values[n] for n in inputs})
    for name in names:
        np.testing.assert_array_equal(values[name], expected[name])
    assert [str(v.name) for v in parts[0].graph.inputs] == ["ids"]
    assert "cos" in [v.name for v in parts[1].graph.inputs], "a view of an input is made in every part that reads it"
    stored = [str(n) for p in parts for n in p.graph.initializers if str(n)[0] in "wut" or n == "head"]
    assert sorted(stored) == sorted(n for n in whole.graph.initializers if n[0] in "wut" or n == "head")
