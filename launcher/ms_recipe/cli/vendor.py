"""``ms-recipe vendor``: upstream at its pins, fetched, assembled and held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json
from ms_recipe.errors import ExitCode

if TYPE_CHECKING:
    from ms_recipe.upstream import TreeState

app = typer.Typer(no_args_is_help=True, help="Fetch, assemble and check upstream at its pins.")

PinName = Annotated[str | None, typer.Option("--pin", "-p", help="A pin; the default pin when left out.")]
Into = Annotated[Path | None, typer.Option("--into", help="Folder of the trees, instead of $MS_RECIPE_HOME.")]


@app.command()
def sync(
    pin: Annotated[list[str] | None, typer.Option("--pin", "-p", help="A pin; may be repeated; the default pin when "
                                                                       "left out.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All pins.")] = False,
    mirror: Annotated[str | None, typer.Option("--mirror", help="A folder of MindSpeed-LLM, MindSpeed, Megatron-LM "
                                               "(clones or bare), or a URL prefix. Also $MS_RECIPE_MIRROR.")] = None,
    into: Into = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an edited tree; the edits are kept aside.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch the pin's commits and assemble its tree; touches nothing when all is in place."""
    from ms_recipe.upstream import load_pin, pin_names, status, trees

    names = pin_names() if all_ else (pin or [None])  # type: ignore[list-item]
    done = []
    for name in names:
        wanted = load_pin(name)
        state = status(wanted, into)
        if trees.nothing_to_do(state, trees.home_of(into), force):
            done.append({"pin": wanted.name, "tree": str(state.tree), "changed": False, "extra": state.extra})
            _say(as_json, f"{wanted.name}: in place at {state.tree}")
            for problem in state.problems:
                _say(as_json, f"{wanted.name}: {problem}")
        else:
            done.append(_sync(wanted.name, into, mirror, force, as_json))
    if as_json:
        print(json.dumps({"synced": done}, ensure_ascii=False))


def _sync(name: str, into: Path | None, mirror: str | None, force: bool, quiet: bool) -> dict[str, Any]:
    from rich.console import Console

    from ms_recipe.upstream import load_pin
    from ms_recipe.upstream.assemble import sync as sync_pin

    console = Console(stderr=True, highlight=False)
    with console.status(f"{name}: starting") as line:
        last = [""]

        def progress(text: str) -> None:
            line.update(f"{name}: {text}"[:console.width - 4])
            head = text.partition(":")[0]
            if not console.is_terminal and not quiet and head != last[0] and ":" not in text:
                last[0] = head
                console.print(f"{name}: {text}")

        done = sync_pin(load_pin(name), into, mirror, force, progress)
    for repository, got in done.fetched.items():
        if got.address:
            _say(quiet, f"{name}: {repository} {done.pin.commits[repository]} from {got.address} "
                        f"({got.size / 1e6:.1f} MB)")
    for note in done.notes:
        console.print(f"{name}: note: {note}")
    if done.aside:
        _say(quiet, f"{name}: edits kept aside in {done.aside}")
    word = "assembled" if done.changed else "in place"
    _say(quiet, f"{name}: {word} at {done.tree} in {done.seconds:.1f} s")
    return {"pin": name, "tree": str(done.tree), "changed": done.changed, "seconds": round(done.seconds, 3),
            "bytes": {n: g.size for n, g in done.fetched.items()}, "commits": done.pin.commits,
            "from": {n: g.address for n, g in done.fetched.items()}, "aside": str(done.aside) if done.aside else None,
            "notes": done.notes}


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        print(text)


def _show(state: TreeState) -> None:
    print(f"{state.pin.name}: {state.tree}")
    for name, repository in state.pin.repositories.items():
        found = state.commits.get(name)
        if found == repository.commit:
            print(f"  {name} {found} ({repository.ref})")
        else:
            print(f"  {name} {found or 'of unknown commit'}, the pin is {repository.commit} ({repository.ref})")
    for patch in state.patches:
        print(f"  patch {patch}")
    for word, paths in (("changed", state.changed), ("missing", state.missing), ("extra", state.extra)):
        for path in paths:
            print(f"  {word} {path}")
    if state.clean:
        print(f"  no drift (by {state.checked}), digest {state.digest[:16]}")


def _report(states: list[TreeState], as_json: bool, bad: ExitCode) -> None:
    import sys

    if as_json:
        print(json.dumps({"trees": [s.as_dict() for s in states]}, ensure_ascii=False))
    for state in states:
        if not as_json and state.exists:
            _show(state)
        for problem in state.problems:
            print(f"{'' if as_json else '  '}{problem}", file=sys.stderr if as_json else sys.stdout)
    if any(not s.clean for s in states):
        raise typer.Exit(int(bad))


def _states(pin: str | None, into: Path | None, content: bool) -> list[TreeState]:
    from ms_recipe.upstream import load_pin, status

    return [status(load_pin(pin), into, content=content)]


@app.command("status")
def status_(pin: PinName = None, into: Into = None, as_json: Json = False) -> None:
    """What is there, at which commits, and what differs (by times and sizes: fast). Exit 3 when it is not the pin."""
    _report(_states(pin, into, content=False), as_json, ExitCode.CHECK_FAILED)


@app.command()
def verify(pin: PinName = None, into: Into = None,
           python: Annotated[str, typer.Option("--python", help="The interpreter that runs upstream; that on PATH.")] = "",
           as_json: Json = False) -> None:
    """Compare every file with the commits, and check where Python imports megatron from. Exit 3 on drift."""
    from ms_recipe.upstream import check_origins

    states = _states(pin, into, content=True)
    for state in states:
        if state.exists:
            state.problems += check_origins(state.pin, state.tree, python)
    _report(states, as_json, ExitCode.CHECK_FAILED)


@app.command("list")
def list_(into: Into = None, as_json: Json = False) -> None:
    """The pins, their commits, and which are assembled."""
    from ms_recipe.upstream import default_pin, load_pin, pin_names, tree_path

    pins = [load_pin(name) for name in pin_names()]
    if as_json:
        print(json.dumps({"default": default_pin(), "pins": [
            {"name": p.name, "summary": p.summary, "file": str(p.file), "commits": p.commits,
             "tree": str(tree_path(p, into)), "assembled": tree_path(p, into).is_dir()} for p in pins]},
            ensure_ascii=False))
        return
    for pin in pins:
        mark = " (default)" if pin.name == default_pin() else ""
        place = tree_path(pin, into)
        print(f"{pin.name}{mark}: {pin.summary}")
        for name, repository in pin.repositories.items():
            print(f"  {name} {repository.commit} ({repository.ref})")
        print(f"  {'assembled at' if place.is_dir() else 'not assembled; would be at'} {place}")


@app.command()
def build(pin: PinName = None, into: Into = None,
          python: Annotated[str, typer.Option("--python", help="The interpreter that runs upstream; that on PATH.")] = "") -> None:
    """Compile Megatron's index helper once, so that nodes of a shared tree do not race."""
    from ms_recipe.upstream import load_pin, tree_path
    from ms_recipe.upstream.helper import build as build_helper

    file, now = build_helper(tree_path(load_pin(pin), into), python)
    print(f"{'built' if now else 'in place'}: {file}")
