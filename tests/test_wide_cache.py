"""A KV cache of 16 bits, from the recipe to Qualcomm's binary and Genie."""

from __future__ import annotations

import numpy as np
from builds import variant
from edgeforge_runtime.session import Session
from edgeforge_runtime.text import TextCodec
from tiny_build import Built

from edgeforge import gates, pipeline, recipe
from edgeforge.backends.qnn.binary import read_binaries
from edgeforge.backends.qnn.genie import genie_tokens
from edgeforge.encodings import FILE, Table


def test_a_cache_of_16_bits_reaches_the_accelerator_and_genie(built: Built) -> None:
    """Every product reads it in 16 bits: the gate on placement finds no operand that the compiler narrowed to 8."""
    path = variant(built, "wide cache", quantize={"kv": 16})
    bundle = pipeline.build(recipe.load(path), lambda event: None)
    wide = Built(bundle, built.cache, path, ())
    compiled = {c.name: c for c in gates.load(wide.artifact("compile"))}
    assert compiled["compile: decode steps through all parts, emulator against CPU"].value >= 40
    assert all(c.value == 0 for name, c in compiled.items() if name.endswith("off the accelerator"))
    caches = [t for b in read_binaries(sorted((bundle / "device").glob("*.bin"))) for g in b.graphs
              for t in (*g.inputs, *g.outputs) if t.name.startswith("past_")]
    assert len(caches) == 2 * 8
    assert {t.dtype for t in caches} == {"uint16"}
    narrow, wider = ({c.name: c.value for c in gates.load(b.artifact("quantize"))} for b in (built, wide))
    assert wider["quantize: KL"] < narrow["quantize: KL"]
    ids = TextCodec(bundle / "tokenizer").encode_chat([{"role": "user", "content": "Why is the sky blue?"}])
    with Session.open(bundle, "htp") as session:
        logits, ours = session.prompt(ids), []
        for _ in range(8):
            ours.append(int(logits.argmax()))
            logits = session.step(ours[-1])
    assert genie_tokens(bundle / "x86", ids, 8, 300) == ours
    table = Table.load(wide.artifact("quantize") / FILE)
    operands = {name: e for name, e in table.items() if name.endswith("/operand")}
    assert {(e.bits, e.signed, int(e.zero_point)) for e in operands.values()} == {(16, True, 0)}
    assert len(operands) == 4
    steps = sorted(float(table[f"past_{kind}_{i}_out"].scale) for kind in ("key", "value") for i in range(2))
    np.testing.assert_array_equal(sorted(float(e.scale) for e in operands.values()), steps)
