"""quantize: ranges -> encodings, printed as a QDQ model that is the reference for everything compiled."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import onnx_ir as ir
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact
from edgeforge.artifact import Grid
from edgeforge.build import Build
from edgeforge.encodings import FILE, Table
from edgeforge.evaluation import logits
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import assign, gptq, qdq
from edgeforge.stages import adapt
from edgeforge.stages.calibrate import GRAMS, load_grams, load_ranges

_JUDGE_BY_TASK = (25.0, 35.0)
"""dB: between these, raw logit SQNR says little about text; read KL and perplexity"""


FLOAT = "float"
"""the float model that belongs to the table: rounding its weights to nearest gives the QDQ model's codes"""


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes table.json, float/, and the QDQ model, symbolic in width, with integer inputs and outputs."""
    source = sources["transform"]
    artifact.carry(source, out)
    model = store.load(source)
    ranges = load_ranges(sources["calibrate"])
    options = build.recipe.quantize
    bits = assign.Grids(options.weights, options.activations, options.kv, options.embedding)
    table = assign.assign(model.graph, _exact_inputs(build, ranges), bits)
    fit(build, model, table, sources["calibrate"], out)
    decoder = artifact.load_decoder(source)
    names = [*decoder.input_names()[1:], *decoder.output_names()]
    target = artifact.whole(decoder, build.widths, build.context, grids(table, names))
    dataclasses.replace(Manifest.load(source), targets={"cpu": target}).save(out)
    return _gate(build, out, sources["adapt"] / adapt.REFERENCE)


def fit(build: Build, model: ir.Model, table: Table, calibrated: Path, out: Path) -> None:
    """Rounds the weights of a float model to the table's grids; writes table.json, float/ and the QDQ model."""
    table.save(out / FILE)
    if build.recipe.quantize.rounding == "gptq":
        build.say("rounding weights")
        gptq.round_weights(model, table, load_grams(calibrated / GRAMS))
    (out / FLOAT).mkdir()
    store.save(model, out / FLOAT)
    store.save(qdq.quantize(store.load(out / FLOAT), table), out)


def grids(table: Table, names: list[str]) -> dict[str, Grid]:
    """dtype, scale and zero point of boundary tensors."""
    return {n: (table[n].dtype, float(table[n].scale), int(table[n].zero_point)) for n in names}


def _exact_inputs(build: Build, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The mask's grid ends exactly at `masked` and 0 (code 65535 = attend, as Genie writes it)."""
    return ranges | {"attention_mask": (build.profile.masked, 0.0)}


def _gate(build: Build, out: Path, reference: Path) -> list[Check]:
    build.say("measuring the quantized model")
    limits = build.recipe.gates
    with Session.open(out, threads=build.threads, exact=True) as session:
        found = logits.measure(session, reference)
    stats = found.all
    note = ""
    if _JUDGE_BY_TASK[0] < stats.sqnr < _JUDGE_BY_TASK[1]:
        note = "judge by task: KL and perplexity say more than dB here"
    return [
        Check("quantize: logits", stats.sqnr, "dB", limits.quantize_db, note=note),
        Check("quantize: logits, mean-centred", stats.centred_sqnr, "dB"),
        Check("quantize: decode logits", found.decode.sqnr, "dB"),
        Check("quantize: worst token", stats.worst_token_sqnr, "dB", note=f"row {stats.worst_token}"),
        Check("quantize: KL", stats.kl, "nats", limits.quantize_kl, "at most"),
        Check("quantize: perplexity ratio", stats.ppl_ratio, "x", limits.quantize_ppl, "at most",
              f"{stats.ppl_reference:.3f} -> {stats.ppl:.3f}"),
        Check("quantize: top-1 flips", stats.flips, "of tokens"),
        Check("quantize: finite", float(math.isfinite(stats.ppl)), "", 1),
    ]
