"""What a package computes, against the float graph with the weights that it stores; prefill hands over to decode."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import coreml_tiny
import numpy as np
import pytest
from coreml_tiny import Emitted
from made_grids import per_block
from tiny import FAMILIES

from edgeforge.backends.coreml import decoder
from edgeforge.backends.coreml.interpret.program import Stored
from edgeforge.backends.coreml.lint import lint
from edgeforge.encodings import Encoding, Table
from edgeforge.graph import edit
from edgeforge.quantize import roles
from edgeforge.quantize.products import products

EXACT, ROUNDED = 100, 45
"""dB of logits: float32, and every op's outputs rounded to float16"""


def _computes(emitted: Emitted) -> None:
    assert min(coreml_tiny.decibels(emitted, "float32")) > EXACT
    assert min(coreml_tiny.decibels(emitted, "float16")) > ROUNDED


def _half(entry: Encoding) -> Encoding:
    """The grid with steps that Core ML can hold."""
    return dataclasses.replace(entry, scale=entry.scale.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_a_package_computes_what_the_graph_does(family: str, tmp_path: Path) -> None:
    _computes(coreml_tiny.emit(tmp_path, *coreml_tiny.graph(family)))


@pytest.mark.parametrize("bits", [4, 8])
def test_one_step_a_channel(bits: int, tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("qwen3")
    emitted = coreml_tiny.emit(tmp_path, made, model, coreml_tiny.table(model, bits))
    _computes(emitted)


@pytest.mark.parametrize("bits", [4, 6])
def test_tables_of_groups(bits: int, tmp_path: Path) -> None:
    made, model = coreml_tiny.graph("qwen3")
    emitted = coreml_tiny.emit(tmp_path, made, model, palettes=coreml_tiny.palettes(model, bits, 4))
    _computes(emitted)


def test_blocks_of_inputs(tmp_path: Path) -> None:
    """What the GPU of a Mac takes, with the same graph; each block's step is stored as it is."""
    made, model = coreml_tiny.graph("llama")
    steps = {n: _half(per_block(edit.constant(v), 1, 16)) for n, v in roles.weights(model.graph).items() if "mlp" in n}
    emitted = coreml_tiny.emit(tmp_path, made, model, Table(steps))
    _computes(emitted)
    said = lint(coreml_tiny.program(emitted))
    assert len(said) == 2 * len(steps)
    assert all("blocks of inputs" in s for s in said), "the Neural Engine does not take them"


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_products_of_codes_by_codes(family: str, tmp_path: Path) -> None:
    """W8A8: every product reads int8, the head's last token too; float16 flips single codes."""
    made, model = coreml_tiny.graph(family)
    grid = Encoding(8, True, np.array(2.0**-4, np.float32), np.array(0))
    read = {str(p.source.name): grid for p in products(model.graph)}
    emitted = coreml_tiny.emit(tmp_path, made, model, Table({**coreml_tiny.table(model, 8), **read}))
    assert min(coreml_tiny.decibels(emitted, "float32")) > EXACT
    for function in coreml_tiny.program(emitted).values():
        count = Counter(op.type for op in function.ops)
        assert count["quantize"] == count["dequantize"] == len(read)
        assert not [op for op in function.ops if op.type == "quantize" and op.outputs[0].type != "INT8"]
    assert lint(coreml_tiny.program(emitted)) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"llama", "qwen3", "gemma2"}))
def test_every_family(family: str, tmp_path: Path) -> None:
    _computes(coreml_tiny.emit(tmp_path, *coreml_tiny.graph(family)))


def test_a_head_in_pieces_says_what_the_whole_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 outputs a product its 160 words are two; Gemma's cap on the logits follows in each."""
    monkeypatch.setattr(decoder, "MOST_OUTPUTS", 100)
    emitted = coreml_tiny.emit(tmp_path, *coreml_tiny.graph("gemma2"))
    _computes(emitted)
    outputs = coreml_tiny.program(emitted)["decode"].outputs
    assert outputs[:2] == ("logits_0", "logits_1")


def test_a_wrong_weight_is_heard(tmp_path: Path) -> None:
    """The measure can fail: a package of other weights is far from the graph."""
    made, model = coreml_tiny.graph("llama")
    emitted = coreml_tiny.emit(tmp_path, made, model)
    op = next(o for o in coreml_tiny.program(emitted)["decode"].ops if o.name == "model_layers_0_mlp_down_proj_weight")
    stored = op.arguments["val"][0]
    assert isinstance(stored, Stored)
    raw = np.fromfile(coreml_tiny.file(emitted), np.uint8)
    raw[stored.offset + 64 : stored.offset + 64 + 256] = 0
    raw.tofile(coreml_tiny.file(emitted))
    assert min(coreml_tiny.decibels(emitted, "float32")) < 40

