"""Does the finished package compute what the float graph does? Read from disk and executed, against onnxruntime.

Both have the weights that the package stores (code x step and float16), so that what is left is the rewrite and
float16 arithmetic. A ragged prompt is read in chunks, padded in front as a device reads it, then token by token over
the cache that prefill left.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact
from edgeforge.backends.coreml import activations, chain, target
from edgeforge.backends.coreml.device import verify_on_mac
from edgeforge.encodings import Encoding, Floats
from edgeforge.gates import Check
from edgeforge.graph import edit, store
from edgeforge.metrics import sqnr_db
from edgeforge.quantize.weights.palette import Palette

if TYPE_CHECKING:
    from edgeforge.backends.coreml.interpret.run import Rounding

STEPS = 4
_ROUNDINGS: tuple[Rounding, ...] = ("float32", "float16")


def checks(quantized: Path, formats: Mapping[str, Encoding | Palette], folder: Path, prefill: int, context: int,
           ids: npt.NDArray[np.int64], threads: int, golden: Path) -> list[Check]:
    """Logits after a prompt of one and a half chunks, and after each step behind it.

    Args:
        golden: a folder to make; gets the last call of every function, for the device to repeat.
        quantized: a quantize artifact (its float graph, manifest and rotary tables). ids: [tokens], enough for both.
    """
    from edgeforge.backends.coreml.simulator import SimulatorExecutor

    manifest = Manifest.load(quantized)
    rope = artifact.load_rope(quantized)
    tokens, prompt = text(ids, prefill, context)
    expected = reference(quantized, formats, prefill, context, tokens, threads)
    weights = store.load(quantized / artifact.FLOAT).graph.initializers
    own = chain.target(chain.load(folder), "", target.widths(prefill), context, "float32")
    found: list[Check] = []
    for rounding in _ROUNDINGS:
        executor = SimulatorExecutor.of(own, folder, rounding)
        made = conversation(Session(manifest, own, executor, rope), tokens, prompt)
        found += _compared(expected, made, rounding, any(n not in weights for n in formats))
    golden.mkdir()
    for (file, function), (states, inputs, outputs) in executor.last.items():
        package = f"{file.split('.')[0]}." if len(executor.packages) > 1 else ""
        np.savez(golden / f"{package}{function}.npz", **_half(verify_on_mac.STATE, states),
                 **_half(verify_on_mac.IN, inputs), **_half(verify_on_mac.OUT, outputs))
    return found


def text(ids: npt.NDArray[np.int64], prefill: int, context: int) -> tuple[list[int], int]:
    """The conversation's tokens, and how many of them are its prompt."""
    prompt = min(prefill + max(1, prefill // 2), context - STEPS)
    return [int(t) for t in ids[: prompt + STEPS]], prompt


def reference(quantized: Path, formats: Mapping[str, Encoding | Palette], prefill: int, context: int,
              tokens: Sequence[int], threads: int) -> Floats:
    """The float graph's logits of that conversation, on onnxruntime; see checks."""
    decoder = artifact.load_decoder(quantized)
    with tempfile.TemporaryDirectory(prefix="edgeforge-parity-") as scratch:
        store.save(stored(store.load(quantized / artifact.FLOAT), formats), Path(scratch))
        whole = artifact.whole(decoder, [prefill, 1], context)
        shutil.copyfile(quantized / artifact.ROPE, Path(scratch) / artifact.ROPE)
        dataclasses.replace(Manifest.load(quantized), targets={"cpu": whole}).save(Path(scratch))
        session = Session.open(Path(scratch), threads=threads, exact=True)
        return conversation(session, tokens, len(tokens) - STEPS)


def _half(side: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """By name with the side in front, floats in float16: that is what they are already."""
    return {f"{side}{n}": a.astype(np.float16 if a.dtype.kind == "f" else np.int32) for n, a in arrays.items()}


def stored(model: ir.Model, formats: Mapping[str, Encoding | Palette]) -> ir.Model:
    """The float graph, in place, with every constant as the package's readers see it, and what products of codes read
    rounded."""
    for name, value in model.graph.initializers.items():
        array = edit.constant(value)
        if array is not None and array.dtype.kind == "f":
            value.const_value = ir.tensor(expanded(array, formats.get(name)), name=name)
    activations.write(model, {name: e for name, e in formats.items() if isinstance(e, Encoding)})
    return model


def expanded(array: npt.NDArray[np.floating], form: Encoding | Palette | None) -> Floats:
    """code * step or a table's entry, in float16."""
    if isinstance(form, Palette):
        return form.dequantize()
    if form is not None:
        array = form.dequantize(form.quantize(array))
    return array.astype(np.float16).astype(np.float32)


def conversation(session: Session, tokens: Sequence[int], prompt: int) -> Floats:
    """Logits after the prompt and after each further token, [1 + steps, vocab]; closes the session."""
    with session:
        return np.stack([session.prompt(tokens[:prompt]), *(session.step(t) for t in tokens[prompt:])])


def _compared(expected: Floats, made: Floats, rounding: str, codes: bool) -> Iterator[Check]:
    """codes: products read codes, of which a hair's breadth flips some, in float32 even; what that costs grows with
    depth."""
    finite, exact = bool(np.isfinite(made).all()), rounding == "float32"
    note = "codes that flip are in it" if codes else ""
    note = note if finite else "float16 ends at 65504, and a value of this model goes further"
    gate = "emitted_codes_db" if codes and finite else "emitted_db" if exact else "rounded_db"
    for name, rows in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
        db = sqnr_db(expected[rows], made[rows]) if finite else -math.inf
        yield Check(f"compile: {name} of the package in {rounding} against the float graph", db, "dB",
                    note=note, gate=gate)
