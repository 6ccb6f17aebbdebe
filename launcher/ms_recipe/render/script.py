"""Invocation -> shell script text, through templates/*.sh.j2."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import __version__, resources
from ms_recipe.errors import MsRecipeError, Problem, RecipeError
from ms_recipe.recipe import Recipe
from ms_recipe.render.invocation import Invocation, build, stage_named
from ms_recipe.render.stages import ALL, DATA, OPTIMIZE, OPTIONAL, OUTPUT, STAGES, Stage
from ms_recipe.upstream import load_pin, tree_path

_LOOPBACK = ("localhost", "127.", "::1")
_GROUPS = ("GPT_ARGS", "DATA_ARGS", "OUTPUT_ARGS", "OPTIMIZE_ARGS", "TRAIN_ARGS", "MODEL_PARALLEL_ARGS")
#: What a training script decides itself: it loads its own checkpoint, or starts from the converted one.
_START = frozenset(("--load", "--no-load-optim", "--no-load-rng"))
_STARTING = {"pretrain": _START, "tune_full": _START | {"--finetune"}, "tune_lora": _START | {"--finetune"}}


@dataclass
class Rendered:
    """One stage's script: the file's name, its text, and the invocation it runs."""

    name: str
    text: str
    invocation: Invocation = field(repr=False)


def quote(value: Any) -> str:
    """``value`` as one shell word, whatever it holds.

    Raises:
        RecipeError: a carriage return or NUL, which no script can carry.
    """
    text = str(value)
    if "\r" in text or "\0" in text:
        raise RecipeError(Problem(f"a value holds a carriage return or a NUL byte: {text!r}", "", "take it out"))
    # A bare comma is right, but shellcheck takes it for a separator of array elements (SC2054).
    return f"'{text}'" if "," in text and shlex.quote(text) == text else shlex.quote(text)


@functools.cache
def _environment(folder: Path) -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(folder)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        newline_sequence="\n",
    )
    environment.filters["quote"] = quote
    environment.filters["comment"] = lambda value: " ".join(str(value).split())
    return environment


def _lines(invocation: Invocation, stage: Stage, skip: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    """The arguments as array lines, by group; a flag that has a shell variable refers to it."""
    groups: dict[str, list[str]] = {}
    for flag, value in invocation.args.items():
        if flag in skip:
            continue
        if value is True:
            line = flag
        elif flag in stage.variables:
            name = stage.variables[flag]
            line = f'{flag} "${{{name}[@]}}"' if isinstance(value, list) else f'{flag} "${{{name}}}"'
        elif isinstance(value, list):
            line = " ".join([flag, *(quote(v) for v in value)])
        else:
            line = f"{flag} {quote(value)}"
        groups.setdefault(_group(flag, invocation, stage), []).append(line)
    return groups


def _group(flag: str, invocation: Invocation, stage: Stage) -> str:
    if stage.launcher != "torchrun":
        return "ARGS"
    if invocation.keys.get(flag, "").startswith("parallel.") or flag.startswith("--context-parallel"):
        return "MODEL_PARALLEL_ARGS"
    for group, members in (("OPTIMIZE_ARGS", OPTIMIZE), ("DATA_ARGS", DATA), ("OUTPUT_ARGS", OUTPUT)):
        if flag in members:
            return group
    if invocation.keys.get(flag, "").startswith("model.") or flag == "--tokenizer-name-or-path":
        return "GPT_ARGS"
    return "TRAIN_ARGS"


def _variables(invocation: Invocation, stage: Stage) -> dict[str, str | list[str]]:
    """Shell variable -> the value of its flag, in the order of the stage's table."""
    out: dict[str, str | list[str]] = {}
    for flag, name in stage.variables.items():
        value = invocation.args.get(flag)
        if value is not None and value is not True and not isinstance(value, bool):
            out[name] = value
    return out


def _launch_problems(recipe: Recipe, invocation: Invocation) -> list[Problem]:
    address = invocation.launcher_args.get("master_addr", "")
    nodes = int(invocation.launcher_args.get("nnodes", "1") or 1)
    given = recipe.get("cluster.master_addr")
    if nodes > 1 and given is not None and address.startswith(_LOOPBACK):
        return [
            Problem(f"cluster.master_addr is {address}, which each of the {nodes} nodes takes for itself",
                    str(recipe.origin("cluster.master_addr")),
                    "leave it out (node 0 of the hostfile is the master) or give node 0's address")
        ]  # fmt: skip
    return []


