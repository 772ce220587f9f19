from __future__ import annotations

from pathlib import Path

import pytest

from edgeforge import recipe, scope, sections
from edgeforge.errors import EXIT_USAGE, RecipeError

MINIMAL = """
model: models/smollm2
out: out
target: {chip: snapdragon-8-gen-3}
"""


def _load(folder: Path, text: str) -> recipe.Recipe:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return recipe.load(path)


def _complaint(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        _load(folder, text)
    assert caught.value.exit_code == EXIT_USAGE == 2
    assert "recipe.yaml" in caught.value.message
    return str(caught.value)


def test_a_minimal_recipe_has_every_default(tmp_path: Path) -> None:
    made = _load(tmp_path, MINIMAL)
    assert made.target.context == 1024
    assert made.target.prefill == 128
    assert made == recipe.Recipe.model_validate(made.model_dump()), "what is written out can be read back"


def test_the_best_reads_more_text_unless_told(tmp_path: Path) -> None:
    best = MINIMAL + "quantize: {quality: best}\n"
    assert _load(tmp_path, MINIMAL).calibrate.windows == 16
    assert _load(tmp_path, best).calibrate.windows == scope.BEST_WINDOWS
    assert _load(tmp_path, best + "calibrate: {tokens: 64}\n").calibrate.windows == scope.BEST_WINDOWS
    assert _load(tmp_path, best + "calibrate: {windows: 4}\n").calibrate.windows == 4
    graph = MINIMAL.replace("models/smollm2", "{onnx: a.onnx, calibration: a.npz}")
    assert _load(tmp_path, graph + "quantize: {quality: best}\n").calibrate.windows == 16
    assert "calibrate" in _complaint(tmp_path, best + "calibrate: 7\n")


def test_paths_are_relative_to_the_recipe_not_to_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "home"
    elsewhere.mkdir()
    (home / "models").mkdir(parents=True)  # else `models/smollm2` would be a hub's id
    monkeypatch.chdir(elsewhere)
    made = _load(home, MINIMAL + "calibrate: {text: text/mine.txt}\nquantize: {encodings: ../a.encodings}\n")
    assert made.model == home / "models" / "smollm2"
    assert made.out == home / "out"
    assert made.calibrate.text == home / "text" / "mine.txt"
    assert made.quantize.encodings == tmp_path / "a.encodings"
    absolute = _load(home, MINIMAL.replace("models/smollm2", str(elsewhere / "m")))
    assert absolute.model == elsewhere / "m"
    assert absolute.calibrate.text is absolute.quantize.encodings is None


def test_also_when_the_recipe_is_given_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    made = _load(Path("."), MINIMAL)
    assert made.model.is_absolute()
    assert made.model == tmp_path / "models" / "smollm2"


@pytest.mark.parametrize(("change", "said"), [
    ("modle: x", "modle: unknown key; did you mean 'model'?"),
    ("target: {chip: snapdragon-8-gen-3, contxt: 5}", "target.contxt: unknown key; did you mean 'context'?"),
    ("gates: {quantise_db: 5}", "gates.quantise_db: unknown key; did you mean 'quantize_db'?"),
    ("split: {xyzzy: 5}", "split.xyzzy: unknown key\n"),
])
def test_an_unknown_key_suggests_the_nearest(tmp_path: Path, change: str, said: str) -> None:
    base = MINIMAL.replace("target: {chip: snapdragon-8-gen-3}", "") if change.startswith("target") else MINIMAL
    assert said in _complaint(tmp_path, base + change) + "\n"


@pytest.mark.parametrize(("change", "said"), [
    ("split: {part_bytes: many}", "split.part_bytes: "),
    ("calibrate: {windows: 0}", "calibrate.windows: "),
    ("quantize: {weights: 5}", "quantize.weights: "),
    ("quantize: {weights: 4, block: 48}", "quantize.block: "),
    ("quantize: {transforms: [twist]}", "quantize.transforms.0: "),
    ("compile: {timeout_s: 0}", "compile.timeout_s: "),
    ("gates: [1]", "gates: "),
])
def test_a_wrong_value_is_named_with_what_was_given(tmp_path: Path, change: str, said: str) -> None:
    message = _complaint(tmp_path, MINIMAL + change)
    assert said in message
    assert "(got " in message


@pytest.mark.parametrize("section", ["{block: 64}", "{weights: 8, block: 64}", "{weights: 16, block: 64}"])
def test_blocks_are_for_4_bits(tmp_path: Path, section: str) -> None:
    message = _complaint(tmp_path, MINIMAL + f"quantize: {section}")
    assert "quantize: block 64 is for 4-bit weights, and these have " in message
    assert "set weights to 4, or leave block out" in message


@pytest.mark.parametrize(("section", "said"), [
    ("{weights: 4, budget: {}}", "quantize.budget: takes either bits_per_weight or kl"),
    ("{weights: 4, budget: {bits_per_weight: 5, kl: 0.1}}", "quantize.budget: takes either bits_per_weight or kl"),
    ("{weights: 4, budget: {bits_per_weight: 4}}", "quantize.budget.bits_per_weight: takes more than 4 (got 4)"),
    ("{weights: 4, budget: {bits_per_weight: 8.5}}", "quantize.budget.bits_per_weight: takes at most 8 (got 8.5)"),
    ("{weights: 4, budget: {kl: 0}}", "quantize.budget.kl: takes more than 0 (got 0)"),
    ("{budget: {kl: 0.1}}", "quantize: budget chooses between 4 and 8 bits, and weights has 8: set weights to 4"),
    ("{exceptions: {a.*: 5}}", "quantize.exceptions.a.*: takes one of 4, 6, 8 or 16 (got 5)"),
    ("{exceptions: [a]}", "quantize.exceptions: takes keys and values (got a list)"),
    ("{encodings: ''}", "quantize.encodings: is empty; it takes a path"),
    ("{encodings: a.json, reconstruct: true}", "quantize: reconstruct moves the steps of a block's weights together, "
     "and encodings settles some: leave one of them out"),
    ("{candidates: 20}", "quantize.candidates: takes keys and values (got 20)"),
    ("{candidates: {steps: 1}}", "quantize.candidates.steps: takes at least 2 (got 1)"),
    ("{candidates: {least: 1.1}}", "quantize.candidates: least 1.1 has to lie below most 1.1"),
    ("{candidates: {step: 20}}", "quantize.candidates.step: unknown key; did you mean 'steps'"),
    ("{scales: minmax, candidates: {steps: 20}}", "quantize: candidates are what scales: search tries, and scales is"),
])
def test_sections_of_quantize_that_cannot_be(tmp_path: Path, section: str, said: str) -> None:
    assert said in _complaint(tmp_path, MINIMAL + f"quantize: {section}")


def test_no_block_is_one_scale_a_channel(tmp_path: Path) -> None:
    for text, block in (("{weights: 4}", None), ("{weights: 4, block: null}", None), ("{weights: 4, block: 16}", 16)):
        path = tmp_path / "recipe.yaml"
        path.write_text(MINIMAL + f"quantize: {text}\n", encoding="utf-8")
        assert recipe.load(path).quantize.block == block


def test_all_complaints_at_once(tmp_path: Path) -> None:
    message = _complaint(tmp_path, "modell: x\nout: 5\ntarget: {}\n")
    for said in ("model: missing", "modell: unknown key", "target.chip: missing", "out: "):
        assert said in message


def test_a_chip_that_nobody_knows_suggests_one(tmp_path: Path) -> None:
    message = _complaint(tmp_path, MINIMAL.replace("8-gen-3", "8-gen3"))
    assert "no chip 'snapdragon-8-gen3'" in message
    assert "did you mean 'snapdragon-8-gen-3'? `edgeforge targets` lists every chip" in message
    message = _complaint(tmp_path, MINIMAL.replace("snapdragon-8-gen-3", "zzz"))
    assert "recipe.yaml:4: target.chip: no chip 'zzz' (`edgeforge targets` lists every chip)" in message


@pytest.mark.parametrize(("target", "said"), [
    ("prefill: 1", "target.prefill: "), ("context: 1", "target.context: "), ("context: 32769", "target.context: ")])
def test_widths_that_cannot_be(tmp_path: Path, target: str, said: str) -> None:
    text = MINIMAL.replace("gen-3}", f"gen-3, {target}}}")
    assert said in _complaint(tmp_path, text)


def test_a_complaint_has_the_line_of_its_key_and_none_of_pydantics_words(tmp_path: Path) -> None:
    message = _complaint(tmp_path, """\
model: m
out: 5
target:
  chip: snapdragon-8-gen-3

  context: '1024'   # a number in quotes
  prefill: true
quantize:
calibrate:
  windows: 1.5
  tokens: 2026-01-01
  text: ''
gates: {quantize_db: .nan, quantize_kl: -.inf, adapt_db: yes}
compile: {timeout_s: 0}
split: [1]
""")
    path = tmp_path / "recipe.yaml"
    assert message.splitlines()[1:] == [f"  {path}:{line}" for line in (
        "2: out: takes text (got 5)",
        "6: target.context: takes a whole number (got '1024')",
        "7: target.prefill: takes a whole number (got true)",
        "8: quantize: nothing is written after the colon; it takes keys and values",
        "10: calibrate.windows: takes a whole number (got 1.5)",
        "11: calibrate.tokens: takes a whole number (got '2026-01-01')",
        "12: calibrate.text: is empty; it takes a path",
        "13: gates.adapt_db: takes a number (got 'yes')",
        "13: gates.quantize_db: takes a finite number (got nan)",
        "13: gates.quantize_kl: takes a finite number (got -inf)",
        "14: compile.timeout_s: takes more than 0 (got 0)",
        "15: split: takes keys and values (got a list)",
    )]


@pytest.mark.parametrize(("section", "said"), [
    ("quantize: {weights: true}", "4: quantize.weights: takes one of 4, 6, 8 or 16 (got true)"),
    ("quantize: {weights: '8'}", "4: quantize.weights: takes one of 4, 6, 8 or 16 (got '8')"),
    ("quantize: {activations: 4}", "4: quantize.activations: takes one of 8 or 16 (got 4)"),
    ("quantize:\n  transforms:\n  - rotate\n  - twist", "7: quantize.transforms.1: takes one of 'rotate', "),
    ("quantize: {transforms: rotate}", "4: quantize.transforms: takes a list (got 'rotate')"),
    ("split: {part_bytes: 1e3}", "4: split.part_bytes: takes a whole number (got 1000.0)"),
    ("calibrate: {tokens: 0x7}", "4: calibrate.tokens: takes at least 8 (got 7)"),
    ("<<: {quantize: {weights: 4}}", "4: <<: unknown key"),
    ("1: 2", "4: 1: unknown key"),
    ("quantize: {" + "x" * 500 + ": 1}", "4: quantize.xxx"),
])
def test_more_wrong_values(tmp_path: Path, section: str, said: str) -> None:
    message = _complaint(tmp_path, MINIMAL.lstrip() + section)
    assert f"recipe.yaml:{said}" in message
    assert len(message) < 400


def test_yaml_1_1_surprises_are_plain_numbers(tmp_path: Path) -> None:
    made = _load(tmp_path, MINIMAL + "calibrate: {windows: 010, tokens: 0512}\ncompile: {timeout_s: 1e3}\n")
    assert (made.calibrate.windows, made.calibrate.tokens, made.compile.timeout_s) == (10, 512, 1000)


@pytest.mark.parametrize(("text", "said"), [
    ("a: [", "recipe.yaml:1: not YAML: "), ("- 1", "holds a list"), ("", "holds nothing"),
    ("# only\n", "holds nothing"), ("just words", "holds a single value"), ("a: 'b", "not YAML"),
    ("a: b: c", "not YAML"),
    ("a:\n\t- b", "recipe.yaml:2: not YAML"), ("a: 1\n---\nb: 2", "recipe.yaml:2: a second document"),
    ("model: !!python/object/apply:os.system ['touch HERE']", "recipe.yaml:1: a tag (tag:yaml.org,2002:python/object"),
    ("a: !mine b", "recipe.yaml:1: a tag (!mine)"), ("a: &x [1]\nb: *x", "recipe.yaml:1: an anchor or alias (x)"),
    ("b: *x", "recipe.yaml:1: an anchor or alias (x)"), ("[" * 100000, "nested more than 16 deep"),
    ("a: " + "{b: " * 30 + "1" + "}" * 30, "nested more than 16 deep"),
    ("a: " + "9" * 5000, "recipe.yaml:1: a number of 5000 digits"), ("a: x\nb: \x00", "recipe.yaml:2: a character"),
    ('model: "a\\0b"', "recipe.yaml:1: text with a NUL"),
    ('model: "\\ud800"', "recipe.yaml:1: text with a NUL or half"),
    ("? [a, b]\n: c", "recipe.yaml:1: a key that is a list"),
    ("a: " + "b" * (1 << 18), "larger than 256 KiB"),
    ("model: " + "m" * 300 + MINIMAL.replace("model: models/smollm2", ""), "recipe.yaml:1: model: File name too long"),
    ("model: ~nosuchuser/m" + MINIMAL.replace("model: models/smollm2", ""), "recipe.yaml:1: model: "),
])
def test_what_is_no_recipe_at_all(tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = _complaint(tmp_path, text)
    assert said in message
    assert len(message) < 600
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_billion_laughs_do_not_expand(tmp_path: Path) -> None:
    lines = ["a0: &a0 [ha]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))]
    assert "an anchor or alias (a0)" in _complaint(tmp_path, "\n".join(lines))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: No such file"):
        recipe.load(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="Is a directory"):
        recipe.load(tmp_path)
    with pytest.raises(RecipeError, match="larger than 256 KiB"):
        recipe.load(Path("/dev/zero"))
    (tmp_path / "b.yaml").write_bytes(b"model: m\nout: \xff\xfe\x00\x81")
    with pytest.raises(RecipeError, match=r"b\.yaml:2: not UTF-8"):
        recipe.load(tmp_path / "b.yaml")


def test_a_byte_order_mark_spaces_and_other_alphabets_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "mit Leerzeichen und Umläuten"
    folder.mkdir()
    made = _load(folder, "\ufeff" + MINIMAL.replace("models/smollm2", "模型/ein Modell").lstrip())
    assert made.model == folder / "模型" / "ein Modell"


def test_a_key_is_called_by_its_line(tmp_path: Path) -> None:
    made = _load(tmp_path, MINIMAL)
    assert made.where("target.chip") == f"{tmp_path}/recipe.yaml:4: target.chip"
    assert made.where("target.context") == f"{tmp_path}/recipe.yaml:4: target.context, the default"
    assert made.where("split.part_bytes") == f"{tmp_path}/recipe.yaml: split.part_bytes, the default"
    assert recipe.Recipe.model_validate(made.model_dump()).where("target.chip") == "target.chip"


def test_a_recipe_cannot_be_changed_by_accident(tmp_path: Path) -> None:
    made = _load(tmp_path, MINIMAL)
    with pytest.raises(Exception, match="frozen"):
        made.out = Path("x")  # type: ignore[misc]


def test_keys_given_twice_are_refused_all_of_them(tmp_path: Path) -> None:
    message = _complaint(tmp_path, "model: m\nout: o\nquantize: {weights: 4, weights: 8}\nout: p\n")
    assert "recipe.yaml:3: key 'weights' is given twice, first in line 3" in message
    assert "recipe.yaml:4: key 'out' is given twice, first in line 2" in message


def test_a_home_folder_means_home(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: ~/m\nout: o\ntarget: {chip: snapdragon-8-gen-3}\n")
    assert recipe.load(path).model == Path.home() / "m"


@pytest.mark.parametrize(("gate", "said"), [
    ("quantize_kl: -1", "gates.quantize_kl: takes more than 0 (got -1)"),
    ("quantize_kl: 0", "gates.quantize_kl: takes more than 0 (got 0)"),
    ("quantize_ppl: 0.5", "gates.quantize_ppl: takes at least 1 (got 0.5)"),
    ("shared_bytes: 0.5", "gates.shared_bytes: takes at least 1 (got 0.5)"),
    ("adapt_db: 500", "gates.adapt_db: takes at most 150 (got 500)"),
    ("emulator_db: 151", "gates.emulator_db: takes at most 150 (got 151)")])
def test_a_gate_that_can_never_pass_is_refused(tmp_path: Path, gate: str, said: str) -> None:
    assert said in _complaint(tmp_path, MINIMAL + f"gates: {{{gate}}}\n")


def test_a_gate_may_be_as_wide_as_one_likes(tmp_path: Path) -> None:
    wide = "gates: {adapt_db: -100, quantize_kl: 1e9, quantize_ppl: 1, shared_bytes: 2}\n"
    gates = _load(tmp_path, MINIMAL + wide).gates
    assert (gates.adapt_db, gates.quantize_kl) == (-100, 1e9)


def test_a_transform_twice_is_refused(tmp_path: Path) -> None:
    said = _complaint(tmp_path, MINIMAL + "quantize: {transforms: [rotate, equalize_kv, rotate]}\n")
    assert "recipe.yaml:5: quantize.transforms: 'rotate' is there twice" in said


def test_the_quantized_models_gates_are_those_of_its_bits_unless_set(tmp_path: Path) -> None:
    limits = _load(tmp_path, MINIMAL).limits
    assert (limits["quantize_db"], limits["quantize_kl"], limits["quantize_flips"], limits["adapt_db"]) == (
        30, 0.02, None, 60)
    assert (limits["quantize_db (4 bits)"], limits["quantize_kl (4 bits)"]) == (None, 0.3)
    said = _load(tmp_path, MINIMAL + "gates: {quantize_kl: 0.1}\n").limits
    assert said["quantize_kl"] == said["quantize_kl (4 bits)"] == 0.1
    assert {key for key in limits if "4 bits" not in key} == {*sections.Gates.model_fields} - {"windows"}


def test_scaling_channels_is_there_for_the_asking(tmp_path: Path) -> None:
    assert "scale_channels" not in _load(tmp_path, MINIMAL).quantize.transforms
    asked = _load(tmp_path, MINIMAL + "quantize: {transforms: [scale_channels, rotate]}\n")
    assert asked.quantize.transforms == ("scale_channels", "rotate")
    said = _complaint(tmp_path, MINIMAL + "quantize: {transforms: [rotate, scale_chanels]}\n")
    assert "recipe.yaml:5: quantize.transforms" in said
    assert "scale_channels" in said
