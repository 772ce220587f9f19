"""Refuse early: what recipe, headers and chip let us know is told before any work, all at once, and only if true."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builds import variant
from tiny_build import Built

from edgeforge import check, gates, recipe, source, targets
from edgeforge.adapt import shape
from edgeforge.backends.qnn import limits, wheel
from edgeforge.checkpoint import Checkpoint, TensorInfo
from edgeforge.errors import CompilerError, RecipeError, UnsupportedError
from edgeforge.estimate import Estimate, estimate, product_inputs
from edgeforge.findings import Facts, Finding
from edgeforge.targets import HTP

MIB = 1 << 20
QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rope_theta": 1000000, "rope_scaling": None, "eos_token_id": 151645,
    "sliding_window": None, "use_sliding_window": False, "max_window_layers": 36, "tie_word_embeddings": True}


def _recipe(folder: Path, **sections: Mapping[str, Any]) -> recipe.Recipe:
    """A recipe file with a line a key, so that lines can be told apart."""
    lines = ["model: m", "out: out"]
    for name, keys in ({"target": {"chip": "snapdragon-8-gen-3"}} | sections).items():
        lines += [f"{name}:", *(f"  {key}: {json.dumps(value)}" for key, value in keys.items())]
    (folder / "m").mkdir(exist_ok=True)
    path = folder / "r.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return recipe.load(path)


def _tensors(config: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """A decoder's headers as its config implies them."""
    hidden, inner, dim = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}.weight": size for name, size in (
            ("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)))}
    return {name: TensorInfo(size, "BF16", Path("m.safetensors")) for name, size in shapes.items()}


def _estimate(made: recipe.Recipe, config: Mapping[str, Any]) -> Estimate:
    decoder = shape.decoder(shape.as_config(config), HTP, made.target.context)
    found = estimate(made, decoder, _tensors(config))
    assert found is not None
    return found


def _facts(made: recipe.Recipe, config: Mapping[str, Any] = QWEN3_4B) -> Facts:
    decoder = shape.decoder(shape.as_config(config), HTP, made.target.context)
    return Facts(made, targets.chip(made.target.chip), None, config, decoder, _estimate(made, config))


def _said(findings: Any, severity: str = "recipe") -> list[str]:
    return [str(f) for f in findings if f.severity == severity]


def test_the_figures_of_qwen3_4b(tmp_path: Path) -> None:
    """C4: the cache is 288 MiB (head_dim is not hidden / heads), not 180. C42: head 371 MiB, prompt logits 37 MiB."""
    found = _estimate(_recipe(tmp_path, target={"chip": "snapdragon-8-gen-3", "context": 4096}), QWEN3_4B)
    assert found.kv == 288 * MIB
    embedding, *body, head = found.parts
    assert (embedding.weights, head.weights, head.logits) == (151936 * 2560 * 2, 151936 * 2560, 128 * 151936 * 2)
    assert (head.weights // MIB, head.logits // MIB) == (370, 37)
    assert [p.name for p in body] == ["layers 0-8", "layers 9-17", "layers 18-26", "layers 27-35"]
    assert sum(p.weights for p in body) == pytest.approx(3_633e6, rel=0.001)
    assert max(p.weights for p in body) <= 1 << 30


def test_gguf_names_give_the_same_figures(tmp_path: Path) -> None:
    made = _recipe(tmp_path)
    names = {"model.embed_tokens": "token_embd", "model.layers": "blk", "self_attn.": "attn_", "_proj": "",
             "mlp.": "ffn_"}
    renamed = {}
    for name, info in _tensors(QWEN3_4B).items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = info
    decoder = shape.decoder(shape.as_config(QWEN3_4B), HTP, 1024)
    assert "blk.0.attn_q.weight" in renamed
    assert estimate(made, decoder, renamed) == _estimate(made, QWEN3_4B)


def test_the_forecast_is_what_the_split_makes(built: Built) -> None:
    made = recipe.load(built.recipe)
    facts = check.examine(made).facts
    real = [c.value for c in gates.load(built.artifact("split")) if c.unit == "MiB of weights"]
    assert facts.estimate is not None
    assert [p.weights / MIB for p in facts.estimate.parts] == pytest.approx(real, rel=0.03)


def test_a_bundle_is_forecast_by_size(built: Built) -> None:
    """The rough figures, on a model so small that it is nearly all overhead: never below the codes."""
    found = check.examine(recipe.load(built.recipe)).facts.estimate
    assert found is not None
    assert 0 < found.disk < 1 << 30
    assert found.memory < 4 << 30


@pytest.mark.parametrize("chip", ["snapdragon-888", "snapdragon-8-gen-1", "qcm6490", "snapdragon-7-plus-gen-2"])
def test_4_bit_weights_on_an_old_chip_are_refused_from_the_recipe_alone(tmp_path: Path, chip: str) -> None:
    """C37; the line is that of the key, and the change is one that works."""
    made = _recipe(tmp_path, target={"chip": chip}, quantize={"weights": 4})
    report = check.examine(made)
    arch = targets.SNAPDRAGONS[chip].dsp_arch
    said = _said(report.findings)
    assert said == [f"{tmp_path}/r.yaml:6: quantize.weights: 4-bit weights beside 16-bit activations; {chip} "
                    f"(Hexagon v{arch}) takes 8 or 16, v73 and later take 4 too"]
    assert not _said(limits.check(_facts(_recipe(tmp_path, target={"chip": chip}, quantize={"weights": 8}))))
    assert report.exit_code == 2


def test_a_4_bit_head_on_an_old_chip_is_refused_too(tmp_path: Path) -> None:
    report = check.examine(_recipe(tmp_path, target={"chip": "snapdragon-8-gen-1"}, quantize={"head": 4}))
    assert _said(report.findings) == [
        f"{tmp_path}/r.yaml:6: quantize.head: 4-bit weights beside 16-bit activations; snapdragon-8-gen-1 "
        "(Hexagon v69) takes 8 or 16, v73 and later take 4 too"]
    assert not _said(limits.check(_facts(_recipe(tmp_path, quantize={"head": 4}))))


@pytest.mark.parametrize("chip", ["snapdragon-888", "snapdragon-8-gen-1"])
def test_blocks_on_an_old_chip_are_refused_from_the_recipe_alone(tmp_path: Path, chip: str) -> None:
    """C37."""
    report = check.examine(_recipe(tmp_path, target={"chip": chip}, quantize={"weights": 4, "block": 64}))
    assert f"{tmp_path}/r.yaml:7: quantize.block: weights in blocks of 64; {chip} (Hexagon v" in "\n".join(
        _said(report.findings))
    assert report.exit_code == 2
    made = _recipe(tmp_path, target={"chip": "snapdragon-8-gen-3"}, quantize={"weights": 4, "block": 32})
    assert not _said(limits.check(_facts(made)))


@pytest.mark.parametrize("chip", ["snapdragon-888", "snapdragon-8-gen-1"])
def test_a_16_bit_cache_on_an_old_chip_is_refused_from_the_recipe_alone(tmp_path: Path, chip: str) -> None:
    report = check.examine(_recipe(tmp_path, target={"chip": chip}, quantize={"kv": 16}))
    arch = targets.chip(chip).dsp_arch
    assert _said(report.findings) == [
        f"{tmp_path}/r.yaml:6: quantize.kv: a 16-bit cache; {chip} (Hexagon v{arch}) multiplies activations by 8-bit "
        "ones only, v73 and later by signed 16-bit ones too"]
    assert report.exit_code == 2
    assert not _said(limits.check(_facts(_recipe(tmp_path, quantize={"kv": 16}))))


def test_products_that_blocks_do_not_divide_are_told_and_not_refused(built: Built, tmp_path: Path) -> None:
    """C31: the tiny model has 128 inputs at most, and its headers are read as if they said 120."""
    path = variant(built, "odd", quantize={"weights": 4, "block": 64})
    made = recipe.load(path)
    found = source.open_source(made.model)
    assert isinstance(found, Checkpoint)
    odd = {n: dataclasses.replace(t, shape=(t.shape[0], 120)) if "down_proj" in n else t
           for n, t in found.tensors.items()}
    report = check._report(made, dataclasses.replace(found, tensors=odd))
    (said,) = (w for w in _said(report.findings, "warning") if "blocks of 64" in w)
    assert said.endswith("model.layers.0.mlp.down_proj.weight has 120 inputs, which blocks of 64 do not divide, and so "
                         "have 1 more: one scale an output channel there")
    assert report.exit_code == 0
    assert not [w for w in _said(check.examine(made).findings, "warning") if "blocks" in w]


def test_a_tied_head_is_called_as_the_graph_calls_it() -> None:
    """An exception for it is written with that name; the embedding is nobody's product."""
    def info(*shape: int) -> TensorInfo:
        return TensorInfo(shape, "F32", Path("m"))
    layer = {"model.layers.0.mlp.up_proj.weight": info(8, 4), "model.layers.0.input_layernorm.weight": info(4)}
    table = {"model.embed_tokens.weight": info(160, 4)}
    names = ["lm_head.weight", "model.layers.0.mlp.up_proj.weight"]
    assert sorted(product_inputs(layer | table)) == names
    assert sorted(product_inputs(layer | table | {"lm_head.weight": info(160, 4)})) == names


def test_a_width_on_which_the_emulator_crashes_is_told(tmp_path: Path) -> None:
    narrow = QWEN3_4B | {"hidden_size": 576, "intermediate_size": 1536}
    for block, told in ((64, 1), (32, 0)):
        made = _recipe(tmp_path, target={"chip": "snapdragon-8-gen-3"}, quantize={"weights": 4, "block": block})
        found = [w for w in _said(limits.check(_facts(made, narrow)), "warning") if "emulator crashes" in w]
        assert len(found) == told


def test_a_scale_for_each_block_counts(tmp_path: Path) -> None:
    """An eighth of a bit at 64."""
    four = {"weights": 4, "head": 4}
    sizes = [_estimate(_recipe(tmp_path, target={"chip": "snapdragon-8-gen-3"}, quantize=four | more), QWEN3_4B)
             for more in ({}, {"block": 64})]
    assert sizes[1].parts[-1].weights / sizes[0].parts[-1].weights == pytest.approx(4.125 / 4)
    assert sizes[1].layer / sizes[0].layer == pytest.approx(4.125 / 4, rel=1e-3)


def test_an_old_chip_stores_its_weights_twice_and_that_is_said(tmp_path: Path) -> None:
    found = _said(limits.check(_facts(_recipe(tmp_path, target={"chip": "snapdragon-8-gen-1"}))), "warning")
    assert len(found) == 1
    assert "Hexagon v69 does not share weights: each device binary holds them twice, 9" in found[0]


def test_a_part_that_no_graph_can_hold(tmp_path: Path) -> None:
    """The public refusal: "graph requires estimated allocation of 2347229 KB, limit is 2097152 KB"."""
    big = {"chip": "snapdragon-8-gen-1"}
    said = _said(limits.check(_facts(_recipe(tmp_path, target=big, split={"part_bytes": 1 << 33}))))
    assert said == [f"{tmp_path}/r.yaml:6: split.part_bytes: layers 0-35: 3465 MiB of weights in one graph, and "
                    "snapdragon-8-gen-1 takes 2048 MiB a graph"]
    assert not _said(limits.check(_facts(_recipe(tmp_path, target=big, split={"part_bytes": 1 << 30}))))
    assert not _said(limits.check(_facts(_recipe(tmp_path, split={"part_bytes": 1 << 33})))), "v75 may take 3.5 GiB"
    warned = _said(limits.check(_facts(_recipe(tmp_path, split={"part_bytes": 1 << 33}))), "warning")
    assert "that may pass the limit, 3584 MiB" in warned[0]


def test_embedding_and_head_have_limits_too(tmp_path: Path) -> None:
    wide = QWEN3_4B | {"vocab_size": 262144, "hidden_size": 8192, "num_hidden_layers": 1}
    found = list(limits.check(_facts(_recipe(tmp_path), wide)))
    assert [(f.where.rpartition(": ")[2], f.change) for f in found if f.severity == "recipe"] == [
        ("quantize.embedding, the default", "set quantize.embedding to 8")]
    halved = _recipe(tmp_path, quantize={"embedding": 8, "weights": 4})
    assert not _said(limits.check(_facts(halved, wide)))


def test_a_layer_larger_than_a_part(tmp_path: Path) -> None:
    made = _recipe(tmp_path, split={"part_bytes": 50_000_000})
    found = [f for f in check._report(made, _checkpoint(tmp_path, QWEN3_4B)).findings if f.severity == "recipe"]
    assert "r.yaml:6: split.part_bytes: one layer holds 100,930,560 bytes of weights" in str(found[0])
    enough = int(found[0].change.split()[3])
    made = _recipe(tmp_path, split={"part_bytes": enough})
    assert not _said(check._report(made, _checkpoint(tmp_path, QWEN3_4B)).findings)


def _checkpoint(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "m" / "tokenizer.json").touch()
    return Checkpoint(folder / "m", config, (), _tensors(config), (), "safetensors", "m", str(folder / "m"))


def _findings(folder: Path, config: Mapping[str, Any], **sections: Mapping[str, Any]) -> list[Finding]:
    return list(check._report(_recipe(folder, **sections), _checkpoint(folder, config)).findings)


TWO_TYPES = ["sliding_attention", "full_attention"] * 18


@pytest.mark.parametrize(("changes", "said"), [
    ({"max_position_embeddings": 1000}, "r.yaml:3: target.context, the default: 1024 tokens, and the model was made"),
    ({"num_experts": 128}, "config.json: qwen3: a mixture of 128 experts"),
    ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 1}, "sliding attention over 512 tokens"),
    ({"layer_types": ["sliding_attention"], "sliding_window": 512, "use_sliding_window": True}, "attention over 512"),
    ({"layer_types": ["linear_attention"]}, "layers of type linear_attention"),
    ({"rope_local_base_freq": 10000, "partial_rotary_factor": 0.5}, "layers of 2 types rotate [0.5, 1.0] of a head"),
    ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0},
                          "sliding_attention": {"rope_type": "default"}}, "layer_types": TWO_TYPES,
      "use_sliding_window": True, "sliding_window": 1024}, "Genie has no RoPE scaling of type 'dynamic'"),
    ({"num_key_value_heads": 5}, "32 heads do not share 5 key-value heads evenly"),
    ({"head_dim": None, "hidden_size": 2561}, "hidden_size 2561 is no multiple of 32 heads"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "Genie has no RoPE scaling of type 'dynamic'"),
    ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "RoPE scaling 'llama3' lacks low_freq_factor"),
    ({"eos_token_id": None}, "no end-of-sequence token"),
    ({"eos_token_id": [1, -1]}, "eos_token_id -1 lies outside the vocabulary"),
    ({"eos_token_id": 151936}, "eos_token_id 151936 lies outside the vocabulary of 151936"),
])
def test_what_a_config_alone_shows(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    report = check._report(_recipe(tmp_path), dataclasses.replace(_checkpoint(tmp_path, QWEN3_4B),
                                                                 config=QWEN3_4B | changes))
    found = [str(f) for f in report.findings if f.severity != "warning"]
    assert len(found) == 1, found
    assert said in found[0]
    assert report.exit_code == (2 if "target.context" in said else 1)


@pytest.mark.parametrize(("changes", "said"), [
    ({"num_hidden_layers": 37}, "num_hidden_layers is 37, and the weights have no layer 36"),
    ({"vocab_size": 151937}, "vocab_size 151937 and hidden_size 2560, and the embedding is [151936, 2560]"),
    ({"hidden_size": 2048}, "vocab_size 151936 and hidden_size 2048, and the embedding is [151936, 2560]"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings is false, and the weights have no head"),
])
def test_a_config_that_the_headers_contradict(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Each was let through, and told after a model had been made."""
    opened = dataclasses.replace(_checkpoint(tmp_path, QWEN3_4B), config=QWEN3_4B | changes)
    report = check._report(_recipe(tmp_path), opened)
    assert _said(report.findings, "error") == [f"{tmp_path}/m/config.json: {said}"]
    assert report.exit_code == 1


def test_a_layer_in_the_middle_that_is_missing(tmp_path: Path) -> None:
    opened = _checkpoint(tmp_path, QWEN3_4B)
    fewer = {n: t for n, t in opened.tensors.items() if ".layers.7." not in n}
    found = check._report(_recipe(tmp_path), dataclasses.replace(opened, tensors=fewer)).findings
    assert "the weights have no layer 7" in _said(found, "error")[0]


def test_a_checkpoint_without_a_tokenizer(tmp_path: Path) -> None:
    opened = _checkpoint(tmp_path, QWEN3_4B)
    (opened.folder / "tokenizer.json").unlink()
    assert _said(check._report(_recipe(tmp_path), opened).findings, "error") == [f"{tmp_path}/m: has no tokenizer"]
    file = dataclasses.replace(opened, format="gguf", weight_files=(tmp_path / "m.gguf",))
    assert not _said(check._report(_recipe(tmp_path), file).findings, "error"), "a GGUF file holds its own"


def test_more_layers_than_the_config_says_are_left_to_transformers(tmp_path: Path) -> None:
    """Some architectures carry heads for further tokens as layers of their own, and skip them."""
    opened = dataclasses.replace(_checkpoint(tmp_path, QWEN3_4B), config=QWEN3_4B | {"num_hidden_layers": 35})
    assert not _said(check._report(_recipe(tmp_path), opened).findings, "error")


@pytest.mark.parametrize("changes", [
    {}, {"max_position_embeddings": None}, {"sliding_window": 512, "max_window_layers": 36, "use_sliding_window": True},
    {"sliding_window": 512, "use_sliding_window": False}, {"sliding_window": 512, "use_sliding_window": None},
    {"eos_token_id": [151643, 151645]}, {"num_experts": 1}, {"rope_scaling": {"rope_type": "default"}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
     "layer_types": TWO_TYPES, "use_sliding_window": True, "sliding_window": 1024},
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
])
def test_what_is_fine_is_not_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A guard that refuses valid work is as wrong as none."""
    assert not [f for f in _findings(tmp_path, QWEN3_4B | changes) if f.severity != "warning"]


@pytest.mark.parametrize("changes", [
    {"num_hidden_layers": 0}, {"num_hidden_layers": "36"}, {"num_attention_heads": 0, "num_key_value_heads": 0},
    {"rope_scaling": "yarn"}, {"rope_parameters": [1]}, {"max_window_layers": None}, {"vocab_size": None},
    {"head_dim": "x"}, {"partial_rotary_factor": "half"}, {"max_position_embeddings": "long"}, {"layer_types": 3},
])
def test_a_config_of_strange_values_is_no_traceback(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Loading it will say what is wrong; the check says that it cannot tell sizes."""
    report = check._report(_recipe(tmp_path), dataclasses.replace(_checkpoint(tmp_path, QWEN3_4B),
                                                                 config=QWEN3_4B | changes))
    assert report.exit_code in (0, 1)


def test_a_gguf_file_that_names_no_end_is_left_to_the_tokenizer_in_it(tmp_path: Path) -> None:
    found = _checkpoint(tmp_path, QWEN3_4B | {"eos_token_id": None})
    (found.folder / "config.json").unlink()
    assert check._report(_recipe(tmp_path), found).exit_code == 0


def test_sizes_that_only_transformers_knows_are_not_guessed(tmp_path: Path) -> None:
    few = {"model_type": "llama", "num_attention_heads": 32, "eos_token_id": 2}
    opened = Checkpoint(tmp_path, few, (), _tensors(QWEN3_4B), (), "safetensors", "m", "m")
    found = check._report(_recipe(tmp_path), opened)
    assert found.exit_code == 0
    assert found.facts.estimate is None
    assert "sizes were not estimated" in str(found.findings[0])


def test_memory_and_disk_refuse_only_what_is_certain(tmp_path: Path) -> None:
    """Qwen3-4B in float32 is 16 GiB and may or may not fit here; 40 times that fits nowhere."""
    huge = QWEN3_4B | {"num_hidden_layers": 36 * 40}
    found = _findings(tmp_path, huge)
    assert any("the model in float32 takes 54" in text for text in _said(found, "error"))
    assert any("r.yaml:2: out: all stages together may take" in text for text in _said(found, "warning"))


@pytest.mark.parametrize(("context", "prefill", "change"), [
    (1024, 1024, "set target.context to 2051 or more, or target.prefill to 510 or less"),
    (20, 16, "set target.context to 35 or more"),
])
def test_a_context_that_is_too_short_hides_nothing(context: int, prefill: int, change: str, tmp_path: Path) -> None:
    made = _recipe(tmp_path, target={"chip": "apple-a18", "context": context, "prefill": prefill},
                   quantize={"weights": 4, "block": 32, "head": 6})
    found = check.examine(made).findings
    assert [f.change for f in found if f"context {context} is too short" in f.what] == [change]
    assert sum(f.severity == "recipe" and f.where.partition(": ")[2] in ("quantize.block", "quantize.head")
               for f in found) == 2
    longer = _recipe(tmp_path, target={"chip": "apple-a18", "context": made.target.least_context, "prefill": prefill})
    assert not any("too short" in f.what for f in check.examine(longer).findings)


def test_everything_at_once_and_the_recipes_part_decides(tmp_path: Path) -> None:
    config = QWEN3_4B | {"max_position_embeddings": 512, "eos_token_id": None, "num_experts": 4}
    made = _recipe(tmp_path, target={"chip": "snapdragon-8-gen-1"}, quantize={"weights": 4},
                   calibrate={"text": "none.txt"})
    with pytest.raises(RecipeError) as caught:
        check.require(made, _checkpoint(tmp_path, config), lambda text: None)
    assert caught.value.message.startswith("5 things stand against this build:")
    for said in ("there is no file", "made for 512", "4 experts", "4-bit weights", "no end-of-sequence",
                 "set target.context to 512 or less"):
        assert said in caught.value.message
    with pytest.raises(UnsupportedError, match="4 experts"):
        check.require(_recipe(tmp_path), _checkpoint(tmp_path, QWEN3_4B | {"num_experts": 4}), lambda text: None)


@pytest.mark.parametrize(("name", "content", "said"), [
    ("t.txt", b"", "holds no text"), ("t.txt", b" \n", "holds no text"),
    ("t.txt", b"caf\xe9 au lait", "is not utf-8 text: byte 3 is 0xe9"),
    ("t.jsonl", b'{"text": "fine"}\n{"text": "cut o', "line 2 is not JSON"),
    ("t.jsonl", b'{"txt": "fine"}\n', "line 1 is neither a text nor a conversation"),
])
def test_a_text_that_cannot_be_read_is_told_before_a_build(tmp_path: Path, name: str, content: bytes,
                                                           said: str) -> None:
    """Each was "a build may start", and stopped the build after adapt and optimize."""
    (tmp_path / name).write_bytes(content)
    report = check.examine(_recipe(tmp_path, calibrate={"windows": 3, "text": name}))
    (found,) = (f for f in report.findings if "calibrate.text" in f.where)
    assert str(found).startswith(f"{tmp_path}/r.yaml:7: calibrate.text: {tmp_path}/{name}")
    assert said in found.what
    assert found.change
    assert report.exit_code == 2
    with pytest.raises(RecipeError, match="calibrate.text"):
        check.require(_recipe(tmp_path, calibrate={"text": name}), _checkpoint(tmp_path, QWEN3_4B), lambda text: None)


def test_a_text_that_can_be_read_is_fine(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "fine"}\n\n{"messages": [{"role": "assistant", "content": "Yes."}]}\n')
    assert not _said(check.examine(_recipe(tmp_path, calibrate={"text": "t.jsonl"})).findings)


def test_a_missing_or_another_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = _facts(_recipe(tmp_path))
    installed = wheel.find()
    with monkeypatch.context() as patch:
        patch.setattr(wheel, "find", lambda: dataclasses.replace(installed, version="9.9"))
        assert "version 9.9 is installed, 2.7.0 was tested" in _said(limits.check(facts), "warning")[0]
    with monkeypatch.context() as patch:
        patch.setattr(wheel, "PACKAGE", "onnxruntime_qnn_not_there")
        with pytest.raises(CompilerError):
            wheel.find()
        found = [f for f in limits.check(facts) if f.severity == "error"]
    assert "the HTP compiler is not installed" in str(found[0])
    assert "pip install" in found[0].change


def _cli(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edgeforge", *map(str, words)], capture_output=True, text=True,
                          timeout=120, check=False)


def test_the_command_shows_sizes_and_says_yes(built: Built) -> None:
    done = _cli("check", built.recipe)
    assert done.returncode == 0
    assert "snapdragon-8-gen-3  SM8650, SoC 57, Hexagon v75, 8 MiB VTCM" in done.stdout
    assert "layers 0-1" in done.stdout
    assert "a build may start" in done.stdout


def test_the_command_in_json_with_errors(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(built.recipe.read_text().replace("snapdragon-8-gen-3", "snapdragon-8-gen-1")
                    .replace("context: 256", "context: 1024") + "quantize: {weights: 4}\n")
    done = _cli("check", path, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 2
    assert not told["ok"]
    assert told["chip"]["weight_bits"] == [8, 16]
    assert [f["where"].rpartition(": ")[2] for f in told["findings"] if f["severity"] == "recipe"] == [
        "target.context", "quantize.weights"]
    assert [row["part"] for row in told["parts"]] == ["embedding", "layers 0-1", "head"]


def test_a_broken_checkpoint_does_not_hide_the_rest(built: Built, checkpoint_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint_folder, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    path = tmp_path / "r.yaml"
    text = built.recipe.read_text().replace(str(checkpoint_folder), str(broken))
    path.write_text(text)
    assert _cli("check", path).returncode == 1
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    text = text.replace("8-gen-3", "8-gen-1").replace(f"out: {recipe.load(built.recipe).out}", f"out: {out}")
    path.write_text(text + "quantize: {weights: 4}\n")
    done = _cli("check", path)
    assert done.returncode == 2
    assert "is not an EdgeForge bundle" in done.stdout
    assert "model.safetensors" in done.stdout.replace("\n", "")
    assert "4-bit weights" in done.stdout


def test_it_is_quick_and_needs_no_torch(built: Built) -> None:
    text = built.recipe.with_name("own.txt")
    text.write_text("\n\n".join(f"paragraph {i} " * 20 for i in range(5000)))
    path = variant(built, "quick", calibrate={"text": str(text)})
    code = ("import sys\nfrom pathlib import Path\nfrom edgeforge import check, recipe\n"
            "report = check.examine(recipe.load(Path(sys.argv[1])))\n"
            "print(report.exit_code, sorted({'torch', 'transformers'} & set(sys.modules)), time.process_time())")
    done = subprocess.run([sys.executable, "-c", "import time\n" + code, str(path)], capture_output=True,
                          text=True, timeout=120, check=True)
    exit_code, loaded, seconds = done.stdout.split()
    assert (exit_code, loaded) == ("0", "[]")
    assert float(seconds) < 2, "of CPU time: others may share the machine"


def test_an_old_chip_is_built_with_unshared_weights(built: Built) -> None:
    """The tiny model goes through every gate for Snapdragon 8 Gen 1: v69 takes all our ops at 8 bits."""
    path = built.recipe.with_name("old.yaml")
    path.write_text(built.recipe.read_text().replace("8-gen-3", "8-gen-1").replace("/tiny\n", "/old\n"))
    begun = time.monotonic()
    done = _cli("build", path)
    assert done.returncode == 0, done.stderr
    assert "warning:" in done.stderr
    assert "does not share weights" in done.stderr
    assert "v69" in done.stdout
    assert time.monotonic() - begun < 100


def test_a_config_with_endless_layers_costs_nothing(tmp_path: Path) -> None:
    made = _recipe(tmp_path)
    decoder = dataclasses.replace(shape.decoder(shape.as_config(QWEN3_4B), HTP, 1024), layers=1 << 64)
    assert estimate(made, decoder, _tensors(QWEN3_4B)) is None
