"""`edgeforge recipe show` and `edgeforge recipe schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from edgeforge import recipe, show

app = typer.Typer(no_args_is_help=True, help="Shows a recipe with all its defaults, or the schema of recipes.")


@app.command("show")
def show_recipe(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """The recipe with every default explicit and every path absolute."""
    found = recipe.load(path)
    print(json.dumps(found.model_dump(mode="json"), indent=1) if as_json else show.as_yaml(found), end="")


@app.command("schema")
def schema() -> None:
    """The JSON schema of a recipe, for editors: every key with its bounds and meaning."""
    print(json.dumps(recipe.schema(), indent=1))
