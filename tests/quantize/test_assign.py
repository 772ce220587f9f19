"""Which grid each value gets, and that nothing is left out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from edgeforge_runtime.rope import ARRAYS
from quant_graphs import adapted, parse

from edgeforge.calibrate import observe
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import edit
from edgeforge.quantize import assign, roles

RANGE = (-2.0, 6.0)


def table_of(model: ir.Model, grids: assign.Grids | None = None) -> Table:
    """Every watched value between -2 and 6, the RoPE rows between -1 and 1."""
    ranges = {str(v.name): RANGE for v in observe.sources(model.graph)}
    ranges |= {name: (-1.0, 1.0) for name in ranges if name in ARRAYS}
    return assign.assign(model.graph, ranges, grids or assign.Grids())


@pytest.mark.parametrize("family", ["llama-bias", "qwen3", "gemma2", "gemma3", "phi3-partial"])
def test_every_value_of_a_decoder_has_a_grid_and_every_grid_a_value(family: str) -> None:
    _, model = adapted(family)
    table = table_of(model)
    assign.coverage(model.graph, table)
    assert {e.bits for e in table.values()} == {8, 16}


def test_roles_get_their_bits() -> None:
    _, model = adapted("llama-bias")
    table = table_of(model, assign.Grids(weights=4, activations=16, kv=8, embedding=8))
    q = table["model.layers.0.self_attn.q_proj.weight"]
    assert (q.bits, q.signed, q.axis, q.scale.shape) == (4, True, 0, (32,))
    assert (table["model.embed_tokens.weight"].bits, table["model.embed_tokens.weight"].scale.ndim) == (8, 0)
    assert table["logits"].bits == 16
    assert "model.layers.0.self_attn.q_proj.bias" not in table
    past = table["past_key_0_in"]
    assert (past.bits, past.signed, int(past.zero_point)) == (8, False, 128)


def test_a_wide_cache_is_unsigned_too() -> None:
    _, model = adapted("llama-bias")
    past = table_of(model, assign.Grids(kv=16))["past_key_0_in"]
    assert (past.bits, past.signed, int(past.zero_point)) == (16, False, 1 << 15)


def test_the_cache_has_one_grid_in_and_out_and_another_than_what_it_is_made_from() -> None:
    _, model = adapted("llama")
    table = table_of(model)
    assert table["past_value_1_in"] is table["past_value_1_out"]
    assert table["past_value_1_out/wide"].bits == 16


def test_text_never_seen_has_room() -> None:
    _, model = adapted("llama")
    table = table_of(model)
    logits, past = table["logits"], table["past_key_0_in"]
    assert float(logits.scale) * 65535 == pytest.approx(8 * assign.HEADROOM)
    assert float(past.scale) * 127 == pytest.approx(6 * assign.HEADROOM)


def test_what_is_known_exactly_has_no_room() -> None:
    _, model = adapted("llama")
    table = table_of(model)
    softmax = table["model.layers.0.self_attn/Softmax"]
    assert (int(softmax.zero_point), float(softmax.scale)) == (0, pytest.approx(1 / 65535))
    assert float(table["position_ids_cos"].scale) == pytest.approx(2 / 65535)
    weights = edit.constant(model.graph.initializers["model.embed_tokens.weight"])
    assert weights is not None
    span = float(weights.max() - weights.min())
    assert float(table["model.embed_tokens.weight"].scale) == pytest.approx(span / 65535, rel=1e-5)


@pytest.mark.parametrize(("family", "layer"), [("llama", 0), ("gemma3", 0), ("gemma3", 1)])
def test_a_rotated_half_may_turn_all_the_way(family: str, layer: int) -> None:
    """What calibration saw of x * sin at its positions says nothing about later ones; |x| does."""
    _, model = adapted(family)
    grid = table_of(model)[f"model.layers.{layer}.self_attn/Add/lo_sin"]
    assert float(grid.scale) * 65535 == pytest.approx(2 * 6 * assign.HEADROOM)
    assert int(grid.zero_point) in (32767, 32768)


def test_moved_values_share_a_grid_and_computed_ones_do_not() -> None:
    model = parse("t = Transpose<perm = [1, 0]>(x) c = Concat<axis = 0>(t, y) z = Sigmoid(c)",
                  "float[2, 3] x, float[1, 2] y", "float[4, 2] z")
    groups = [{v.name for v in g} for g in roles.groups(model.graph)]
    assert groups == [{"x", "y", "t", "c"}, {"z"}]


def test_a_value_that_was_never_seen_is_named() -> None:
    model = parse("y = Sigmoid(x) z = Exp(y)", "float[2] x", "float[2] z")
    with pytest.raises(EdgeForgeError, match="z was never observed"):
        assign.assign(model.graph, {"x": RANGE, "y": RANGE}, assign.Grids())


def test_coverage_names_what_is_missing_and_what_is_left_over() -> None:
    model = parse("y = Sigmoid(x) z = Tanh(y)", "float[2] x", "float[2] z")
    table = dict(table_of(model))
    table["stranger"] = table.pop("y")
    with pytest.raises(EdgeForgeError, match=r"1 values without \(\['y'\]\), 1 encodings .*\['stranger'\]"):
        assign.coverage(model.graph, Table(table))


@pytest.mark.parametrize(
    ("body", "shape", "axis"),
    [
        ("y = Conv(x, w)", (5, 4, 1, 1), 0),
        ("y = MatMul(x, w)", (4, 5), 1),
        ("y = Gemm<transB = 1>(x, w)", (5, 4), 0),
        ("y = Gemm(x, w)", (4, 5), 1),
        ("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", (5, 4), 0),
    ],
)
def test_a_weight_is_quantized_along_its_output_channels(body: str, shape: tuple[int, ...], axis: int) -> None:
    x = "float[1, 4, 1, 3] x" if "Conv" in body else "float[3, 4] x"
    y = "float[1, 5, 1, 3] y" if "Conv" in body else "float[3, 5] y"
    model = parse(body, x, y, w=np.random.default_rng(0).normal(size=shape).astype(np.float32))
    assert roles.weight_axis(model.graph.initializers["w"]) == axis
    table = table_of(model)
    assert (table["w"].axis, table["w"].scale.shape) == (axis, (5,))
    assign.coverage(model.graph, table)
