"""``ms-recipe logs [RUN]``: what the nodes printed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import IO, Annotated

import typer

from ms_recipe.errors import Problem, RecipeError

app = typer.Typer()


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise RecipeError(Problem(f"--grep {text}: {error}")) from None


@app.command()
def logs(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's name or id; default: the newest.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the run does, until it ends.")] = False,
    node: Annotated[int | None, typer.Option("--node", help="Only this node rank.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", help="Only lines that match this regular expression.")] = None,
    tail: Annotated[int | None, typer.Option("-n", "--tail", help="Only the last N lines of each.", min=0)] = None,
) -> None:
    """Print the nodes' logs; with several nodes each line begins with the node's rank."""
    from ms_recipe.runs.folder import find

    found = find(run)
    wanted = _pattern(grep)

    def files() -> list[Path]:
        return [p for p in found.log_files() if node is None or p.name.partition("-")[0] == str(node)]

    if not files() and not follow:
        ranks = ", ".join(p.name.partition("-")[0] for p in found.log_files())
        raise RecipeError(Problem("there is no log" + ("" if node is None else f" of node {node}"), str(found.logs),
                                  f"there are logs of nodes {ranks}" if ranks else "nothing has printed yet"))
    several = len(found.log_files()) > 1 or len(found.record.nodes) > 1

    def show(path: Path, line: str) -> None:
        if wanted is None or wanted.search(line):
            print(f"{path.name.partition('-')[0]}: {line}" if several and node is None else line, flush=follow)

    open_files: dict[Path, IO[str]] = {}
    partial: dict[Path, str] = {}
    while True:
        over = find(found.name, found.path.parent).state.final if follow else True
        over = over or find(found.name, found.path.parent).state.value == "lost"
        moved = False
        for path in files():
            if path not in open_files:
                open_files[path] = path.open(encoding="utf-8", errors="replace", newline="\n")
                if tail is not None:
                    lines = open_files[path].read().splitlines()
                    for line in lines[len(lines) - tail:] if tail else []:
                        show(path, line)
            while text := open_files[path].read(1 << 20):
                moved = True
                *whole, partial[path] = (partial.get(path, "") + text).split("\n")
                for line in whole:
                    show(path, line)
        if over and not moved:
            break
        if not moved:
            time.sleep(0.2)
    for path, rest in partial.items():
        if rest:
            show(path, rest)
    for file in open_files.values():
        file.close()
