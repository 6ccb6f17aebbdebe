"""``ms-recipe fetch weights|corpus``: what a recipe needs from outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, Sets
from ms_recipe.errors import Problem, RecipeError

app = typer.Typer(no_args_is_help=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@app.command()
def weights(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Whose paths.hf is filled.")],
    source: Annotated[str, typer.Option("--from", help="hf (HF_ENDPOINT) or modelscope (MODELSCOPE_ENDPOINT).")] = "hf",
    repo: Annotated[str | None, typer.Option(help="The model's name there [default: Qwen/<folder of paths.hf>].")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    file: Overlays = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Fetch the recipe's Hugging Face folder and check it against its index; a cut transfer goes on."""
    from ms_recipe.recipe import load_recipe
    from ms_recipe.transfer.weights import fetch, repo_of

    loaded = load_recipe(recipe, overlays=file or [], sets=set_ or [])
    name = repo or repo_of(loaded)
    got = fetch(name, Path(loaded.path("hf") or ""), source, revision, _say)
    if as_json:
        print(json.dumps({"folder": str(got.folder), "repo": got.repo, "files": got.files, "bytes": got.bytes}))
    else:
        print(f"{got.folder}: {got.files} files, {got.bytes / 2**20:.1f} MiB, whole")


@app.command()
def corpus(
    dump: Annotated[str, typer.Argument(metavar="DUMP", help="A MediaWiki dump (.xml, .xml.bz2, .xml.gz) or its URL.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the parquet files.")],
    per_file: Annotated[int, typer.Option(help="Articles a file.", min=1)] = 20000,
    min_chars: Annotated[int, typer.Option(help="Leave shorter articles out.", min=0)] = 200,
    as_json: Json = False,
) -> None:
    """Turn a Wikipedia dump into parquet files that data_convert reads; an interrupted run goes on."""
    from ms_recipe.transfer.corpus import download, extract

    path = Path(dump)
    if "://" in dump:
        path = download(dump, output / dump.rsplit("/", 1)[-1], _say)
    if not path.is_file():
        raise RecipeError(Problem("does not exist", dump, "name a dump or its URL"))
    made = extract(path, output, per_file, min_chars, _say)
    if as_json:
        print(json.dumps({"folder": str(made.folder), "files": [str(f) for f in made.files], "articles": made.articles}))
    else:
        print(f"{made.folder}: {made.articles} articles in {len(made.files)} files; use: --set paths.raw_data={made.folder}")
