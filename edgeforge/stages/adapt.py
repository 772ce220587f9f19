"""adapt: HuggingFace checkpoint -> float ONNX in the profile's shape, gated against the HuggingFace model."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

from edgeforge_runtime import manifest as m
from edgeforge_runtime.session import Session

from edgeforge import artifact, checkpoint
from edgeforge.adapt import export, mask, rope, shape
from edgeforge.adapt.decoder import DecoderGraph
from edgeforge.build import Build
from edgeforge.calibrate.windows import gate_windows
from edgeforge.evaluation import logits
from edgeforge.gates import Check
from edgeforge.graph import store


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes the model, its RoPE tables, tokenizer, manifest, and the reference logits that later gates use."""
    tokenizer = checkpoint.load_tokenizer(build.checkpoint)
    tokenizer.save_pretrained(out / artifact.TOKENIZER)
    windows = gate_windows(tokenizer, build.recipe)
    model: Any = checkpoint.load_model(build.checkpoint)
    decoder = shape.decoder(model.config, build.profile, build.context)
    build.say("reference logits from the HuggingFace model")
    logits.save_reference(out / artifact.REFERENCE, windows, logits.hf_logits(model, windows))
    above = mask.spread(model, windows)
    decoder = dataclasses.replace(decoder, masked=mask.depth(above, build.profile))
    artifact.save_rope(out, rope.tables(model, build.context))
    artifact.save_decoder(out, decoder)
    _manifest(build, decoder, model, tokenizer).save(out)
    build.say("exporting the graph")
    store.save(export.export(DecoderGraph(model, build.profile), decoder), out)
    del model
    gc.collect()
    lowered = Check("adapt: mask", decoder.masked, "added to a forbidden score",
                    note=f"that lies up to {above:.0f} above what is allowed")
    return [*gate(build, out, out / artifact.REFERENCE, "adapt", "adapt_db"), lowered]


def gate(build: Build, folder: Path, reference: Path, stage: str, limit: str) -> list[Check]:
    """A float artifact's logits against the HuggingFace model: prefill, and AR-1 by itself. limit: the gate."""
    build.say("measuring against the HuggingFace model")
    with Session.open(folder, threads=build.threads) as session:
        found = logits.measure(session, reference)
    return [Check(f"{stage}: prefill logits", found.prefill.sqnr, "dB", gate=limit),
            Check(f"{stage}: decode logits", found.decode.sqnr, "dB", gate=limit),
            Check(f"{stage}: worst token", found.all.worst_token_sqnr, "dB", note=f"row {found.all.worst_token}")]


def _manifest(build: Build, decoder: shape.Decoder, model: Any, tokenizer: Any) -> m.Manifest:
    generation = getattr(model, "generation_config", None)
    eos = _ids(getattr(generation, "eos_token_id", None)) | _ids(model.config.eos_token_id) | _ids(
        tokenizer.eos_token_id)
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    described = m.Model(
        name=build.checkpoint.name, layers=decoder.layers, vocab_size=decoder.vocab, context=build.context,
        eos=tuple(sorted(eos)), bos=tokenizer.bos_token_id, pad=pad, masked=decoder.masked,
        key_axis=decoder.profile.key_axis, value_axis=decoder.profile.value_axis)
    target = artifact.whole(decoder, build.widths, build.context)
    return m.Manifest(described, artifact.ROPE, {"cpu": target}, artifact.TOKENIZER)


def _ids(value: int | list[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else set(value)
