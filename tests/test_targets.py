"""Chips: what the table says is what a binary compiled for the chip says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import onnx
import pytest

from edgeforge import targets
from edgeforge.backends.qnn.compiler import GraphJob, PartJob, compile_part
from edgeforge.errors import RecipeError

sys.path.insert(0, str(Path(__file__).parent / "backends" / "qnn"))

NUMBERS = {chip.soc_model: chip for chip in targets.SNAPDRAGONS.values()}


def test_the_generations_differ_where_the_public_reports_say() -> None:
    for arch in (68, 69):
        old = targets.HEXAGON[arch]
        assert (4 in old.weight_bits, old.block_weights, old.sharing) == (False, False, False)
        assert old.kv_bits == (8,)
        assert old.graph_bytes == 2097152 << 10
    for arch in (73, 75, 79, 81):
        new = targets.HEXAGON[arch]
        assert (4 in new.weight_bits, new.block_weights, new.sharing) == (True, True, True)
        assert new.graph_bytes == 3670016 << 10


def test_chips_of_one_number_are_one_silicon() -> None:
    for chip in targets.SNAPDRAGONS.values():
        same = NUMBERS[chip.soc_model]
        assert (chip.part, chip.dsp_arch, chip.vtcm_mb) == (same.part, same.dsp_arch, same.vtcm_mb)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_binary_for_the_chip_has_its_architecture(number: int, tmp_path: Path) -> None:
    """A second a chip; the compiler falls back to v68 for a number that it does not know."""
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")
    from qnn_small_graphs import conv

    chip = NUMBERS[number]
    onnx.save(conv(32), tmp_path / "conv.onnx")
    job = PartJob("conv", (GraphJob("conv", tmp_path / "conv.onnx"),), number, tmp_path / "out",
                  weight_sharing=False, vtcm_mb=chip.vtcm_mb)
    info = compile_part(job, 120).info
    assert (info.soc_model, info.dsp_arch) == (number, chip.dsp_arch)
    assert info.graphs[0].vtcm_bytes == chip.vtcm_mb << 20


def test_every_gpu_has_a_capability_of_the_table() -> None:
    """NVIDIA's page of CUDA GPU compute capabilities, a name of each row; TensorRT for RTX crosses to no Jetson and no
    Hopper (tried: its ComputeCapability has SM75, 80, 86, 89, 120 and 121)."""
    wanted = {"geforce-rtx-2080-ti": 75, "a100": 80, "geforce-rtx-3090": 86, "a10": 86, "jetson-agx-orin": 87,
              "geforce-rtx-4090": 89, "l4": 89, "h100": 90, "jetson-agx-thor": 110, "geforce-rtx-5090": 120,
              "dgx-spark": 121}
    assert {name: targets.GPUS[name].sms for name in wanted} == {name: (sm,) for name, sm in wanted.items()}
    assert {sm for gpu in targets.GPUS.values() for sm in gpu.sms} == set(targets.CUDA)
    assert {gpu.name for gpu in targets.GPUS.values() if not gpu.cross} == {
        "h100", "jetson-orin-nano", "jetson-orin-nx", "jetson-agx-orin", "jetson-agx-thor"}
    assert {sm for sm, cuda in targets.CUDA.items() if not cuda.int4} == {75}
    assert {sm for sm, cuda in targets.CUDA.items() if not cuda.int8_alone} == {75}
    assert {sm for sm, cuda in targets.CUDA.items() if not cuda.fp8} == {75, 80, 86, 87}
    everywhere = targets.GPUS["rtx-any"]
    assert (everywhere.cross, everywhere.int4, everywhere.fp8) == (True, True, False)


@pytest.mark.parametrize("name", ["rtx 4090", "GeForce RTX 4090", "geforce_rtx_4090"])
def test_a_gpu_is_found_however_it_is_written(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        targets.chip(name)
    assert caught.value.hint == f"did you mean 'geforce-rtx-4090'? {targets.LISTED}"


@pytest.mark.parametrize("name", ["SNAPDRAGON-8-GEN-3", "Snapdragon 8 Gen 3", "snapdragon_8_gen_3", "snapdragon-8gen3"])
def test_a_chip_is_found_however_it_is_written(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        targets.chip(name)
    assert caught.value.hint == f"did you mean 'snapdragon-8-gen-3'? {targets.LISTED}"
