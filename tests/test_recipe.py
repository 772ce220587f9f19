from __future__ import annotations

from pathlib import Path

import pytest

from edgeforge import recipe
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


def test_paths_are_relative_to_the_recipe_not_to_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "home"
    elsewhere.mkdir()
    (home / "models").mkdir(parents=True)  # else `models/smollm2` would be a hub's id
    monkeypatch.chdir(elsewhere)
    made = _load(home, MINIMAL + "calibrate: {text: text/mine.txt}\n")
    assert made.model == home / "models" / "smollm2"
    assert made.out == home / "out"
    assert made.calibrate.text == home / "text" / "mine.txt"
    absolute = _load(home, MINIMAL.replace("models/smollm2", str(elsewhere / "m")))
    assert absolute.model == elsewhere / "m"
    assert absolute.calibrate.text is None


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
    ("quantize: {transforms: [twist]}", "quantize.transforms.0: "),
    ("compile: {timeout_s: 0}", "compile.timeout_s: "),
    ("gates: [1]", "gates: "),
])
def test_a_wrong_value_is_named_with_what_was_given(tmp_path: Path, change: str, said: str) -> None:
    message = _complaint(tmp_path, MINIMAL + change)
    assert said in message
    assert "(got " in message


def test_all_complaints_at_once(tmp_path: Path) -> None:
    message = _complaint(tmp_path, "modell: x\nout: 5\ntarget: {}\n")
    for said in ("model: missing", "modell: unknown key", "target.chip: missing", "out: "):
        assert said in message


def test_a_chip_that_nobody_knows_suggests_one(tmp_path: Path) -> None:
    message = _complaint(tmp_path, MINIMAL.replace("8-gen-3", "8-gen3"))
    assert "no chip 'snapdragon-8-gen3'" in message
    assert "did you mean 'snapdragon-8-gen-3'?" in message
    assert "known chips: snapdragon-8-gen-2" in _complaint(tmp_path, MINIMAL.replace("snapdragon-8-gen-3", "zzz"))


@pytest.mark.parametrize(("target", "said"), [
    ("prefill: 1024", "context 1024 is too short"),
    ("prefill: 1", "target.prefill: "), ("context: 1", "target.context: "), ("context: 32769", "target.context: ")])
def test_widths_that_cannot_be(tmp_path: Path, target: str, said: str) -> None:
    text = MINIMAL.replace("gen-3}", f"gen-3, {target}}}")
    assert said in _complaint(tmp_path, text)


@pytest.mark.parametrize(("text", "said"), [
    ("a: [", "is not YAML"), ("- 1", "holds a list"), ("", "holds a NoneType"), ("just words", "holds a str")])
def test_what_is_no_recipe_at_all(tmp_path: Path, text: str, said: str) -> None:
    assert said in _complaint(tmp_path, text)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: No such file"):
        recipe.load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(RecipeError, match="is not YAML"):
        recipe.load(tmp_path / "b.yaml")


def test_a_recipe_cannot_be_changed_by_accident(tmp_path: Path) -> None:
    made = _load(tmp_path, MINIMAL)
    with pytest.raises(Exception, match="frozen"):
        made.out = Path("x")  # type: ignore[misc]


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: m\nout: o\ntarget: {chip: snapdragon-8-gen-3}\nquantize: {weights: 4}\nquantize: {kv: 8}\n")
    with pytest.raises(RecipeError, match="'quantize' is given twice"):
        recipe.load(path)


def test_a_home_folder_means_home(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: ~/m\nout: o\ntarget: {chip: snapdragon-8-gen-3}\n")
    assert recipe.load(path).model == Path.home() / "m"
