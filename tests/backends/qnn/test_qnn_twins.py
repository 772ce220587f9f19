"""Device binary against x86 twin: equal where they must be, shared where it is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import qnn_small_graphs as small
from qnn_fixtures import Built, Compiler

from edgeforge.backends.qnn.binary import ContextBinary, TensorInfo
from edgeforge.backends.qnn.compiler import CompiledPart
from edgeforge.backends.qnn.placement import Placement, check_placement
from edgeforge.backends.qnn.twins import compare_twins


def placements(part: CompiledPart) -> dict[str, Placement]:
    return {g.name: check_placement(g.name, g.dump, g.trace) for g in part.graphs}


def names(part: CompiledPart) -> tuple[str, ...]:
    return tuple(g.name for g in part.graphs)


def test_tiny_twins_are_equal_and_share(built: Built) -> None:
    for device, twin in zip(built.device, built.twin, strict=True):
        report = compare_twins(device.info, twin.info, names(device), placements(device), placements(twin))
        assert report.equal, report.differences
        assert report.sharing is not None
        assert report.sharing.ratio < 1.05
        assert report.sharing.all_graphs > 1.9 * report.sharing.largest_graph
        assert report.sharing.device_file < report.sharing.twin_file


def test_graphs_with_different_weights_do_not_share(compiler: Compiler) -> None:
    models = small.conv(32, 512), small.conv(1, 512, seed=1)
    device, twin = (compiler("part", *models, sharing=s) for s in (True, False))
    report = compare_twins(device.info, twin.info, names(device))
    assert report.equal
    assert report.sharing is not None
    assert report.sharing.ratio > 1.9


def test_sharing_is_not_claimed_without_both_names_or_without_shared_bytes(built: Built) -> None:
    device, twin = built.device[1], built.twin[1]
    one_graph = replace(device.info, graphs=device.info.graphs[:1])
    report = compare_twins(one_graph, twin.info, names(device))
    assert report.sharing is None
    assert [d.where for d in report.differences] == ["binary"]
    assert compare_twins(twin.info, twin.info, names(twin)).sharing is None
    assert compare_twins(device.info, twin.info, ("a", "b")).sharing is None


def edited(info: ContextBinary, **change: object) -> ContextBinary:
    """The binary with one field of its first graph's first input changed."""
    graph = info.graphs[0]
    tensor: TensorInfo = replace(graph.inputs[0], **change)
    return replace(info, graphs=(replace(graph, inputs=(tensor, *graph.inputs[1:])), *info.graphs[1:]))


@pytest.mark.parametrize("change", [{"scale": 0.5}, {"offset": -1}, {"dims": (1, 1)}, {"dtype": "uint8"}])
def test_any_difference_of_a_tensor_is_found(built: Built, change: dict[str, object]) -> None:
    device, twin = built.device[1], built.twin[1]
    (found,) = compare_twins(edited(device.info, **change), twin.info, names(device)).differences
    graph = device.info.graphs[0]
    assert found.where == f"{graph.name}/{graph.inputs[0].name}"
    assert str(next(iter(change.values()))) in found.device


def test_differences_of_names_soc_and_ops_are_found(built: Built) -> None:
    device, twin = built.device[1], built.twin[1]
    renamed = compare_twins(edited(device.info, name="x"), twin.info, names(device)).differences
    assert [d.what for d in renamed] == ["names of inputs"]
    other = replace(device.info, soc_model=69, dsp_arch=79)
    assert [d.what for d in compare_twins(other, twin.info, names(device)).differences] == [
        "soc_model",
        "dsp_arch",
    ]
    ops = placements(twin)
    first = names(device)[0]
    ops[first] = replace(ops[first], ops={**ops[first].ops, "MatMul": 1})
    (found,) = compare_twins(device.info, twin.info, names(device), placements(device), ops).differences
    assert (found.where, found.what) == (first, "op counts")
    # A placement that is missing is a difference too, not a pass.
    assert not compare_twins(device.info, twin.info, names(device), {}, {}).equal
