"""The command line: a table of commands, each in a file of its own, imported only when it is called."""

from __future__ import annotations

import difflib
import errno
import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from ms_recipe import __version__
from ms_recipe.errors import ExitCode, MsRecipeError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

# name -> (module below ms_recipe.cli, short help). A module holds `app`, a typer.Typer: with one command it is
# that command, with several it is a group. The table keeps start-up free of what the called command does not use.
COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("list_", "List the shipped recipes."),
    "show": ("show", "Show a resolved recipe, and where each value comes from."),
    "render": ("render", "Render a recipe into shell scripts."),
    "check": ("check", "Check a recipe: arguments, files, agreement between stages."),
    "plan": ("plan", "Memory per NPU, tokens, checkpoint sizes, and valid layouts."),
    "doctor": ("doctor", "Look at this machine, or at all of a hostfile."),
    "run": ("run", "Run stages, here or on the nodes of a hostfile."),
    "env": ("env", "Print the variables with which a script runs by hand."),
    "vendor": ("vendor", "Fetch, assemble and check upstream at its pins."),
    "smoke": ("smoke", "Run every stage of a recipe, tiny, on the CPU, and compare what comes out."),
    "preflight": ("preflight", "Build the full recipe with upstream's code, without weights: memory and refusals."),
    "args": ("args", "List the flags that upstream's entry points accept."),
    "diagnose": ("diagnose", "Name the first failure of a run, its cause, and what to do."),
    "metrics": ("metrics", "Figures, plots, comparisons and checks of training logs."),
    "hosts": ("hosts", "Print what a hostfile means."),
    "ls": ("ls", "List the runs."),
    "status": ("status", "Show how a run stands."),
    "logs": ("run_logs", "Print a run's logs, node by node; -f follows."),
    "stop": ("stop", "Stop a run on all its nodes."),
    "import": ("import_", "Make a recipe of existing scripts."),
    "diff": ("diff", "Compare two scripts, recipes, folders or runs by what they mean."),
    "fetch": ("fetch", "Fetch weights, or make a corpus of a Wikipedia dump."),
    "export": ("export", "The last complete checkpoint as a Hugging Face folder."),
}


# What a disk or a permission does to us is the user's to mend, not a defect of ours.
_OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EMFILE)

# typer brings its own copy of click or depends on it, by version: its exceptions are reached through typer.
_USAGE: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class LazyGroup(typer.core.TyperGroup):
    """A group that imports a command's module when the command is called, and not before."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = typer.main.get_command(importlib.import_module(f"ms_recipe.cli.{module}").app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table's own words: listing the commands imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            near = difflib.get_close_matches(name, list(COMMANDS), n=1)
            hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
            raise MsRecipeError(Problem(f"no command is called {name}", "", hint))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Render Qwen3 recipes into MindSpeed-LLM scripts, run them across nodes, and watch them.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ms-recipe {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _report(error: MsRecipeError, as_json: bool) -> int:
    if as_json:
        print(
            json.dumps(
                {"error": True, "exit_code": int(error.exit_code), "problems": [p.as_dict() for p in error.problems]},
                ensure_ascii=False,
            )
        )
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(error.exit_code)


def _internal(error: BaseException) -> int:
    fd, name = tempfile.mkstemp(prefix="ms-recipe-", suffix=".traceback")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    print(f"error: internal error: {type(error).__name__}: {error}; the traceback is in {name}", file=sys.stderr)
    return int(ExitCode.INTERNAL)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code (never raises for a user's mistake)."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result: Any = typer.main.get_command(app).main(args=args, prog_name="ms-recipe", standalone_mode=False)
        return int(result) if isinstance(result, int) else 0
    except MsRecipeError as error:
        return _report(error, "--json" in args)
    except typer.Exit as error:
        return int(error.exit_code)
    except _USAGE as error:
        error.show()
        return int(ExitCode.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) has gone: what was asked for is done. (typer turns EPIPE into SystemExit.)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _OUTSIDE:
            return _internal(error)
        where = str(error.filename or "")
        return _report(MsRecipeError(Problem(error.strerror or str(error), where, "correct it and try again")), False)
    except Exception as error:  # the last line of defence
        return _internal(error)


def main() -> None:
    """The console script."""
    sys.exit(run())
