"""A bundle for Qualcomm's Genie: its two config files, their check, and Genie itself on the emulator.

Genie is a program that nobody here wrote: that it loads our parts by name and decodes the same tokens as
our own loop is the proof that the graph contract is kept.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeforge_runtime.text import TextCodec

from edgeforge.adapt import shape
from edgeforge.backends import process
from edgeforge.backends.qnn import complaints, wheel
from edgeforge.backends.qnn.schemas import embedded_schemas, violations
from edgeforge.errors import CompilerError, UnsupportedError
from edgeforge.targets import HEXAGON

SWA_PREFIX = "swa_"
"""of the names of the inputs that hold the rows of the sliding layers' own RoPE table"""
CONFIG, EXTENSIONS, TOKENIZER = "genie_config.json", "htp_backend_ext_config.json", "tokenizer.json"
WORKER = process.module_command("edgeforge.backends.qnn.genie_worker")
_DIALOG_SCHEMA, _EXTENSION_LIBRARY = "urn:genie:schema:dialog", "libQnnHtpNetRunExtensions.so"

# HF's rope_type -> Genie's, and the parameters that both need, in HF's spelling. With these, Genie's tables
# were seen to equal HF's to the last code; other kinds were not tried.
_ROPE_TYPES = {"llama3": "llama3", "linear": "linear", "longrope": "longrope", "yarn": "yarnrope"}
_ROPE_KEYS = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "longrope": ("factor", "short_factor", "long_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
# What Genie says -> what to change.
_ADVICE = (
    (r"no associated attention mask", "a part is missing from ctx-bins, or attention_mask has another name"),
    (
        r"ShapeError",
        "cache tensors must be past_key_{i}_in [kv,1,hd,CL-AR] and past_value_{i}_in [kv,1,CL-AR,hd]",
    ),
    (
        r"Tensor not found|Could not find I/O tensors",
        "inputs and outputs must have the contract's names:"
        " input_ids, attention_mask, position_ids_cos, position_ids_sin, past_key_{i}_in, logits",
    ),
    (
        r"Non-identical quantization parameters",
        "a cache tensor must have one scale and offset as input, as output and in every graph width",
    ),
    (r"but loaded max-CL", "context.size is larger than the context length that the graphs were built for"),
    (
        r"Model Validation Errors",
        "the parts are in the wrong order: graph names of one width must sort as text",
    ),
    (r"weight sel = -1", "the padding token is negative: give eos or pad a real id"),
    (r"weight sel = [0-9]", "a token id lies outside the embedding table"),
    (
        r"Shared weights buffer|create context from binary with err 1000",
        "these are weight-shared device binaries, which x86 cannot load: use the twin's",
    ),
    (r"Schema validation failed|^- at '", "genie_config.json breaks the schema of this Genie version"),
)


@dataclass(frozen=True)
class GenieSpec:
    """What Genie has to be told. Everything else it reads from the binaries.

    Attributes:
        context: CL of the graphs, tokens. vocab: rows of logits.
        bos: prepended by Genie to every query; None when the prompt already holds it or has none.
        eos: any of them ends a reply. pad: fills the unused rows of a prompt; None takes the first eos.
        head_dim: K and V's. rope_dim: rotated dimensions of a head / 2.
        rope_scaling: HF's rope parameters (rope_type, factor, ...); None for plain RoPE.
        swa_rope: HF's rope parameters of sliding layers with a table of their own; None where there is one table.
        ctx_bins: file names in the bundle folder, part order. soc_model, dsp_arch: 57 and 75, say.
    """

    context: int
    vocab: int
    eos: tuple[int, ...]
    head_dim: int
    rope_dim: int
    rope_theta: float
    ctx_bins: tuple[str, ...]
    soc_model: int
    dsp_arch: int
    bos: int | None = None
    pad: int | None = None
    rope_scaling: Mapping[str, Any] | None = None
    swa_rope: Mapping[str, Any] | None = None


def genie_config(spec: GenieSpec) -> dict[str, Any]:
    """genie_config.json; all paths in it are relative to the bundle folder, where Genie has to start."""
    if not spec.eos or min(spec.eos) < 0:
        raise UnsupportedError(
            f"Genie needs an end-of-sequence id, got {spec.eos}",
            "it also pads prompts with it: -1 would index outside the embedding table",
        )
    rope: Any = _encoding(spec.rope_theta, spec.rope_scaling, spec.rope_dim)
    if spec.swa_rope is not None:
        theta = float(spec.swa_rope["rope_theta"])
        rope = [rope, _encoding(theta, spec.swa_rope, spec.rope_dim) | {"prefix": SWA_PREFIX}]
    context: dict[str, Any] = {
        "version": 1,
        "size": spec.context,
        "n-vocab": spec.vocab,
        "bos-token": -1 if spec.bos is None else spec.bos,
        "eos-token": spec.eos[0] if len(spec.eos) == 1 else list(spec.eos),
    }
    if spec.pad is not None:
        context["pad-token"] = spec.pad
    htp = {
        "version": 1,
        "use-mmap": True,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "poll": True,
        "cpu-mask": "0xe0",
        "kv-dim": spec.head_dim,
        "allow-async-init": False,
    }
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": context,
            "sampler": {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95},
            "tokenizer": {"version": 1, "path": TOKENIZER},
            "engine": {
                "version": 1,
                "n-threads": 3,
                "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": htp, "extensions": EXTENSIONS},
                "model": {
                    "version": 1,
                    "type": "binary",
                    "positional-encoding": rope,
                    "binary": {"version": 1, "ctx-bins": list(spec.ctx_bins)},
                },
            },
        }
    }


