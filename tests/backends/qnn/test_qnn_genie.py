"""Genie over our binaries: token-exact with a plain loop on the same emulator, and its refusals."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qnn_greedy
from edgeforge_runtime.text import TextCodec
from qnn_fixtures import WIDTHS, Built
from qnn_tiny_llama import PARTS, cpu_session, graph_name, grid
from tokenizers import Tokenizer, models, processors

from edgeforge.backends.qnn import genie
from edgeforge.backends.qnn.genie import (
    GenieSpec,
    check_extensions,
    check_genie_config,
    extensions_config,
    genie_config,
    genie_tokens,
    rope_scaling,
    write_genie_files,
)
from edgeforge.errors import CompilerError, UnsupportedError

PROMPT = [1, *map(int, np.random.default_rng(5).integers(3, 250, 40))]  # two wide calls, the second half full
NEW = 16
SPEC = GenieSpec(
    context=256,
    vocab=256,
    eos=(qnn_greedy.EOS,),
    head_dim=16,
    rope_dim=8,
    rope_theta=10000.0,
    ctx_bins=tuple(f"part{p}.bin" for p in range(1, PARTS + 1)),
    soc_model=57,
    dsp_arch=75,
    bos=1,
)


def make_bundle(folder: Path, parts: list, spec: GenieSpec = SPEC) -> Path:
    folder.mkdir()
    for part in parts:
        shutil.copy(part.binary, folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"t{i}": i for i in range(3, 256)}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_genie_files(folder, spec)
    return folder


@pytest.fixture(scope="module")
def bundle(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("genie") / "bundle", built.twin)


@pytest.fixture(scope="module")
def emulated(built: Built, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The loop's tokens on the emulator, through the EPContext wrappers."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "ranges.json").write_text(json.dumps(built.ranges))
    (folder / "ids.json").write_text(json.dumps(PROMPT))
    wrappers = [str(g.wrapper) for i in range(len(WIDTHS)) for g in (p.graphs[i] for p in built.twin)]
    arguments = [str(folder / "ranges.json"), str(folder / "ids.json"), str(NEW), *wrappers]
    command = [sys.executable, qnn_greedy.__file__, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def test_genie_gives_exactly_the_tokens_of_the_plain_loop(bundle: Path, emulated: list[int]) -> None:
    tokens = genie_tokens(bundle, PROMPT, NEW, 120)
    assert tokens == emulated
    assert len(set(tokens)) > 5


def test_the_loop_on_the_cpu_agrees_at_first(built: Built, emulated: list[int]) -> None:
    # Random weights make near ties: the first tokens are compared, not all.
    sessions = {
        ar: [cpu_session(built.onnx[graph_name(ar, p, built.model)]) for p in range(1, PARTS + 1)]
        for ar in WIDTHS
    }
    assert qnn_greedy.Loop(built.model, built.ranges, sessions).generate(PROMPT, 4) == emulated[:4]


def test_a_changed_weight_changes_the_tokens(built: Built, tmp_path: Path, emulated: list[int]) -> None:
    bundle = make_bundle(tmp_path / "b", built.twin)
    binary = bundle / "part3.bin"
    data = bytearray(binary.read_bytes())
    start = len(data) // 4
    data[start : start + 20000] = bytes(20000)
    binary.write_bytes(bytes(data))
    with contextlib.suppress(CompilerError):  # a refusal would do as well
        assert genie_tokens(bundle, PROMPT, NEW, 60) != emulated


@pytest.mark.parametrize(
    ("change", "said", "advice"),
    [
        ({"ctx_bins": ("part1.bin", "part3.bin")}, "no associated attention mask", "missing from ctx-bins"),
        ({"context": 512}, "loaded max-CL=256", "context.size is larger"),
    ],
)
def test_refusals_come_with_advice(
    bundle: Path, tmp_path: Path, change: dict, said: str, advice: str
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "b"))
    write_genie_files(copy, replace(SPEC, **change))
    with pytest.raises(CompilerError, match=said) as caught:
        genie_tokens(copy, PROMPT[:4], 2, 60)
    assert advice in caught.value.hint


def test_shared_binaries_are_recognised_when_they_crash_genie(built: Built, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", built.device)
    with pytest.raises(CompilerError, match="Shared weights buffer") as caught:
        genie_tokens(bundle, PROMPT[:4], 2, 60)
    assert "twin" in caught.value.hint


def test_hanging_genie_is_stopped(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genie, "WORKER", (sys.executable, "-c", "import time; time.sleep(600)"))
    with pytest.raises(CompilerError, match="did not finish"):
        genie_tokens(bundle, PROMPT, 1, 1.0)


def test_bundle_without_config_is_named(tmp_path: Path, wheel: None) -> None:
    with pytest.raises(CompilerError, match="holds no usable genie_config"):
        genie_tokens(tmp_path, PROMPT, 1, 10)


def test_our_validator_and_genie_agree_on_bad_configs(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "b"))
    config = genie_config(SPEC)
    config["dialog"]["engine"]["backend"]["QnnHtp"]["cpu-mask"] = 3
    with pytest.raises(
        CompilerError, match=r"\$\.engine\.backend\.QnnHtp\.cpu-mask: 3 is not of type string"
    ):
        check_genie_config(config)
    (copy / "genie_config.json").write_text(json.dumps(config))
    with pytest.raises(CompilerError, match="cpu-mask") as caught:
        genie_tokens(copy, PROMPT[:4], 1, 60)
    assert "schema" in caught.value.hint


def test_config_checks_fail_on_unknown_keys(wheel: None) -> None:
    config = genie_config(SPEC)
    check_genie_config(config)
    with pytest.raises(CompilerError, match="extra"):
        check_genie_config({**config, "extra": 1})
    config["dialog"]["engine"]["model"]["positional-encoding"]["rope-thetta"] = 1
    with pytest.raises(CompilerError, match="rope-thetta"):
        check_genie_config(config)
    extensions = extensions_config(SPEC)
    check_extensions(extensions)
    extensions["devices"][0]["dsp_arhc"] = "v75"
    with pytest.raises(CompilerError, match="dsp_arhc"):
        check_extensions(extensions)


@pytest.mark.parametrize(
    ("hf", "expected"),
    [
        (None, None),
        ({"rope_type": "default", "rope_theta": 1e4}, None),
        ({"rope_type": "linear", "factor": 2.0}, {"rope-type": "linear", "factor": 2.0}),
        (
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_theta": 5e5,
            },
            {
                "rope-type": "llama3",
                "factor": 32.0,
                "low-freq-factor": 1.0,
                "high-freq-factor": 4.0,
                "original-max-position-embeddings": 8192,
            },
        ),
    ],
)
def test_rope_scaling_in_genies_words(wheel: None, hf: dict | None, expected: dict | None) -> None:
    assert rope_scaling(hf, 8) == expected
    check_genie_config(genie_config(replace(SPEC, rope_scaling=hf)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [2.0 + 0.1 * i for i in range(8)],
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda s: s["rope_type"],
)
def test_genies_rope_tables_are_those_of_transformers(built: Built, tmp_path: Path, scaling: dict) -> None:
    """Genie computes cos and sin itself: its dumped codes against HF's tables, at all 70 positions."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    bundle = make_bundle(tmp_path / "b", built.twin, replace(SPEC, rope_scaling=scaling))
    path = bundle / "genie_config.json"
    config = json.loads(path.read_text())
    config["dialog"]["debug"] = {"path": "dump", "dump-tensors": True}
    path.write_text(json.dumps(config))
    prompt = (PROMPT * 2)[:70]
    genie_tokens(bundle, prompt, 1, 60)

    settings = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e4, **scaling},
    )
    rotary = LlamaRotaryEmbedding(settings)
    expected = [t[0, :, :8].double().numpy() for t in rotary(torch.zeros(1, 1, 64), torch.arange(256)[None])]
    scale, zero = grid(-1, 1, 16)
    for name, table in zip(("cos", "sin"), expected, strict=True):
        files = sorted(bundle.rglob(f"*_in_position_ids_{name}"), key=lambda f: f.name)
        found = np.concatenate([np.fromfile(f, np.uint16).reshape(-1, 8) for f in files])[: len(prompt)]
        # Genie rounds down, and computes in float32.
        codes = np.clip(np.floor(table[: len(prompt)] / scale + zero), 0, 65535)
        assert np.abs(found - codes).max() <= 1


