"""The whole sequence on real exports: what is left, what it is called, and that twice is once."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import pytest
import tiny

from edgeforge.encodings import Table
from edgeforge.graph import edit, sha
from edgeforge.graph.bind import bind
from edgeforge.graph.optimize import optimize
from edgeforge.graph.requantize import is_requantize
from edgeforge.targets import HTP, PLAIN, PROFILES, Profile

FAMILIES = ["qwen2", "gemma2"]


@dataclass(frozen=True)
class Optimized:
    made: tiny.Adapted
    graph: ir.Graph


@pytest.fixture(scope="module", params=[(f, p.name) for f in FAMILIES for p in (HTP, PLAIN)],
                ids=lambda p: f"{p[0]}-{p[1]}")
def optimized(request: pytest.FixtureRequest) -> Optimized:
    family, profile = request.param
    made = tiny.adapt(tiny.model(family, max_position_embeddings=8192), PROFILES[profile])
    return Optimized(made, optimize(made.model, PROFILES[profile]).graph)


def _profile(optimized: Optimized) -> Profile:
    return optimized.made.decoder.profile


def test_only_the_layers_own_work_is_left(optimized: Optimized) -> None:
    layers, ops = optimized.made.decoder.layers, tiny.op_types(optimized.graph)
    plain = _profile(optimized) is PLAIN
    assert ops["MatMul" if plain else "Conv"] == 7 * layers + 1 + (2 * layers if plain else 0)
    assert ops["Softmax"] == layers
    assert ops["RMSNormalization"] == (4 if optimized.made.decoder.model_type == "gemma2" else 2) * layers + 1
    assert ops.get("RotaryEmbedding", 0) == (2 * layers if plain else 0)
    assert not {"Pow", "ReduceMean", "Sqrt", "Reciprocal", "Shape", "Cast", "CastLike", "Constant", "IsNaN",
                "Where", "Expand"} & set(ops)
    assert sum(is_requantize(n) for n in optimized.graph) == 2 * layers == ops["Identity"]


def test_no_constant_but_parameters_and_shapes(optimized: Optimized) -> None:
    """No [max, max] mask: at 8192 positions it would be 500 MB."""
    parameters = optimized.made.parameters
    others = {n: v.const_value.nbytes for n, v in optimized.graph.initializers.items()
              if v.const_value is not None and n not in parameters}
    assert sum(others.values()) < 1024, others


def test_norms_and_biases_are_what_the_checkpoint_says(optimized: Optimized) -> None:
    """Equal to the checkpoint's, but for the recorded factor or offset."""
    source = dict(tiny.model(optimized.made.decoder.model_type, max_position_embeddings=8192).named_parameters())
    for name, value in optimized.graph.initializers.items():
        if name in source and value.uses() and name.endswith("norm.weight"):
            array, truth = value.const_value.numpy(), source[name].detach().numpy()
            shift = 1.0 if optimized.made.decoder.model_type == "gemma2" else 0.0
            assert abs(array - (truth + shift)).max() < 1e-6, name


def test_attention_is_a_product_per_layer_with_the_scale_folded(optimized: Optimized) -> None:
    """1/sqrt(d) went into q_proj: no Mul by a constant is left in front of the scores."""
    factors = [n for n in optimized.graph if n.op_type in ("Mul", "Div") and any(
        edit.scalar(v) is not None for v in n.inputs) and "self_attn" in str(n.name)]
    softcap = 2 * optimized.made.decoder.layers if optimized.made.decoder.model_type == "gemma2" else 0
    assert len(factors) == softcap


def test_hidden_states_have_the_rank_that_the_profile_wants(optimized: Optimized) -> None:
    rank = 3 if _profile(optimized) is PLAIN else 4
    for node in optimized.graph:
        if node.op_type in ("RMSNormalization", "Sigmoid", "Gelu"):
            assert len(edit.known_dims(node.outputs[0])) == rank, node.name


def test_names_are_unique_and_nodes_are_named_after_their_values(optimized: Optimized) -> None:
    values = [v.name for n in optimized.graph for v in n.outputs]
    names = [*values, *optimized.graph.initializers, *(v.name for v in optimized.graph.inputs)]
    assert len(set(names)) == len(names)
    assert not [n for n in names if not n or n.startswith("val_")]
    for path in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.layers.1", "model.norm"):
        assert any(str(n) == path or str(n).startswith(f"{path}/") for n in values), path


def test_twice_is_once(optimized: Optimized) -> None:
    again = optimize(ir.Model(optimized.graph.clone(), ir_version=10), _profile(optimized)).graph
    assert tiny.op_types(again) == tiny.op_types(optimized.graph)
    assert {v.name for n in again for v in n.outputs} == {v.name for n in optimized.graph for v in n.outputs}


def test_a_width_leaves_nothing_open_also_with_heads_apart(optimized: Optimized) -> None:
    model = ir.Model(optimized.graph.clone(), ir_version=10)
    if _profile(optimized) is HTP:
        sha.split_heads(model, Table())
    for ar in (1, 8):
        bound = bind(model.clone(), ar, 32)
        shapes = optimized.made.decoder.shapes(ar, 32)
        for value in [*bound.graph.inputs, *bound.graph.outputs]:
            assert tuple(edit.known_dims(value)) == shapes[str(value.name)]
