"""transform: exact rewrites of parameters that make values easier to quantize. Still float, same function."""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from edgeforge_runtime.manifest import Manifest

from edgeforge import artifact, gates
from edgeforge.adapt.shape import Decoder
from edgeforge.build import Build
from edgeforge.calibrate.observe import TappedExecutor
from edgeforge.calibrate.statistics import Direction, Peaks
from edgeforge.errors import UnsupportedError
from edgeforge.gates import Check
from edgeforge.graph import store
from edgeforge.graph.operand import RequantizeOperands
from edgeforge.graph.requantize import JoinCaches, RequantizeEmbedding
from edgeforge.quantize import equalize, outliers, rotate, scale_channels, weight_grids
from edgeforge.quantize.walk import Sample
from edgeforge.stages import adapt, reading
from edgeforge.stages.samples import samples as samples_of

_WIDE = 16
"""bits of a cache that a product cannot read as it is, where second operands have to be signed"""


def run(build: Build, sources: dict[str, Path], out: Path) -> list[Check]:
    """Applies the recipe's quantize.transforms, after one look at the float model on calibration text."""
    source = sources["optimize"]
    artifact.carry(source, out)
    Manifest.load(source).save(out)
    options = build.recipe.quantize
    model, decoder = store.load(source), artifact.load_decoder(source)
    checks: list[Check] = []
    if options.transforms:
        seen = _Seen(model.graph, decoder, options.transforms)
        seen.look(build, source, sources["text"], out)
        build.say(", ".join(options.transforms))
        checks = _apply(model, decoder, options.transforms, seen)
    if "scale_channels" in options.transforms:
        checks += _scale(build, model, decoder, samples_of(source, sources["text"]))
    if build.profile.flow == "codes" and options.embedding != options.activations:
        RequantizeEmbedding()(model)
    if options.kv == _WIDE and build.profile.signed_operands:
        JoinCaches()(model)
        RequantizeOperands()(model)
    store.save(model, out)
    found = adapt.gate(build, out, sources["adapt"] / artifact.REFERENCE, "transform", "transform_db")
    return checks + _against(found, gates.load(source))


def _against(found: Sequence[Check], before: Sequence[Check]) -> list[Check]:
    """What was there before the transforms, said beside what they left: not every loss is theirs."""
    had = {c.name.partition(": ")[2]: c.value for c in before}
    return [dataclasses.replace(c, note="; ".join(filter(None, (c.note, f"{had[name]:.1f} dB before"))))
            if (name := c.name.partition(": ")[2]) in had else c for c in found]


class _Seen:
    """What the transforms want to know: peaks of caches and MLP products, and the stream's direction."""

    def __init__(self, graph: ir.Graph, decoder: Decoder, wanted: Sequence[str]) -> None:
        kept: dict[str, tuple[int, ...]] = {}
        if "equalize_kv" in wanted:
            kept |= equalize.watched(graph, decoder)
        if "split_outliers" in wanted:
            kept |= outliers.watched(graph)
        self._kept = kept
        self._peaks, self._gram = Peaks(kept), Direction()
        self._stream: list[str] = []
        self.unrotated = ""
        """why the stream cannot be rotated"""
        if "rotate" in wanted:
            try:
                self._stream = rotate.watched(graph)
            except UnsupportedError as error:
                self.unrotated = error.message

    @property
    def peaks(self) -> dict[str, npt.NDArray[np.float32]]:
        return self._peaks.seen

    @property
    def direction(self) -> npt.NDArray[np.float64]:
        return self._gram.principal()

    def look(self, build: Build, source: Path, text: Path, out: Path) -> None:
        """Reads the calibration text, if anything is wanted from it."""
        taps = [*self._kept, *self._stream]
        if not taps:
            return
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            executor = TappedExecutor(store.load(source), taps, self._see, Path(scratch), build.threads)
            reading.read(build, source, reading.windows(text), executor)

    def _see(self, name: str, array: npt.NDArray[np.float32]) -> None:
        if name in self._kept:
            self._peaks.see(name, array)
        else:
            self._gram.see(array)


def _apply(model: ir.Model, decoder: Decoder, wanted: Sequence[str], seen: _Seen) -> list[Check]:
    checks = []
    if "rotate" in wanted:
        width, why = (0, seen.unrotated) if seen.unrotated else _rotate(model, seen)
        checks.append(Check("transform: rotated", width, "channels", note=_skip(why)))
    if "equalize_kv" in wanted:
        left = equalize.equalize(model, decoder, seen.peaks)
        note = _skip("; ".join(sorted({s.reason for s in left})))
        checks.append(Check("transform: caches equalised", 2 * decoder.layers - len(left), "caches", note=note))
    if "split_outliers" in wanted:
        split = outliers.split(model, seen.peaks)
        checks.append(Check("transform: outlier channels split", len(split), "MLPs", note=", ".join(split)))
    return checks


def _rotate(model: ir.Model, seen: _Seen) -> tuple[int, str]:
    """The stream's width; 0, and why, when a parameter has other readers: nothing is changed then."""
    try:
        return rotate.rotate(model, seen.direction), ""
    except UnsupportedError as error:
        return 0, error.message


def _scale(build: Build, model: ir.Model, decoder: Decoder, samples: Sequence[Sample]) -> list[Check]:
    """Equivalent scaling, after all others: it looks at what they made."""
    name, options = "transform: channels scaled", build.recipe.quantize
    # A budget's recipe and the explicit one that it writes have to transform alike: single weights' bits don't count.
    # They would hardly matter, for all errors of rounding grow alike with the step.
    grids = weight_grids.choose(model.graph, options.model_copy(update={"exceptions": {}}), decoder=True,
                                flow=build.profile.flow)
    values = "equalize_kv" not in options.transforms
    try:
        scaled, left = scale_channels.scale(model, decoder, samples, grids, values, build.say)
    except UnsupportedError as error:  # of an op on the way: nothing is changed yet
        return [Check(name, 0, "groups", note=_skip(error.message))]
    return [Check(name, len(scaled), "groups", note="; ".join([*_won(scaled), *_left(left)]))]


def _won(scaled: Sequence[scale_channels.Scaled]) -> list[str]:
    """What the scaled groups gain at the weights, in the mean, and lose at the activations, at most."""
    if not scaled:
        return []
    gains = [10 * math.log10(s.scaling.plain / max(s.scaling.loss, 1e-30)) for s in scaled]
    noise = 20 * math.log10(max(s.scaling.noise for s in scaled))
    return [f"rounding of their weights loses {sum(gains) / len(gains):.2f} dB less in the mean, that of what they "
            f"read at most {noise:+.1f} dB more"]


def _left(groups: Sequence[scale_channels.Skipped]) -> list[str]:
    """The groups that cannot be scaled, layers together as `quantize.exceptions` would spell them."""
    found = Counter((re.sub(r"\.\d+\.", ".*.", group.weight), group.reason) for group in groups)
    return [f"skipped: {name} ({count}): {reason}" for (name, reason), count in found.items()]


def _skip(reason: str) -> str:
    return f"skipped: {reason}" if reason else ""
