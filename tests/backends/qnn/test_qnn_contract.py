"""Genie's part rules, on real binaries and on edited ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from qnn_fixtures import Built

from edgeforge.backends.qnn.binary import ContextBinary, GraphInfo, TensorInfo
from edgeforge.backends.qnn.contract import contract_breaches


def edit(
    parts: list[ContextBinary], change: Callable[[GraphInfo, TensorInfo], TensorInfo]
) -> list[ContextBinary]:
    def graph(g: GraphInfo) -> GraphInfo:
        return replace(
            g, inputs=tuple(change(g, t) for t in g.inputs), outputs=tuple(change(g, t) for t in g.outputs)
        )

    return [replace(p, graphs=tuple(map(graph, p.graphs))) for p in parts]


@pytest.fixture
def parts(built: Built) -> list[ContextBinary]:
    return [p.info for p in built.device]


def test_the_tiny_model_keeps_the_contract(parts: list[ContextBinary]) -> None:
    assert contract_breaches(parts) == []
    assert contract_breaches(parts[::-1]) == []  # names decide the order, not files


def test_no_parts_is_a_breach() -> None:
    assert contract_breaches([])


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("hidden_0", {"name": "other"}, "no earlier part"),
        ("hidden_0", {"scale": 0.5}, "its maker gives"),
        ("attention_mask", {"offset": -32768}, "zero point must be 65535"),
        ("attention_mask", {"name": "mask"}, "no part takes attention_mask"),
        ("input_ids", {"dims": (1, 7)}, "must be int32"),
        ("position_ids_cos", {"name": "cos"}, "no earlier part"),
        ("position_ids_cos", {"name": "swa_position_ids_cos", "dims": (1, 1, 7, 8)}, "must be (1, 1,"),
        ("past_key_0_in", {"scale": 0.5}, "its encoding differs"),
        ("past_value_1_in", {"dims": (2, 1, 16, 16)}, "must hold CL-AR"),
        ("logits", {"dims": (1, 1, 7, 256)}, "must have all"),
        ("logits", {"name": "scores"}, "must make logits"),
    ],
)
def test_each_rule_can_be_broken(
    parts: list[ContextBinary], name: str, change: dict[str, object], rule: str
) -> None:
    # Boundary tensors are changed where they are taken; the maker keeps the original.
    def one(graph: GraphInfo, tensor: TensorInfo) -> TensorInfo:
        maker = tensor in graph.outputs and name.startswith("hidden")
        return replace(tensor, **change) if tensor.name == name and not maker else tensor

    found = contract_breaches(edit(parts, one))
    assert any(rule in b.rule for b in found), found


def test_names_without_width_and_out_of_order(parts: list[ContextBinary]) -> None:
    def renamed(rename: Callable[[str], str]) -> list[ContextBinary]:
        return [replace(p, graphs=tuple(replace(g, name=rename(g.name)) for g in p.graphs)) for p in parts]

    found = contract_breaches(renamed(lambda n: n.replace("_ar", "_").replace("_cl", "_")))
    assert all("ar<AR>_cl<CL>" in b.rule for b in found)
    assert len(found) == 6
    swapped = contract_breaches(renamed(lambda n: n.replace("_1_of", "_4_of")))
    assert any("must take input_ids" in b.rule for b in swapped)


def test_a_width_that_lacks_a_part(parts: list[ContextBinary]) -> None:
    short = [parts[0], parts[1], replace(parts[2], graphs=parts[2].graphs[:1])]
    assert any("every width needs the same parts" in b.rule for b in contract_breaches(short))
