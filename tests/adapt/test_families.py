"""Every family x profile against HuggingFace's own logits, at every rung: adapted, optimized, heads apart, in parts.

Through the runtime's loop: chunked prefill with a ragged last chunk, then single steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
import torch
from edgeforge_runtime.manifest import COS, SIN, SWA_COS, SWA_SIN, Manifest
from edgeforge_runtime.rope import ARRAYS

from edgeforge.encodings import Table
from edgeforge.graph import sha
from edgeforge.graph.optimize import optimize
from edgeforge.targets import HTP, PLAIN, TRT, Profile

FLOOR = 90.0
"""dB; float32 reorderings cost 110-130, a wrong graph is below 40"""
FAST = {HTP: {"llama", "llama-mqa", "llama-wide-heads", "llama-bias", "qwen3", "phi3-partial", "granite", "smollm3",
              "olmo2", "gemma2", "gemma3"},
        PLAIN: {"llama-mqa", "qwen3", "phi3-partial"}, TRT: {"gemma2"}}
"""what differs most; the others run among the slow tests"""


def _cases() -> Iterator[object]:
    for family in tiny.FAMILIES:
        for profile in FAST:  # the others have one of these graphs, but for numbers
            marks = [] if family in FAST[profile] else [pytest.mark.slow]
            yield pytest.param(family, profile, id=f"{family}-{profile.name}", marks=marks)


@pytest.mark.parametrize(("family", "profile"), _cases())
def test_every_rung_computes_what_huggingface_computes(family: str, profile: Profile, tmp_path: Path) -> None:
    made = tiny.adapt(tiny.model(family), profile)
    assert min(tiny.decibels(tiny.write(tmp_path / "adapted", made, made.model), made.expected)) > FLOOR

    graph = optimize(made.model, profile)
    assert min(tiny.decibels(tiny.write(tmp_path / "optimized", made, graph), made.expected)) > FLOOR
    assert [v.name for v in graph.graph.inputs] == made.decoder.input_names()
    assert [v.name for v in graph.graph.outputs] == made.decoder.output_names()
    tied = {"model.embed_tokens.weight"} if profile.linear == "matmul" else set()
    assert made.parameters - tied <= tiny.parameter_names(graph.graph)
    whole = tiny.logits(tmp_path / "optimized", tiny.ids())

    if profile.split_heads:
        sha.split_heads(graph, Table())
        heads = tiny.logits(tiny.write(tmp_path / "heads", made, graph), tiny.ids())
        assert min(tiny.sqnr_db(a, b) for a, b in zip(whole, heads, strict=True)) > FLOOR
        whole = heads

    parts = tiny.write_parts(tmp_path / "parts", made, graph, _one_layer(graph))
    assert parts == made.decoder.layers + 2
    if made.decoder.windowed_rope:
        assert _rows(tmp_path / "parts") == [[], *([SWA_COS, SWA_SIN] if kind == "sliding_attention" else [COS, SIN]
                                                   for kind in tiny.config(family).layer_types), []]
    for a, b in zip(whole, tiny.logits(tmp_path / "parts", tiny.ids()), strict=True):
        np.testing.assert_array_equal(a, b)


def _rows(folder: Path) -> list[list[str]]:
    """The rows of RoPE tables that each part takes: those that its layers turn by, and no others."""
    parts = Manifest.load(folder).targets["cpu"].graphs[0].parts
    return [[t.name for t in part.inputs if t.name in ARRAYS] for part in parts]


def _one_layer(graph: ir.Model) -> int:
    """A limit that holds one layer, and not two."""
    sizes = [v.const_value.nbytes for v in graph.graph.initializers.values()
             if v.const_value is not None and str(v.name).startswith("model.layers.0.")]
    return int(1.3 * sum(sizes))


@pytest.mark.parametrize(("profile", "lost"), [(HTP, set()), (PLAIN, {"model.embed_tokens.weight"})],
                         ids=["htp", "plain"])
def test_only_a_tied_embedding_goes_by_another_name(profile: Profile, lost: set[str]) -> None:
    """With MatMul, the tied table is one tensor in the graph and bears the head's name; with Conv1x1 it is two."""
    made = tiny.adapt(tiny.model("llama-tied", num_hidden_layers=1), profile)
    assert made.parameters - tiny.parameter_names(made.model.graph) == lost


@pytest.mark.slow
def test_a_longer_context_than_the_example_works(tmp_path: Path) -> None:
    """Widths other than the exporter's example, chunks of 32 and a past far longer than 48."""
    made = tiny.adapt(tiny.model("llama", max_position_embeddings=256), HTP, context=256, tokens=200)
    graph = optimize(made.model, HTP)
    folder = tiny.write(tmp_path / "long", made, graph, context=256, width=32)
    assert min(tiny.decibels(folder, made.expected)) > FLOOR


@pytest.mark.slow
def test_large_key_biases_arrive(tmp_path: Path) -> None:
    """Qwen2's keys have biases of 8 and more; dropped, nothing of the output is left. Scores are then hundreds apart,
    and a mask of 50 would let empty slots in."""
    made, without = (tiny.adapt(_with_key_bias(size), HTP) for size in (200.0, 0.0))
    assert made.decoder.masked < HTP.masked == without.decoder.masked
    assert tiny.sqnr_db(made.expected, without.expected) < 20
    graph = optimize(made.model, HTP)
    sha.split_heads(graph, Table())
    assert min(tiny.decibels(tiny.write(tmp_path, made, graph), made.expected)) > FLOOR


def _with_key_bias(size: float) -> torch.nn.Module:
    model = tiny.model("qwen2")
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):
            parameter.data = size * torch.sign(torch.randn(parameter.shape, generator=generator))
    return model