def _encoding(theta: float, scaling: Mapping[str, Any] | None, rope_dim: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "rope", "rope-dim": rope_dim, "rope-theta": theta}
    words = rope_scaling(scaling, rope_dim)
    return found | {"rope-scaling": words} if words else found


def prepended(codec: TextCodec, bos: int | None) -> int | None:
    """The bos that Genie has to put before a query: it encodes text without what tokenizer.json would put around it
    (tried, libGenie 1.21). None where the chat template writes it: then the prompt holds it.
    """
    if bos is None or codec.encode("")[:1] != [bos]:
        return None
    spoken = codec.encode_chat([{"role": "user", "content": "Why?"}]) if codec.template is not None else []
    return None if spoken[:1] == [bos] else bos


def rope_parameters(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """HF's rope parameters, as config.json spells them in the new way or the old one: those of all layers, or those
    of full attention and then those of sliding attention."""
    made = shape.as_config(config)
    found = shape.rope_tables(made)
    return [dict(rope) if isinstance(rope := found[layers], Mapping) else {} for layers in shape.rotary_inputs(made)]


def rope_scaling(hf: Mapping[str, Any] | None, rope_dim: int) -> dict[str, Any] | None:
    """HF's rope parameters in Genie's words; None for plain RoPE.

    Args:
        rope_dim: rotated dimensions of a head / 2.

    Raises:
        UnsupportedError: a kind that Genie lacks, or a parameter that is missing or has no counterpart.
    """
    kind = str((hf or {}).get("rope_type", (hf or {}).get("type", "default")))
    if hf is None or kind == "default":
        return None
    if kind not in _ROPE_TYPES:
        raise UnsupportedError(
            f"Genie has no RoPE scaling of type {kind!r}", f"it knows {', '.join(_ROPE_TYPES)}"
        )
    missing = [key for key in _ROPE_KEYS[kind] if hf.get(key) is None]
    if missing:
        raise UnsupportedError(f"RoPE scaling {kind!r} lacks {', '.join(missing)}")
    foreign = [
        key for key in ("attention_factor", "mscale", "mscale_all_dim", "truncate") if hf.get(key) is not None
    ]
    if foreign:
        raise UnsupportedError(
            f"RoPE scaling {kind!r} sets {', '.join(foreign)}, which Genie derives by itself"
        )
    words = {"rope-type": _ROPE_TYPES[kind], **{key.replace("_", "-"): hf[key] for key in _ROPE_KEYS[kind]}}
    if kind == "yarn":
        # attn-factor multiplies the attention scale that Genie derives from factor, as HF does.
        words |= {
            "dim": 2 * rope_dim,
            "extrapolation-factor": 1.0,
            "attn-factor": 1.0,
            "beta-fast": hf.get("beta_fast") or 32.0,
            "beta-slow": hf.get("beta_slow") or 1.0,
        }
    return words


def extensions_config(spec: GenieSpec) -> dict[str, Any]:
    """htp_backend_ext_config.json: which chip, at which power, and whether its binaries share weights."""
    core = {"perf_profile": "burst", "rpc_control_latency": 100}
    return {
        "devices": [{"soc_model": spec.soc_model, "dsp_arch": f"v{spec.dsp_arch}", "cores": [core]}],
        "memory": {"mem_type": "shared_buffer"},
        "context": {"weight_sharing_enabled": HEXAGON[spec.dsp_arch].sharing},
    }


def write_genie_files(folder: Path, spec: GenieSpec) -> tuple[Path, Path]:
    """Writes both config files after checking them: CompilerError lists what the vendor's schemas refuse."""
    paths = folder / CONFIG, folder / EXTENSIONS
    contents = genie_config(spec), extensions_config(spec)
    check_genie_config(contents[0])
    check_extensions(contents[1])
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return paths


def check_genie_config(config: Mapping[str, Any]) -> None:
    """Raises CompilerError when the installed Genie's schemas refuse the config."""
    store = embedded_schemas(wheel.find().library(wheel.GENIE))
    if set(config) != {"dialog"}:
        raise CompilerError(f"{CONFIG}: the one top-level key is 'dialog', got {sorted(config)}")
    _refuse(CONFIG, violations(config["dialog"], _DIALOG_SCHEMA, store))


def check_extensions(config: Mapping[str, Any]) -> None:
    """Raises CompilerError when the backend's schema refuses the config, or would ignore a key of it."""
    store = embedded_schemas(wheel.find().library(_EXTENSION_LIBRARY))
    _refuse(EXTENSIONS, violations(config, "", store, closed=True))


def genie_tokens(bundle: Path, ids: Sequence[int], n: int, timeout_s: float) -> list[int]:
    """Greedy tokens from libGenie over the bundle's binaries, on the x86 emulator.

    Args:
        bundle: folder with genie_config.json, tokenizer.json and x86-loadable binaries.
        ids: the whole prompt: a bos that the config would prepend is not prepended again.
        n: at most this many new tokens; generation ends before an eos, which is not returned.

    Raises:
        CompilerError: Genie refused (with what to change), crashed or hung.
    """
    library = wheel.find().library(wheel.GENIE)
    try:
        config = json.loads((bundle / CONFIG).read_text(encoding="utf-8"))
        dialog = config["dialog"]
        dialog["context"]["bos-token"] = -1  # the ids are complete
        dialog["sampler"] = {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0, "greedy": True}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{bundle} holds no usable {CONFIG}: {type(error).__name__} {error}") from error
    with tempfile.TemporaryDirectory(prefix="edgeforge-genie-") as scratch:
        job, result = Path(scratch) / "job.json", Path(scratch) / "tokens.json"
        job.write_text(
            json.dumps(
                {
                    "library": str(library),
                    "config": config,
                    "ids": list(map(int, ids)),
                    "n": n,
                    "result": str(result),
                }
            ),
            encoding="utf-8",
        )
        run = process.run_child(
            [*WORKER, str(job)],
            log=Path(scratch) / "genie.log",
            timeout_s=timeout_s,
            cwd=bundle,
            env={"LD_LIBRARY_PATH": str(library.parent)},
        )  # Genie opens its backend by bare name
        if not run.ok or not result.is_file():
            raise CompilerError(
                f"Genie over {bundle} {run.ending()}: " + " | ".join(_telling(run.log)), _advice(run.log)
            )
        tokens: list[int] = json.loads(result.read_text(encoding="utf-8"))
    return tokens


def _telling(log: str) -> list[str]:
    lines = complaints.readable(log)
    known = [line for line in lines if any(re.search(pattern, line) for pattern, _ in _ADVICE)]
    return list(dict.fromkeys(known or lines[-4:]))[:4]


def _advice(log: str) -> str:
    return "; ".join(text for pattern, text in _ADVICE if re.search(pattern, log))


def _refuse(name: str, found: list[str]) -> None:
    if found:
        raise CompilerError(f"{name} breaks the installed vendor schema: " + "; ".join(found[:6]))