def _missing(recipe: Recipe, invocation: Invocation) -> list[Problem]:
    """What the script reads beside the entry point's arguments."""
    stage = invocation.stage
    if stage.startswith("mcore2hf") and recipe.path("hf") is None:
        return [Problem(f"paths.hf is missing: {stage} takes the config and the tokenizer from the original HF folder",
                        recipe.sources[-1], "set paths.hf")]  # fmt: skip
    if STAGES[stage].template == "pretrain_ptd.sh.j2" and "--save" not in invocation.args:
        key = f"{STAGES[stage].sections[-1]}.save"
        return [Problem(f"{key} is missing: the script keeps its checkpoints there and resumes from it",
                        recipe.sources[-1], f"set paths.{STAGES[stage].derived['save']}")]  # fmt: skip
    return []


def _context(recipe: Recipe, invocation: Invocation, stage: Stage) -> dict[str, Any]:
    pin = load_pin(recipe.pin)
    tree = recipe.get("cluster.tree")
    return {
        "version": __version__,
        "recipe": recipe,
        "sources": recipe.sources,
        "pin": pin,
        "stage": stage,
        "invocation": invocation,
        "env": invocation.env,
        "tree": recipe.absolute(str(tree)) if tree else str(tree_path(recipe.pin)),
        "variables": _variables(invocation, stage),
        "launch": invocation.launcher_args,
        "log_path": invocation.log_path,
        "group_names": _GROUPS,
        "shared": recipe.get("cluster.shared_storage", True),
        "hf_dir": recipe.path("hf"),
    }


def _text(recipe: Recipe, invocation: Invocation, templates: Path) -> str:
    import jinja2

    stage = STAGES[invocation.stage]
    context = _context(recipe, invocation, stage)
    skip = _STARTING.get(stage.id, frozenset())
    context["groups"] = _lines(invocation, stage, skip)
    context["args"] = invocation.args
    if stage.id.startswith("mcore2hf"):
        context["variables"]["OUTPUT_DIR"] = context["variables"].pop("WORK_DIR")
    try:
        text: str = _environment(templates).get_template(stage.template).render(context)
    except jinja2.UndefinedError as error:
        raise RecipeError(
            Problem(f"{error.message}", f"templates/{stage.template}", "give the value in the recipe")
        ) from None
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None) or 1
        raise RecipeError(Problem(f"{error}", f"templates/{stage.template}:{line}", "correct the template")) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def templates_folder(given: Path | None = None) -> Path:
    """The folder of templates: ``given`` (a user's own, laid over nothing), else the shipped one."""
    return given if given is not None else resources.path("templates")


def render_stage(recipe: Recipe, stage_id: str, templates: Path | None = None) -> str:
    """The whole shell script of one stage (docs/scripts.md says what it may rely on).

    Raises:
        RecipeError: with everything that is wrong with the stage's part of the recipe.
    """
    return render_all(recipe, [stage_id], templates)[0].text


def wanted(recipe: Recipe) -> list[str]:
    """The stages that a recipe asks for: each whose section it has; those of ``run all`` when it has none."""
    asked = [stage for stage in STAGES if recipe.section(OPTIONAL.get(stage, STAGES[stage].sections[-1]))]
    return asked or list(ALL)


def render_all(recipe: Recipe, stages: list[str] | None = None, templates: Path | None = None) -> list[Rendered]:
    """The scripts of ``stages`` (those the recipe asks for by default), or all problems of all of them at once.

    Raises:
        RecipeError: with the problems, each once.
        UpstreamError: the recipe's pin is not known.
    """
    folder = templates_folder(templates)
    problems: dict[str, Problem] = {}
    built = []
    for stage_id in stages or wanted(recipe):
        stage_named(stage_id)
        invocation, found = build(recipe, stage_id)
        for problem in [*found, *_launch_problems(recipe, invocation), *_missing(recipe, invocation)]:
            problems.setdefault(f"{problem.where} {problem.what}", problem)
        built.append(invocation)
    if problems:
        raise RecipeError(*problems.values())
    out = []
    errors: list[Problem] = []
    for invocation in built:
        try:
            out.append(Rendered(invocation.script_name, _text(recipe, invocation, folder), invocation))
        except MsRecipeError as error:
            errors += error.problems
    if errors:
        raise RecipeError(*errors)
    return out
