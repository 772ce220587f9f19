"""quantize: ranges -> encodings, printed as a QDQ model that is the reference for everything compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact, torch_ops
from edgeforge.artifact import Grid
from edgeforge.build import Build
from edgeforge.calibrate import histogram
from edgeforge.encodings import FILE, Table
from edgeforge.evaluation import logits
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.quantize import assign, clip, floors, footprint, qdq, quality, sequential, weight_grids
from edgeforge.quantize.walk import Sample
from edgeforge.quantize.weights.fit import Method
from edgeforge.stages import adapt, mixed, reading
from edgeforge.stages.calibrate import load_ranges

_JUDGE_BY_TASK = (25.0, 35.0)
"""dB: between these, raw logit SQNR says little about text; read KL and perplexity"""


FLOAT = "float"
"""the float model that belongs to the table: rounding its weights to nearest gives the QDQ model's codes"""


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes table.json, float/, and the QDQ model, symbolic in width, with integer inputs and outputs; precision.json
    when the recipe has a budget."""
    source = sources["transform"]
    model = store.load(source)
    ranges = _exact_inputs(build, load_ranges(sources["calibrate"]))
    histograms = histogram.load(sources["calibrate"])
    samples = reading.samples(source, artifact.load_decoder(source), sources["text"])

    def make(build: Build, folder: Path) -> tuple[list[Check], float]:
        artifact.carry(source, folder)
        options = build.recipe.quantize
        bits = assign.Grids(options.weights, options.activations, options.kv, options.embedding)
        clipped = clip.clipped(model.graph, histograms, options)
        checks = fit(build, model.clone(), samples, ranges, bits, folder, clipped)
        _save_manifest(build, source, folder)
        found = _measure(build, folder, sources["adapt"] / adapt.REFERENCE)
        four = footprint.four_bits(model.graph, Table.load(folder / FILE))
        return checks + _gate(build, found, four), found.all.kl

    return mixed.run(build, model, samples, make, out)


def fit(build: Build, model: ir.Model, samples: Sequence[Sample], ranges: Mapping[str, assign.Range],
        bits: assign.Grids, out: Path, clipped: Mapping[str, assign.Range] | None = None) -> list[Check]:
    """Fits all weights on samples; writes table.json, float/ and the QDQ model. clipped: see `assign`."""
    options = build.recipe.quantize
    decoder = build.recipe.decoder
    method = quality.method(options, decoder)
    whole = weight_grids.left_whole(model.graph, options, decoder)
    unknown = torch_ops.unsupported(model.graph)
    chosen, outside = weight_grids.choose(model.graph, options, decoder), weight_grids.outside(model.graph, options)
    weights = [] if unknown else sequential.quantize(
        model, samples, chosen, method, build.say)
    table = assign.assign(model.graph, ranges, bits, {w.name: w.encoding for w in weights}, clipped,
                          outside | {name: grid.bits for name, grid in chosen.items()})
    table = floors.raised(model.graph, table, build.profile.least_multiplier)
    table.save(out / FILE)
    (out / FLOAT).mkdir()
    store.save(model, out / FLOAT)
    store.save(qdq.quantize(store.load(out / FLOAT), table), out)
    stored = Check("quantize: stored", footprint.bits_per_weight(model.graph, table), "bits a weight")
    return [*_weight_checks(weights, unknown, outside), stored, *_tuned_checks(weights, method),
            *_block_checks(table, options.block, whole)]


def _weight_checks(weights: list[sequential.Weight], unknown: list[str], outside: Mapping[str, int]) -> list[Check]:
    """How far the worst weight's outputs are, and which weights no search fits."""
    worst = max(weights, key=lambda w: w.loss, default=None)
    note = f"no {', '.join(unknown)} here: each weight's largest value sets its scale" if unknown else ""
    if worst is not None:
        note = f"worst {worst.name}: {-10 * math.log10(max(worst.loss, 1e-30)):.1f} dB"
    listed = "by their largest value: " + ", ".join(f"{name} {bits} bits" for name, bits in outside.items())
    return [Check("quantize: weights fitted", len(weights), "weights", note=note),
            *([Check("quantize: weights outside the search", len(outside), "weights", note=listed)] if outside else [])]


def _tuned_checks(weights: Sequence[sequential.Weight], method: Method) -> list[Check]:
    """How many weights were tuned with their block, and why the others were not; nothing when none were to be."""
    if not method.reconstruct:
        return []
    apart, in_vain = (sum(w.tuned is said for w in weights) for said in (None, False))
    said = [f"{apart} lie between no two places where one value holds all"] if apart else []
    said += [f"{in_vain} in blocks that tuning did not bring nearer"] if in_vain else []
    return [Check("quantize: weights tuned by blocks", sum(w.tuned is True for w in weights), f"of {len(weights)}",
                  note="; ".join(said))]


def _block_checks(table: Table, block: int | None, whole: Mapping[str, str]) -> list[Check]:
    """How many weights have blocks, and which were left per channel, and why; nothing when none were asked for."""
    if block is None:
        return []
    count = sum(encoding.block_scale is not None for encoding in table.values())
    return [Check(f"quantize: weights in blocks of {block}", count, "weights", 1),
            Check("quantize: weights left per channel", len(whole), "weights",
                  note="; ".join(f"{name}: {why}" for name, why in whole.items()))]


def grids(table: Table, names: list[str]) -> dict[str, Grid]:
    """dtype, scale and zero point of boundary tensors."""
    return {n: (table[n].dtype, float(table[n].scale), int(table[n].zero_point)) for n in names}


def _exact_inputs(build: Build, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The mask's grid ends exactly at `masked` and 0 (code 65535 = attend, as Genie writes it)."""
    return ranges | {"attention_mask": (build.profile.masked, 0.0)}


def _save_manifest(build: Build, source: Path, out: Path) -> None:
    decoder, table = artifact.load_decoder(source), Table.load(out / FILE)
    names = [*decoder.input_names()[1:], *decoder.output_names()]
    target = artifact.whole(decoder, build.widths, build.context, grids(table, names))
    dataclasses.replace(Manifest.load(source), targets={"cpu": target}).save(out)


def _measure(build: Build, out: Path, reference: Path) -> logits.Measured:
    build.say("measuring the quantized model")
    with Session.open(out, threads=build.threads, exact=True) as session:
        return logits.measure(session, reference)


def _gate(build: Build, found: logits.Measured, four_bits: bool) -> list[Check]:
    limits = build.recipe.gates.quantized(four_bits)
    stats = found.all
    note = ""
    if _JUDGE_BY_TASK[0] < stats.sqnr < _JUDGE_BY_TASK[1]:
        note = "judge by task: KL and perplexity say more than dB here"
    return [
        Check("quantize: logits", stats.sqnr, "dB", limits.db, note=note),
        Check("quantize: logits, mean-centred", stats.centred_sqnr, "dB", limits.centred_db),
        Check("quantize: decode logits", found.decode.sqnr, "dB"),
        Check("quantize: worst token", stats.worst_token_sqnr, "dB", note=f"row {stats.worst_token}"),
        Check("quantize: KL", stats.kl, "nats", limits.kl, "at most"),
        Check("quantize: perplexity ratio", stats.ppl_ratio, "x", limits.ppl, "at most",
              f"{stats.ppl_reference:.3f} -> {stats.ppl:.3f}"),
        Check("quantize: top-1 flips", stats.flips, "of tokens", limits.flips, "at most"),
        Check("quantize: finite", float(math.isfinite(stats.ppl)), "", 1),
    ]
