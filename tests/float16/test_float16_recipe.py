"""What a recipe may ask of a GPU, whose values flow as float16: its defaults, and what is refused where."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeforge import check, recipe, show, targets
from edgeforge.errors import RecipeError
from edgeforge.stages.plan import plan

GPU, PHONE = "geforce-rtx-4090", "snapdragon-8-gen-3"


def _recipe(folder: Path, chip: str, *lines: str, model: str = "m") -> recipe.Recipe:
    (folder / "m").mkdir(exist_ok=True)
    path = folder / "r.yaml"
    path.write_text("\n".join([f"model: {model}", "out: out", f"target: {{chip: {chip}}}", *lines]) + "\n",
                    encoding="utf-8")
    return recipe.load(path)


def _said(made: recipe.Recipe) -> list[tuple[str, str, str]]:
    return [(f.where, f.what, f.change) for f in check.examine(made).findings if f.severity == "recipe"
            and f.where.startswith(str(made.file))]


@pytest.mark.parametrize(("chip", "key", "what", "change"), [
    (PHONE, "activations: 8", "8 bits, and snapdragon-8-gen-3 computes on integer codes of 16 bits",
     "set quantize.activations to 16"),
    (PHONE, "block: 128", "blocks of 128, and snapdragon-8-gen-3 takes 16, 32 or 64", "set quantize.block to 64"),
    (PHONE, "eight_bits: fp8", "fp8, and snapdragon-8-gen-3 computes on integer codes of 16 bits",
     "leave quantize.eight_bits out"),
    ("apple-a18", "eight_bits: fp8", "fp8, and apple-a18 computes on float16", "leave quantize.eight_bits out"),
    (GPU, "transforms: [rotate, equalize_kv]", "equalize_kv fills a cache's grid, and on geforce-rtx-4090 the cache is "
     "float16, which has none", "leave equalize_kv out"),
])
def test_what_a_chip_does_not_compute_with_is_refused_by_line(tmp_path: Path, chip: str, key: str, what: str,
                                                             change: str) -> None:
    made = _recipe(tmp_path, chip, "quantize:", "  weights: 4", f"  {key}")
    name = key.partition(":")[0]
    assert _said(made) == [(f"{tmp_path}/r.yaml:6: quantize.{name}", what, change)]
    assert check.examine(made).exit_code == 2


def test_integer_products_take_8_bits_by_8_bits(tmp_path: Path) -> None:
    """W4A8 is unpacked to int8 before the product (facts of TensorRT), and 16-bit weights read no codes."""
    four = _recipe(tmp_path, GPU, "quantize:", "  activations: 8", "  weights: 4", "  exceptions: {x: 4}")
    assert [where.rpartition(" ")[2] for where, _, _ in _said(four)] == ["quantize.weights", "quantize.exceptions"]
    wide = _recipe(tmp_path, GPU, "quantize:", "  activations: 8", "  weights: 16")
    assert [what for _, what, _ in _said(wide)] == ["8 bits beside weights of 16: nothing would read them"]
    assert not _said(_recipe(tmp_path, GPU, "quantize: {activations: 8}"))


@pytest.mark.parametrize(("lines", "what"), [
    ("weights: 4, head: 4", "no weight has 8 bits"), ("weights: 16", "no weight has 8 bits"),
    ("reconstruct: true", "reconstruct moves codes that are whole numbers"),
    ("weights: 4, budget: {bits_per_weight: 5}", "budget weighs 4 bits against int8")])
def test_fp8_is_refused_where_nothing_would_be_it(tmp_path: Path, lines: str, what: str) -> None:
    with pytest.raises(RecipeError, match=rf"r.yaml:4: quantize: .*{what}"):
        _recipe(tmp_path, GPU, f"quantize: {{{lines}, eight_bits: fp8}}")
    _recipe(tmp_path, GPU, "quantize: {weights: 4, block: 64, eight_bits: fp8}")


def test_fp8_on_an_older_gpu_is_told_before_any_work(tmp_path: Path) -> None:
    made = _recipe(tmp_path, "geforce-rtx-3090", "quantize:", "  activations: 8", "  eight_bits: fp8")
    assert _said(made) == [(f"{tmp_path}/r.yaml:6: quantize.eight_bits", "fp8, and geforce-rtx-3090 (8.6) has no "
                            "products of it before compute capability 8.9",
                            "set quantize.eight_bits to int8, or take a GPU from Ada (8.9) on")]
    assert check.examine(made).exit_code == 2


def test_the_gate_of_codes_is_for_those_who_read_them(tmp_path: Path) -> None:
    assert _recipe(tmp_path, GPU, "gates: {emitted_codes_db: 25}").limits["emitted_codes_db"] == 25
    for chip in ("apple-m4-gpu", PHONE):
        with pytest.raises(RecipeError, match=r"r.yaml:4: gates.emitted_codes_db: only where "):
            _recipe(tmp_path, chip, "gates: {emitted_codes_db: 25}")


def test_blocks_of_another_size_are_refused_with_those_there_are(tmp_path: Path) -> None:
    for chip in (GPU, PHONE):
        with pytest.raises(RecipeError, match=r"r.yaml:4: quantize.block: .*128"):
            _recipe(tmp_path, chip, "quantize: {weights: 4, block: 256}")
    for block in (16, 32, 64, 128):
        assert not _said(_recipe(tmp_path, GPU, f"quantize: {{weights: 4, block: {block}}}"))


@pytest.mark.parametrize("line", ["quantize: {kv: 8}", "quantize: {ranges: mse}",
                                  "split: {part_bytes: 100000}", "gates: {sha_db: 50}", "gates: {emulator_db: 50}"])
def test_keys_of_codes_are_refused_where_float16_flows(tmp_path: Path, line: str) -> None:
    section, _, rest = line.partition(": {")
    key = f"{section}.{rest.partition(':')[0]}"
    with pytest.raises(RecipeError) as caught:
        _recipe(tmp_path, GPU, line)
    assert caught.value.message == (f"{tmp_path}/r.yaml:4: {key}: only where integer codes flow, and geforce-rtx-4090 "
                                    "computes in float16")
    _recipe(tmp_path, PHONE, line)
    with pytest.raises(RecipeError, match=r"r.yaml:4: gates.emitted_db: only where float16 flows, and snapdragon"):
        _recipe(tmp_path, PHONE, "gates: {emitted_db: 40}")


def test_an_embedding_of_8_bits_is_for_chips_that_read_one(tmp_path: Path) -> None:
    for chip in ("apple-a18", "apple-m4-gpu", PHONE):
        assert _recipe(tmp_path, chip, "quantize: {embedding: 8}").quantize.embedding == 8
    with pytest.raises(RecipeError, match=r"r.yaml:4: quantize.embedding: only where the table may have 8 bits, and on "
                       "geforce-rtx-4090 it is float16"):
        _recipe(tmp_path, GPU, "quantize: {embedding: 8}")


def test_defaults_follow_the_chip_and_stay_what_is_said(tmp_path: Path) -> None:
    def of(chip: str, *lines: str) -> tuple[object, ...]:
        found = _recipe(tmp_path, chip, *lines).quantize
        return found.transforms, found.head

    assert of(PHONE) == of(PHONE, "quantize: {weights: 4}") == (("rotate", "equalize_kv", "split_outliers"), 8)
    assert of(GPU) == of(GPU, "quantize: {weights: 4, block: 128}") == (("rotate",), 8)
    assert of(GPU, "quantize: {activations: 8}") == (("rotate", "split_outliers"), 8)
    assert of(GPU, "quantize: {activations: 8, eight_bits: fp8}") == (("rotate",), 8), "floats reach outliers"
    assert of(GPU, "quantize: {weights: 16}") == ((), 16)
    assert of(GPU, "quantize: {weights: 16, head: 8}") == (("rotate",), 8)
    assert of(GPU, "quantize: {weights: 16, transforms: [rotate], head: 4}") == (("rotate",), 4)
    assert of(PHONE, "quantize: {weights: 16}")[1] == 8


def test_what_is_shown_reads_back_without_the_silent_keys(tmp_path: Path) -> None:
    made = _recipe(tmp_path, GPU, "quantize: {weights: 4, block: 64}")
    text = show.as_yaml(made)
    path = tmp_path / "shown.yaml"
    path.write_text(text, encoding="utf-8")
    assert recipe.load(path) == made
    assert "  # kv:\n" in text
    assert "\n# split:\n" in text
    assert ("quantize", "kv") in made.silent


def test_the_stages_are_those_that_the_numbers_need(tmp_path: Path) -> None:
    def names(line: str) -> list[str]:
        return [s.name for s in plan(_recipe(tmp_path, GPU, line))]

    four = ["adapt", "optimize", "text", "transform", "quantize", "export", "compile", "bundle"]
    assert names("quantize: {weights: 4}") == four
    assert names("quantize: {activations: 8}") == [*four[:4], "calibrate", *four[4:]]
    assert names("quantize: {weights: 16}") == [n for n in four if n != "text"]
    for stage in plan(_recipe(tmp_path, GPU, "quantize: {weights: 16}")):
        assert "text" not in stage.needs
    assert "split" in [s.name for s in plan(_recipe(tmp_path, PHONE))]


def test_a_plain_graph_is_for_codes(tmp_path: Path) -> None:
    made = _recipe(tmp_path, GPU, model="{onnx: m.onnx, calibration: m.npz}")
    said = [what for where, what, _ in _said(made) if where.endswith(": model")]
    assert said == ["a plain graph, and geforce-rtx-4090 takes language models here"]
    assert targets.GPUS[GPU].profile.flow == "float16"