@pytest.mark.parametrize(("opens", "template", "expected"), [
    (True, None, 1), (True, "{{ messages[0].content }}", 1), (True, "{{ bos_token }}{{ messages[0].content }}", None),
    (False, None, None)])
def test_genie_puts_bos_where_nothing_else_does(
        tmp_path: Path, opens: bool, template: str | None, expected: int | None) -> None:
    """Gemma without it is noise, and Genie's own tokenizer leaves it out."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "Why?": 2}, "<unk>"))
    made.add_special_tokens(["<s>"])
    if opens:
        made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    assert genie.prepended(TextCodec(tmp_path), 1) == expected
    assert genie.prepended(TextCodec(tmp_path), None) is None


@pytest.mark.parametrize("config", [
    {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
    {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}},
     "layer_types": ["sliding_attention", "full_attention"]}])
def test_a_second_table_goes_by_its_prefix(wheel: None, config: dict) -> None:
    full, swa = genie.rope_parameters(config)
    made = genie_config(replace(SPEC, rope_theta=full["rope_theta"], rope_scaling=full, swa_rope=swa))
    check_genie_config(made)
    assert made["dialog"]["engine"]["model"]["positional-encoding"] == [
        {"type": "rope", "rope-dim": 8, "rope-theta": 1e6},
        {"type": "rope", "rope-dim": 8, "rope-theta": 1e4, "prefix": "swa_"}]


def test_what_genie_cannot_do_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'dynamic'"):
        rope_scaling({"rope_type": "dynamic", "factor": 2.0}, 8)
    with pytest.raises(UnsupportedError, match="lacks factor"):
        rope_scaling({"rope_type": "linear"}, 8)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    with pytest.raises(UnsupportedError, match="mscale"):
        rope_scaling({**yarn, "mscale": 0.7}, 8)
    for eos in ((), (-1,)):
        with pytest.raises(UnsupportedError, match="end-of-sequence"):
            genie_config(replace(SPEC, eos=eos))
