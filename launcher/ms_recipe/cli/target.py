"""What LOG|RUN arguments mean: a log file, a folder of logs, a run's folder, name or id; none: the newest run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ms_recipe.errors import MsRecipeError, Problem, RecipeError

if TYPE_CHECKING:
    from ms_recipe.logs.series import Series
    from ms_recipe.logs.shape import Shape
    from ms_recipe.runs.folder import RunFolder


@dataclass
class Target:
    """The logs of one training, and what its recipe says about it."""

    name: str
    logs: list[Path]
    run: RunFolder | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    world_size: int | None = None
    peak_tflops: float | None = None

    def series(self) -> Series:
        """The parsed logs. Raises CheckError without an iteration line, RecipeError when a file cannot be read."""
        from ms_recipe.logs.series import read_logs

        if not self.logs:
            raise RecipeError(Problem("the run has no log yet", self.name, "see ms-recipe status"))
        return read_logs(self.logs, self.name)

    def shape(self, series: Series, seq_length: int | None = None, npus: int | None = None) -> Shape:
        """Sizes: options first, then the log's own arguments, then the recipe's flags."""
        from ms_recipe.logs.shape import Shape

        values = {**self.flags, **{k: v for k, v in series.facts.args.items() if v != "None"}}
        if seq_length:
            values["seq_length"] = seq_length
        if npus:
            values["world_size"] = npus
        return Shape.read(values, series.facts.world_size or self.world_size)


def _read_recipe(target: Target, recipe: str | Path) -> None:
    from ms_recipe.logs.shape import flags_of
    from ms_recipe.recipe import load_recipe
    from ms_recipe.render import invocation

    loaded = load_recipe(str(recipe))
    inv = invocation(loaded, "pretrain")
    target.flags = flags_of(inv.args)
    nodes, npus = loaded.get("cluster.nnodes", 1), loaded.get("cluster.npus_per_node")
    target.world_size = nodes * npus if nodes and npus else None
    peak = loaded.get("cluster.npu_peak_tflops")
    target.peak_tflops = float(peak) if peak else None


def resolve(text: str | None = None, recipe: str | None = None) -> Target:
    """The target that ``text`` names.

    Raises:
        RecipeError: there is no such log or run, or ``recipe`` is wrong.
    """
    path = Path(text) if text else None
    if path is not None and path.is_dir() and not (path / "run.json").is_file():
        logs = sorted(path.glob("*.log"))
        if not logs:
            raise RecipeError(Problem("has no *.log file and no run.json", str(path), "give a log, or a run's folder"))
        target = Target(str(text), logs)
    elif path is not None and path.exists() and not path.is_dir():
        target = Target(str(text), [path])
    elif text and ("/" in text or text.endswith((".log", ".txt", ".gz"))) and path is not None and not path.exists():
        raise RecipeError(Problem("not found", text, "give the path of a training log, or a run (see ms-recipe ls)"))
    else:
        from ms_recipe.runs.folder import find

        run = find(text)
        target = Target(run.name, run.log_files(), run)
        if recipe is None and (run.path / "recipe.yaml").is_file():
            # The log's own arguments may do without it: a recipe of another version is no reason to show nothing.
            with contextlib.suppress(MsRecipeError):
                _read_recipe(target, run.path / "recipe.yaml")
    if recipe is not None:
        _read_recipe(target, recipe)
    return target
