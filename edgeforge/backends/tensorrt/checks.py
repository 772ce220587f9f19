"""What can be asserted of an engine that nobody has run: structure, from the builder's own account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgeforge_runtime.manifest import past_layer

from edgeforge.backends.tensorrt.emit import Emitted
from edgeforge.backends.tensorrt.engine import Engine
from edgeforge.backends.tensorrt.job import Shape
from edgeforge.backends.tensorrt.layers import CODES, Dump
from edgeforge.errors import CompilerError
from edgeforge.gates import Check

_NAMED = 3
_LEAST_COUNTED = 0.95
"""below, the builder's account is not understood, or weights are gone"""


def structure(engine: Engine, emitted: Emitted, profiles: Sequence[Mapping[str, Shape]]) -> Iterator[Check]:
    """Figures of one engine against the model that it was built from; what falls short stops the build."""
    yield from _file(engine)
    ratio = engine.weights_bytes / emitted.weight_bytes
    yield Check("compile: weights of both profiles over the model's", ratio, "x", sense="at most", gate="shared_bytes",
                note=f"{engine.weights_bytes:,} of {emitted.weight_bytes:,} bytes")
    if engine.header is None:
        yield Check("compile: layers", 0, "layers", note="only TensorRT-RTX's account of an engine is read")
        return
    yield Check("compile: the model's weights that the builder counted", ratio, "x", _LEAST_COUNTED)
    try:
        dump = engine.dump()
    except CompilerError as error:
        yield Check("compile: layers", 0, "layers", 1, note=error.message)
        return
    unlike = [name for name in profiles[0] if dump.inputs.get(name) != tuple(p[name] for p in profiles)]
    if len(engine.compute) > 1:
        oldest, *rest = sorted(engine.compute, key=lambda name: int(name.removeprefix("SM")))
        yield Check("compile: GPUs whose layers the builder names", 1, f"of {len(engine.compute)}",
                    note=f"{oldest}; nothing is said of {', '.join(rest)}")
    yield _none("compile: inputs whose shapes are not as asked", unlike, "inputs")
    for number, shapes in enumerate(profiles):
        width = shapes["input_ids"][-1]
        yield from _profile(dump, emitted, number, f"compile: AR-{width}")


def _file(engine: Engine) -> Iterator[Check]:
    if engine.header is not None:
        wrong = sorted(set(engine.header.compute) ^ set(engine.compute))
        yield _none("compile: GPUs that the engine is for and should not, or the reverse", wrong, "GPUs")
    note = ", ".join(f"{name} {version}" for name, version in engine.versions.items())
    yield Check("compile: engine", engine.path.stat().st_size / 2**20, "MiB",
                note=f"{note}, {', '.join(engine.compute) or 'the GPU here'}")
    yield Check("compile: builder", engine.seconds, "s")
    yield Check("compile: activations", max(engine.activation_bytes, default=0) / 2**20, "MiB",
                note="of the larger profile, on the GPU")


def _profile(dump: Dump, emitted: Emitted, number: int, where: str) -> Iterator[Check]:
    layers = list(dump.of(number))
    for word, dtype in CODES.items():
        asked, found = emitted.codes(dtype), dump.constants(number, word)
        if asked or found:
            yield Check(f"{where}: {word.lower()} weights that stayed so", found, "codes", asked,
                        note="" if found == asked else f"{asked:,} were given")
    yield _none(f"{where}: weights unpacked before their product", [x.name for x in layers if x.unpacks], "layers")
    copied = [t.name for x in layers for t in x.inputs if past_layer(t.name)]
    yield _none(f"{where}: caches copied", copied, "caches")
    fused = sum(x.is_attention for x in layers)
    yield Check(f"{where}: attention kernels", fused, f"of {emitted.attentions}", emitted.attentions)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(dump.kinds(number).items()))
    yield Check(f"{where}: layers", len(layers), "layers", note=kinds)


def _none(name: str, found: Sequence[str], unit: str) -> Check:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return Check(name, len(found), unit, 0, "at most", ", ".join(found[:_NAMED]) + more)
