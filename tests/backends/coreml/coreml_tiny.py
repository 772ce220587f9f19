"""Tiny decoders under the profile `ane`: as a package through the interpreter, and as the float graph with the weights
that the package stores, both through the runtime's session (left-padded prefill, then steps over its cache)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import tiny
import torch
from edgeforge_runtime import manifest as m
from edgeforge_runtime.session import Session

from edgeforge.backends.coreml import chain, decoder, parity, target
from edgeforge.backends.coreml.interpret.program import Function, load
from edgeforge.backends.coreml.interpret.run import Rounding
from edgeforge.backends.coreml.package import WEIGHTS
from edgeforge.backends.coreml.sharing import Sharing
from edgeforge.backends.coreml.simulator import SimulatorExecutor
from edgeforge.encodings import Encoding, Table
from edgeforge.graph import edit
from edgeforge.graph.optimize import optimize
from edgeforge.metrics import sqnr_db
from edgeforge.quantize import clip, roles
from edgeforge.quantize.products import products
from edgeforge.quantize.weights import palette
from edgeforge.quantize.weights.gram import Gram
from edgeforge.quantize.weights.grid import per_channel
from edgeforge.quantize.weights.palette import Palette
from edgeforge.targets import ANE

Floats = npt.NDArray[np.float32]
PROMPT, STEPS = 20, 8
"""two chunks of 8 and a ragged one of 4, left-padded; then one by one"""
WIDTHS = target.widths(tiny.WIDTH)
WHOLE = decoder.Wanted()
"""one package, the cache handed in and out"""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A package, the graph and table that it was made of, and a folder with the same float graph for the CPU."""

    package: Path
    sharing: Sharing
    model: ir.Model
    made: tiny.Adapted
    table: Table
    palettes: Mapping[str, Palette]
    reference: Path


@functools.cache
def graph(family: str, **changes: Any) -> tuple[tiny.Adapted, ir.Model]:
    """The optimised graph, as the emitter is given it; made once, and to be cloned before it is changed."""
    made = tiny.adapt(tiny.model(family, **changes), ANE)
    return made, optimize(made.model, ANE)


def table(model: ir.Model, bits: int) -> Table:
    """One float16 step a channel for every product's weight."""
    entries = {name: per_channel(_array(value), axis, bits, half=True)
               for name, value in roles.weights(model.graph).items() if (axis := roles.weight_axis(value)) is not None}
    return Table(entries)


def rows(model: ir.Model) -> Table:
    """One float16 step a row of an embedding that nothing else reads."""
    return Table({str(v.name): per_channel(_array(v), 0, 8, half=True) for v in clip.tables(model.graph)
                  if len(list(v.uses())) == 1})


def palettes(model: ir.Model, bits: int, group: int) -> dict[str, Palette]:
    """Tables for every product's weight, fitted to text of which nothing is known."""
    found = {}
    for product in products(model.graph):
        weight = _array(product.weight)
        flat = torch.from_numpy(weight.reshape(len(weight), -1).T.copy())
        found[product.name] = palette.fit(flat, Gram(torch.eye(len(flat))), bits, group)
    return found


def emit(folder: Path, made: tiny.Adapted, model: ir.Model, table: Table | None = None,
         palettes: Mapping[str, Palette] | None = None, wanted: decoder.Wanted = WHOLE) -> Emitted:
    """The package of model, beside the float graph with the weights that it stores."""
    table, palettes = table or Table(), palettes or {}
    stored = parity.stored(model.clone(), {**table, **palettes})
    reference = tiny.write(folder / "reference", made, stored)
    path = folder / "tiny.mlpackage"
    packages = decoder.write(model.clone(), table, palettes, WIDTHS, tiny.CONTEXT, path, wanted)
    chain.save(folder, packages)
    return Emitted(path, packages[0].sharing, model, made, table, palettes, reference)


def simulated(emitted: Emitted, rounding: Rounding) -> Session:
    """A session over the package."""
    manifest = m.Manifest.load(emitted.reference)
    folder = emitted.package.parent
    own = chain.target(chain.load(folder), "", WIDTHS, tiny.CONTEXT, "float32")
    return Session(manifest, own, SimulatorExecutor.of(own, folder, rounding), emitted.made.tables)


def conversation(session: Session) -> Floats:
    """Logits after the prompt and after each further token."""
    return parity.conversation(session, [int(t) for t in tiny.ids(PROMPT + STEPS)], PROMPT)


def decibels(emitted: Emitted, rounding: Rounding) -> tuple[float, float]:
    """SQNR of the prompt's logits, and of those after the steps, against the float graph."""
    expected = conversation(Session.open(emitted.reference, threads=1, exact=True))
    made = conversation(simulated(emitted, rounding))
    return sqnr_db(expected[0], made[0]), sqnr_db(expected[1:], made[1:])


def _array(value: ir.Value) -> Floats:
    array = edit.constant(value)
    assert array is not None
    return array.astype(np.float32)


def program(emitted: Emitted) -> dict[str, Function]:
    """What the package holds."""
    return load(emitted.package)


def file(emitted: Emitted) -> Path:
    """Its weights."""
    return emitted.package / WEIGHTS


def doubled(encoding: Encoding) -> Encoding:
    """With steps twice as long."""
    return dataclasses.replace(encoding, scale=encoding.scale * 2)
