"""quantize: ranges -> encodings, printed as a QDQ model that is the reference for everything compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from edgeforge_runtime.manifest import Manifest
from edgeforge_runtime.session import Session

from edgeforge import artifact
from edgeforge.artifact import Grid
from edgeforge.build import Build
from edgeforge.calibrate import histogram
from edgeforge.encoding import Encoding
from edgeforge.encodings import FILE, Table
from edgeforge.errors import UnsupportedError
from edgeforge.evaluation import logits
from edgeforge.gates import Check, of_bits
from edgeforge.graph import store
from edgeforge.graph.untie import UntieEmbedding
from edgeforge.quantize import assign, clip, float16, floors, footprint, qdq, quality, sequential, weight_grids
from edgeforge.quantize.foreign import Given
from edgeforge.quantize.walk import Sample
from edgeforge.quantize.weights import palette_file
from edgeforge.quantize.weights.fit import Method
from edgeforge.quantize.weights.palette import Palette
from edgeforge.stages import foreign, mixed
from edgeforge.stages.calibrate import load_ranges
from edgeforge.stages.samples import samples as samples_of

_JUDGE_BY_TASK = (25.0, 35.0)
"""dB: between these, raw logit SQNR says little about text; read KL and perplexity"""

_FEW_BITS = 8
"""activations that lose as much as 4-bit weights do: the gates' limits are theirs"""
_MASK = "attention_mask"


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Writes table.json (and palettes.npz), float/, and the QDQ model, symbolic in width, with integer inputs and
    outputs where codes flow; precision.json when the recipe has a budget."""
    source = sources["transform"]
    model = store.load(source)
    options, codes = build.recipe.quantize, build.profile.flow == "codes"
    weight_grids.refuse_strangers(model.graph, options, build.recipe.where("quantize.exceptions"))
    if not codes and options.untied:
        UntieEmbedding()(model)
    samples = samples_of(source, sources["text"]) if "text" in sources else []
    bits = assign.Grids(options.weights, options.activations, options.kv, options.embedding)
    seen = _seen(build, model.graph, sources)
    given = foreign.given(build, model.graph, bits, {_MASK: seen.ranges[_MASK]}) if codes else Given(Table())

    def make(build: Build, folder: Path) -> tuple[list[Check], float]:
        artifact.carry(source, folder)
        checks = fit(build, model.clone(), samples, seen, bits, folder, given)
        _save_manifest(build, source, folder)
        found = _measure(build, folder, sources["adapt"] / artifact.REFERENCE)
        forms: dict[str, Encoding | Palette] = {**Table.load(folder / FILE), **palette_file.beside(folder)}
        few = footprint.four_bits(model.graph, forms) or options.activations == _FEW_BITS
        return checks + _gate(found, few), found.all.kl

    return mixed.run(build, model, samples, given.table, make, out)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What calibration saw. ranges, clipped: see `assign`. counted: see `float16.table`."""

    ranges: Mapping[str, assign.Range]
    clipped: Mapping[str, assign.Range] = dataclasses.field(default_factory=dict)
    counted: Mapping[str, histogram.Histogram] = dataclasses.field(default_factory=dict)


def _seen(build: Build, graph: ir.Graph, sources: Mapping[str, Path]) -> Seen:
    if "calibrate" not in sources:
        return Seen({})
    ranges, counted = load_ranges(sources["calibrate"]), histogram.load(sources["calibrate"])
    if build.profile.flow == "float16":
        return Seen(ranges, counted=counted)
    return Seen(_exact_inputs(build, ranges, sources["transform"]), clip.clipped(graph, counted, build.recipe.quantize))


def fit(build: Build, model: ir.Model, samples: Sequence[Sample], seen: Seen, bits: assign.Grids, out: Path,
        given: Given) -> list[Check]:
    """Fits all weights on samples; writes table.json, float/ and the QDQ model. given: grids that are settled."""
    options, flow = build.recipe.quantize, build.profile.flow
    decoder, held = build.recipe.decoder, given.table
    method = quality.method(options, decoder)
    chosen = weight_grids.choose(model.graph, options, decoder, held, flow)
    outside = weight_grids.outside(model.graph, options, held, flow)
    weights, unsearched = list[sequential.Weight](), ""
    try:
        weights = sequential.quantize(model, samples, chosen, method, build.say, held) if chosen else []
    except UnsupportedError as error:  # of an op on the way: the model is as it was
        unsearched = error.message
    unfitted = outside | {n: grid.bits for n, grid in chosen.items() if unsearched}
    fitted = dict(held) | {w.name: w.form for w in weights if isinstance(w.form, Encoding)}
    palettes = {w.name: w.form for w in weights if isinstance(w.form, Palette)}
    if flow == "codes":
        table = assign.assign(model.graph, seen.ranges, bits, fitted, seen.clipped, unfitted)
        table = floors.raised(model.graph, table, build.profile.least_multiplier)
    else:
        table = float16.table(model.graph, fitted, unfitted, seen.counted, options.fp8, options.embedding)
    table.save(out / FILE)
    (out / artifact.FLOAT).mkdir()
    store.save(model, out / artifact.FLOAT)
    if palettes:
        palette_file.save(out / palette_file.FILE, palettes)
    store.save(qdq.quantize(store.load(out / artifact.FLOAT), table, flow, palettes), out)
    stored = footprint.bits_per_weight(model.graph, {**table, **palettes}, half=flow == "float16")
    whole = weight_grids.left_whole(model.graph, options, decoder, held, flow)
    return [*foreign.checks(build, model.graph, given, table), *_weight_checks(weights, unsearched, outside),
            Check("quantize: stored", stored, "bits a weight"),
            *_palette_checks(options.palette, palettes),
            *_tuned_checks(weights, method), *(_read_checks(model.graph, table) if seen.counted else []),
            *_block_checks(options.block, table, [n for n, grid in chosen.items() if grid.block], whole)]


