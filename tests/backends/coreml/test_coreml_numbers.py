"""What a package computes, against the float graph with the weights that it stores; prefill hands over to decode."""

from __future__ import annotations

from pathlib import Path

import coreml_tiny
import pytest
from tiny import FAMILIES


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_a_package_computes_what_the_graph_does(family: str, tmp_path: Path) -> None:
    emitted = coreml_tiny.emit(tmp_path, *coreml_tiny.graph(family))
    assert min(coreml_tiny.decibels(emitted, "float32")) > 100
    assert min(coreml_tiny.decibels(emitted, "float16")) > 45


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family: str, tmp_path: Path) -> None:
    emitted = coreml_tiny.emit(tmp_path, *coreml_tiny.graph(family))
    assert min(coreml_tiny.decibels(emitted, "float32")) > 100
    assert min(coreml_tiny.decibels(emitted, "float16")) > 45
