"""A compiler that runs into the recipe's limit: what the build says, what it keeps, and that the next build goes on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tiny_build import Built
from typer.testing import CliRunner

from edgeforge import cli, pipeline, recipe
from edgeforge.backends.ending import ChildFailed


@pytest.fixture
def limited(built: Built, tmp_path: Path) -> Path:
    """The same model for a chip that no other test builds for: everything up to the compiler is cached."""
    text = built.recipe.read_text(encoding="utf-8").replace("snapdragon-8-gen-3", "snapdragon-8s-gen-3")
    text = text.replace(str(built.bundle), str(built.bundle.with_name("limited")))
    path = tmp_path / "limited.yaml"
    path.write_text(text + "compile: {memory_mb: 100}\n", encoding="utf-8")
    return path


def test_the_limit_is_named_and_the_job_kept_for_bisect(built: Built, limited: Path, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed) as caught:
        pipeline.build(recipe.load(limited), lambda event: None)
    text = str(caught.value)
    for words in ("part part_1_of_3 (prompt_ar32_cl256_1_of_3, token_ar1_cl256_1_of_3)", "limit of 100 MiB of memory",
                  "MiB at its largest", "compile.memory_mb", "split.part_bytes", "target.context"):
        assert words in text
    assert not built.bundle.with_name("limited").exists()
    failed = shlex.split(text.partition("edgeforge bisect ")[2])[0]  # as a shell would read the hint
    out = tmp_path / "piece"
    result = CliRunner().invoke(cli.app, ["bisect", failed, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "limit of 100 MiB" in result.output
    assert (out / "job.json").is_file()


def test_builds_that_share_a_cache_keep_their_failures_apart(built: Built, limited: Path, tmp_path: Path) -> None:
    """Two recipes, one cache, the same names of parts: each finds its own evidence."""
    other = tmp_path / "other.yaml"
    other.write_text(limited.read_text(encoding="utf-8").replace("snapdragon-8s-gen-3", "snapdragon-8-gen-2"),
                     encoding="utf-8")
    places = []
    for path in (limited, other):
        with pytest.raises(ChildFailed) as caught:
            pipeline.build(recipe.load(path), lambda event: None)
        places.append(Path(shlex.split(str(caught.value).partition("edgeforge bisect ")[2])[0]))
    assert len(set(places)) == 2
    assert all((place / "failure.json").is_file() for place in places)


def test_too_small_a_limit_is_refused_with_the_recipe(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(built.recipe.read_text(encoding="utf-8") + "compile: {memory_mb: 1}\n", encoding="utf-8")
    with pytest.raises(recipe.RecipeError, match=r"compile\.memory_mb: takes at least 64"):
        recipe.load(path)