def _weight_checks(weights: list[sequential.Weight], unsearched: str, outside: Mapping[str, int]) -> list[Check]:
    """How far the worst weight's outputs are, and which weights no search fits; unsearched: why none does."""
    worst = max(weights, key=lambda w: w.loss, default=None)
    note = f"no search, each weight's largest value sets its scale: {unsearched}" if unsearched else ""
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


def _read_checks(graph: ir.Graph, table: Table) -> list[Check]:
    """How many products of 8-bit weights read codes too."""
    count, left = float16.readers(graph, table)
    return [Check("quantize: products of codes by codes", count, f"of {count + len(left)}",
                  note=f"float16 is read where 8 bits would drown what is usual: {', '.join(left)}" if left else "")]


def _block_checks(block: int | None, table: Table, wanted: Sequence[str], whole: Mapping[str, str]) -> list[Check]:
    """How many weights have blocks, and which were left per channel, and why; nothing when none were asked for."""
    if block is None:
        return []
    count = sum(table[name].block is not None for name in wanted)
    return [Check(f"quantize: weights in blocks of {block}", count, "weights", len(wanted)),
            Check("quantize: weights left per channel", len(whole), "weights",
                  note="; ".join(f"{name}: {why}" for name, why in whole.items()))]


def _palette_checks(wanted: int | None, palettes: Mapping[str, Palette]) -> list[Check]:
    """How many weights are entries of tables, and whose groups are smaller; nothing when none were asked for."""
    if wanted is None:
        return []
    smaller = [f"{name}: {p.group}" for name, p in palettes.items() if p.group != wanted]
    return [Check(f"quantize: weights with a table for {wanted} outputs", len(palettes), "weights", 1,
                  note=f"smaller groups: {', '.join(smaller)}" if smaller else "")]


def grids(table: Table, names: list[str]) -> dict[str, Grid]:
    """dtype, scale and zero point of boundary tensors."""
    return {n: (table[n].dtype, float(table[n].scale), int(table[n].zero_point)) for n in names}


def _exact_inputs(build: Build, ranges: dict[str, tuple[float, float]], source: Path) -> dict[str, assign.Range]:
    """The mask's grid ends exactly at `masked` and 0 (code 65535 = attend, as Genie writes it)."""
    masked = artifact.load_decoder(source).masked if build.recipe.decoder else build.profile.masked
    return ranges | {_MASK: (masked, 0.0)}


def _save_manifest(build: Build, source: Path, out: Path) -> None:
    decoder, table = artifact.load_decoder(source), Table.load(out / FILE)
    names = [*decoder.input_names()[1:], *decoder.output_names()]
    edges = grids(table, names) if build.profile.flow == "codes" else None
    target = artifact.whole(decoder, build.widths, build.context, edges)
    dataclasses.replace(Manifest.load(source), targets={"cpu": target}).save(out)


def _measure(build: Build, out: Path, reference: Path) -> logits.Measured:
    build.say("measuring the quantized model")
    with Session.open(out, threads=build.threads, exact=True) as session:
        return logits.measure(session, reference)


def _gate(found: logits.Measured, four: bool) -> list[Check]:
    stats = found.all
    note = ""
    if _JUDGE_BY_TASK[0] < stats.sqnr < _JUDGE_BY_TASK[1]:
        note = "judge by task: KL and perplexity say more than dB here"
    return [
        Check("quantize: logits", stats.sqnr, "dB", note=note, gate=of_bits("quantize_db", four)),
        Check("quantize: logits, mean-centred", stats.centred_sqnr, "dB", gate=of_bits("quantize_centred_db", four)),
        Check("quantize: decode logits", found.decode.sqnr, "dB"),
        Check("quantize: worst token", stats.worst_token_sqnr, "dB", note=f"row {stats.worst_token}"),
        Check("quantize: KL", stats.kl, "nats", sense="at most", gate=of_bits("quantize_kl", four)),
        Check("quantize: perplexity ratio", stats.ppl_ratio, "x", sense="at most",
              note=f"{stats.ppl_reference:.3f} -> {stats.ppl:.3f}", gate=of_bits("quantize_ppl", four)),
        Check("quantize: top-1 flips", stats.flips, "of tokens", sense="at most", gate=of_bits("quantize_flips", four)),
        Check("quantize: finite", float(math.isfinite(stats.ppl)), "", 1),
    ]
