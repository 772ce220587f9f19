"""Each seam alone: Conv1x1 is its Linear, heads are grouped, the cache is past‖new, names are module paths."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import tiny
import torch
import transformers
from torch import nn

from edgeforge.adapt import attention, kv, linear, naming
from edgeforge.targets import HTP, PLAIN, PROFILES, Profile


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_computes_what_its_linear_does(bias: bool) -> None:
    torch.manual_seed(0)
    before = nn.Linear(6, 4, bias=bias)
    after = linear.Conv1x1(before)
    x = torch.randn(1, 5, 6)
    torch.testing.assert_close(after(x), before(x))
    assert isinstance(after, nn.Conv2d)
    assert after.weight.data_ptr() == before.weight.data_ptr(), "the parameter is viewed, not copied"


def test_linears_are_found_wherever_they_hide() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 3)]), "b": nn.ReLU()}))
    names = set(dict(module.named_parameters()))
    assert linear.linears_to_conv(module) == 2
    assert set(dict(module.named_parameters())) == names
    assert not [m for m in module.modules() if isinstance(m, nn.Linear)]


def _attend(profile: Profile, heads: int, kv_heads: int, rows: int, past: int, **more: Any) -> tuple[Any, Any]:
    """Ours, and the textbook's with keys and values repeated."""
    torch.manual_seed(1)
    query = torch.randn(1, heads, rows, 8)
    key, value = torch.randn(1, kv_heads, past + rows, 8), torch.randn(1, kv_heads, past + rows, 8)
    mask = torch.where(torch.arange(past + rows) <= past + torch.arange(rows)[:, None], 0.0, -50.0)[None, None]
    ours = transformers.AttentionInterface()[attention.use(profile)]
    stored = (key.permute(1, 0, 3, 2), value.permute(1, 0, 2, 3)) if profile.transposed_keys else (key, value)
    made = ours(nn.Module(), query, *stored, mask, scaling=0.3, **more)[0]
    repeat = heads // kv_heads
    scores = query @ key.repeat_interleave(repeat, 1).transpose(2, 3) * 0.3
    if "softcap" in more:
        scores = torch.tanh(scores / more["softcap"]) * more["softcap"]
    truth = torch.softmax(scores + mask, -1) @ value.repeat_interleave(repeat, 1)
    return made, truth.transpose(1, 2)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (4, 1), (4, 4)])
def test_grouped_queries_read_their_own_keys(profile: Profile, heads: int, kv_heads: int) -> None:
    for rows, past in ((3, 5), (1, 7)):
        torch.testing.assert_close(*_attend(profile, heads, kv_heads, rows, past))


def test_softcap_is_applied_before_the_mask() -> None:
    torch.testing.assert_close(*_attend(HTP, 4, 2, 3, 4, softcap=0.5))


def test_a_cached_chunk_sees_the_past_not_the_top_left_corner() -> None:
    """Zero queries, values 0 2 4 6, two cached: rows see 3 and 4 keys and give 2 and 3 (is_causal would give 0, 1)."""
    attend = transformers.AttentionInterface()[attention.use(PLAIN)]
    value = torch.tensor([0.0, 2, 4, 6])[None, None, :, None]
    mask = torch.where(torch.arange(4) <= 2 + torch.arange(2)[:, None], 0.0, -50.0)[None, None]
    made = attend(nn.Module(), torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1), value, mask, scaling=1.0)[0]
    torch.testing.assert_close(made.flatten(), torch.tensor([2.0, 3.0]))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_attention_sees_past_then_new_and_only_new_leaves(profile: Profile) -> None:
    past_key, past_value = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    key, value = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)

    def laid(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (k.permute(1, 0, 3, 2), v.permute(1, 0, 2, 3)) if profile.transposed_keys else (k, v)

    cache = kv.GraphCache([laid(past_key, past_value)], profile)
    seen = cache.update(key, value, 0)
    for mine, whole in zip(seen, laid(torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)), strict=True):
        torch.testing.assert_close(mine, whole)
    for mine, new in zip(cache.new[0], laid(key, value), strict=True):
        torch.testing.assert_close(mine, new)
    assert cache.get_seq_length() == 5


def test_values_are_named_after_the_modules_that_make_them() -> None:
    """One value leaves a projection: it bears its path. Two leave attention's inside: path/Op, numbered."""
    made = tiny.adapt(tiny.model("llama-bias"), HTP)
    values = {str(v.name) for n in made.model.graph for v in n.outputs}
    for layer in (0, 1):
        for part in ("self_attn.q_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"):
            assert f"model.layers.{layer}.{part}" in values
        assert f"model.layers.{layer}.self_attn/Softmax" in values
        assert f"model.layers.{layer}" in values
    assert {"model.norm", "model.embed_tokens"} <= values
    assert made.parameters == set(made.model.graph.initializers)
    everything = [*values, *made.model.graph.initializers, *(v.name for v in made.model.graph.inputs)]
    assert len(set(everything)) == len(everything)


def test_dimensions_are_called_ar_and_past_everywhere() -> None:
    made = tiny.adapt(tiny.model("llama-1-layer"), PLAIN)
    shapes = {str(v.name): str(v.shape) for v in made.model.graph.inputs}
    assert shapes["attention_mask"] == "[1,1,ar,ar + past]"
    assert shapes["past_key_0_in"] == "[1,2,past,8]"
    symbols = {str(d.value) for n in made.model.graph for v in n.outputs if v.shape is not None
               for d in v.shape if not isinstance(d, int) and d.value is not None}
    assert symbols <= {"ar", "past", "ar + past"}


def test_dims_inside_expressions_are_renamed_whole() -> None:
    """s6 must not be replaced inside s69."""
    x = ir.Value(name="x", shape=ir.Shape(["s6", "s69", "s6 + s69"]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.Node("", "Relu", [x])
    model = ir.Model(ir.Graph([x], list(node.outputs), nodes=[node], opset_imports={"": 23}), ir_version=10)
    naming.apply(model, ["input"], ["output"], {"s6": "ar", "s69": "past"})
    assert str(x.shape) == "[ar,past,ar + past]"
    assert (x.name, node.outputs[0].name, node.name) == ("input", "output", "output:Relu")


