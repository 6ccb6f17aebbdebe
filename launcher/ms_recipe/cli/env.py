"""``ms-recipe env``: the variables with which a rendered script runs by hand on a backend."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json

app = typer.Typer()


@app.command()
def env(
    backend: Annotated[str, typer.Option(help="npu, or cpu: a stand-in for torch_npu.")] = "npu",
    upstream: Annotated[
        str, typer.Option(help="pinned, or stub: a small tree in upstream's place (cpu only).")
    ] = "pinned",
    pin: Annotated[str | None, typer.Option(help="The pin whose tree is meant [default: the default pin].")] = None,
    as_json: Json = False,
) -> None:
    """Print export lines for a shell: eval "$(ms-recipe env --backend cpu --upstream stub)"."""
    from ms_recipe import backends
    from ms_recipe.errors import Problem, RecipeError, UpstreamError
    from ms_recipe.upstream import load_pin, tree_path

    for name, value, known in (("backend", backend, backends.BACKENDS), ("upstream", upstream, backends.UPSTREAMS)):
        if value not in known:
            raise RecipeError(Problem(f"no {name} is called {value}", f"--{name}", f"known: {', '.join(known)}"))
    variables = dict(backends.environment(backend, upstream))
    if upstream == "stub":
        variables["MS_RECIPE_TREE"] = str(backends.stub_tree())
    else:
        tree = tree_path(load_pin(pin).name)
        if not tree.is_dir():
            raise UpstreamError(Problem("there is no tree", str(tree), "run: ms-recipe vendor sync"))
        variables["MS_RECIPE_TREE"] = str(tree)
    if as_json:
        print(json.dumps(variables))
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    # The scripts call python and torchrun as PATH finds them: this installation's, where the backend's packages are.
    print(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
