"""The stages of a run, one after the other; finished ones whose inputs did not change are skipped, and that is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.errors import CheckError, MsRecipeError, Problem, RecipeError, UpstreamError
from ms_recipe.recipe.dump import to_yaml
from ms_recipe.render import ALL, Rendered, invocation, render_all
from ms_recipe.render.output import edited, last_render, manifest
from ms_recipe.runs import before, execute, fingerprint, jobs, outputs, proofs, restart, separate
from ms_recipe.runs.folder import Attempt, Record, RunFolder, State
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, launcher_options
from ms_recipe.runs.targets import TRAINING, inputs, target
from ms_recipe.upstream import verify_tree

#: Stages that a pin cannot do, and why (docs/defects.md).
UNSUPPORTED = {("qwen3-0day", "mcore2hf"): "its converter fails for Qwen3 with KeyError 'q layernorm' and exits 0 (D1)"}


@dataclass
class Result:
    """How a run ended: per stage "done" or "skipped", the facts of its proof, and generate's texts."""

    run: RunFolder
    stages: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"run": self.run.record.id, "folder": str(self.run.path), "state": self.run.record.state,
                "stages": self.stages, "facts": self.facts, "answers": self.answers}  # fmt: skip


def scripts_of(request: Request) -> list[Rendered]:
    """The scripts that will run: rendered anew, or those of ``--scripts`` as they are.

    Raises:
        RecipeError: a rendered folder was edited by hand since, a script is missing, or the recipe is wrong.
    """
    rendered = render_all(request.recipe, request.stages)
    if request.scripts is None:
        _refuse_edited(request)
        return rendered
    names: dict[str, str] = {v: k for k, v in manifest(request.scripts).get("stages", {}).items()}
    out, missing = [], []
    for item in rendered:
        file = request.scripts / names.get(item.invocation.stage, item.name)
        try:
            out.append(Rendered(file.name, file.read_text(encoding="utf-8"), item.invocation))
        except OSError as error:
            missing.append(Problem(f"no script for {item.invocation.stage}: {error.strerror}", str(file),
                                   "render the recipe into this folder, or name another"))  # fmt: skip
    if missing:
        raise RecipeError(*missing)
    return out


def _refuse_edited(request: Request) -> None:
    last = last_render()
    if last is None or not last.get("output"):
        return
    folder = Path(last["output"])
    changed = edited(folder) if folder.is_dir() else []
    recipe = manifest(folder).get("recipe") if changed else None
    if (
        changed
        and recipe is not None
        and Path(str(recipe)).name in (request.recipe.reference, Path(request.recipe.reference).name)
    ):
        raise RecipeError(*[
            Problem("was edited since it was rendered, and run would not use it", str(folder / name),
                    f"run it with --scripts {folder}, or render again with --overwrite") for name in changed
        ])  # fmt: skip


def verify(request: Request, record: Record) -> None:
    """Hold the tree against its pin; the stub needs no such proof.

    Raises:
        UpstreamError: the tree is not its pin, or the pin cannot do a stage.
    """
    problems = [Problem(f"pin {request.recipe.pin} cannot run {stage}: {why}", "", "use pin mcore-0.8")
                for (pin, stage), why in UNSUPPORTED.items()
                if pin == request.recipe.pin and stage in request.stages and request.upstream == "pinned"]  # fmt: skip
    if problems:
        raise UpstreamError(*problems)
    if request.upstream == "stub":
        return
    state = verify_tree(request.tree, request.recipe.pin, allow_drift=request.allow_drift)
    record.tree_digest = state.digest
    if state.problems:
        record.unchecked.append("tree: not its pin (--allow-drift): " + "; ".join(p.what for p in state.problems[:5]))


def skip_reason(request: Request, item: Rendered, proven: Callable[[], bool] | None = None) -> str | None:
    """Why the stage need not run: its result is whole and was made from what is there now; None if it must run.

    ``proven`` tells whether the result is whole where that is not seen on this machine.
    """
    stage = item.invocation.stage
    if stage == "generate" or request.rerun:
        return None
    place = target(item.invocation, request.recipe, "none")
    note = outputs.read_note(place.note_file())
    if not note or note.get("upstream") != request.upstream or note.get("pin") != request.recipe.pin:
        return None
    if fingerprint.changed(_plain(note.get("inputs", {})), _plain(inputs(item.invocation))):
        return None
    if proven is not None:
        return "finished before on every node, and its inputs did not change on this one" if proven() else None
    proof = proofs.check(item.invocation, place.place, request.recipe.get("model.num_layers"), lambda: "")
    return "finished before, and its inputs did not change" if proof.ok else None


def _plain(value: Any) -> Any:
    """As JSON gives it back, so that what was read compares with what is made."""
    import json

    return json.loads(json.dumps(value))


def plan(request: Request) -> list[dict[str, Any]]:
    """What would run, for ``--dry-run``: stage, script, nodes, environment, where the result goes, or why it is skipped."""
    out = []
    for item in scripts_of(request):
        nodes = jobs.stage_nodes(request, item)
        place = target(item.invocation, request.recipe, "RUN")
        out.append({
            "stage": item.invocation.stage, "script": item.name, "entry": item.invocation.entry,
            "launcher": request.launcher, "tree": request.tree, "result": place.place,
            "nodes": [{"rank": n.rank, "host": n.label, "env": n.env} for n in nodes],
            "skipped": skip_reason(request, item),
        })  # fmt: skip
    return out


def start(request: Request, folder: RunFolder | None = None) -> RunFolder:
    """The run's folder, with its record."""
    recipe = request.recipe
    record = Record(
        "", request.stages[0] if len(request.stages) == 1 else "all", recipe=recipe.name,
        reference={"recipe": recipe.reference, "overlays": recipe.overlays, "sets": recipe.sets, "scale": recipe.scale},
        pin=recipe.pin, tree=request.tree, backend=request.backend, upstream=request.upstream,
        launcher=request.launcher, stages=request.stages, cwd=str(Path.cwd()), command=request.command,
        nodes=[{"rank": i, **h.as_dict()} for i, h in enumerate(request.hosts)] if request.hosts
        else [{"rank": 0, "host": None, "slots": request.slots}],
        prefix=jobs.prefix_of(recipe), setup=jobs.setup_of(recipe), python=str(recipe.get("cluster.python") or ""),
        ssh_options=launcher_options(request, "ssh"),
        scripts=str(request.scripts) if request.scripts else "rendered",
        unchecked=[] if request.check else ["the checks before the start were skipped (--no-check)"],
    )  # fmt: skip
    verify(request, record)
    run = folder or RunFolder.create(record.stage, record)
    if folder is not None:
        record.id, record.created, record.supervisor = folder.record.id, folder.record.created, folder.record.supervisor
        run.record = record
        run.save()
    (run.path / "recipe.yaml").write_text(to_yaml(recipe.data), encoding="utf-8")
    return run


def run_stages(request: Request, progress: Progress | None = None, folder: RunFolder | None = None) -> Result:
    """Run the stages of a request in order.

    Raises:
        RecipeError, CheckError, UpstreamError: before anything was started.
        StageError: a stage failed (exit 4).
        execute.Interrupted: stopped by a signal.
    """
    shown = progress or Progress()
    items = scripts_of(request)
    found = before.recipe(request) if request.check else before.Found()
    run = start(request, folder)
    shown.folder = run.path
    result = Result(run)
    run.record.unchecked += found.unchecked
    for warning in found.warnings:
        shown.say(f"warning: {warning}")
    try:
        if request.check:
            seen = before.nodes(request, run, items, run.record.tree_digest, shown)
            run.record.unchecked += seen.unchecked
            items = before.follow_storage(request, items, seen, shown)
            run.save()
        for item in items:
            _one(request, run, item, shown, result)
        run.set_state(State.SUCCEEDED, 0)
    except execute.Interrupted:
        run.set_state(State.INTERRUPTED, 130)
        raise
    except MsRecipeError as error:
        run.event("error", problems=[p.as_dict() for p in error.problems])
        run.set_state(State.FAILED, int(error.exit_code))
        raise
    except BaseException:
        run.set_state(State.FAILED, 70)
        raise
    finally:
        run.close()
    return result


def _one(request: Request, run: RunFolder, item: Rendered, progress: Progress, result: Result) -> None:
    stage = item.invocation.stage
    apart = separate.is_separate(request)
    proven = (lambda: execute.finished_on_nodes(request, run, item, progress)) if apart else None
    reason = skip_reason(request, item, proven) if len(request.stages) > 1 else None
    if reason:
        progress.say(f"{stage}: skipped, {reason}")
        attempt = Attempt(stage, 0, state=State.SKIPPED.value, reason=reason)
        run.record.attempts.append(attempt)
        run.event("skipped", stage=stage, reason=reason)
        run.save()
        result.stages[stage] = "skipped"
        return
    if not apart:
        _ready(item)
    proof = execute.run_stage(request, run, item, progress, execute.Hooks(restart.again, before.allocated))
    result.stages[stage] = "done"
    result.answers += proof.facts.pop("answers", [])
    result.facts[stage] = proof.facts
    progress.say(f"{stage}: done{_shown(proof.facts)}")


def _shown(facts: dict[str, Any]) -> str:
    """`` (iteration 40, tp 1, pp 1)``"""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        flat.update({f"{key} {k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return f" ({', '.join(f'{k} {v}' for k, v in flat.items())})" if flat else ""


def _ready(item: Rendered) -> None:
    """What can be seen on this machine before a stage starts: its checkpoint is there (upstream would exit 0)."""
    args = item.invocation.args
    flag = "--load-dir" if "--load-dir" in args else "--load"
    if item.invocation.stage in ("generate", "mcore2hf", "evaluate"):
        folder = Path(str(item.invocation.one(flag)))
        if folder.parent.is_dir() and not (folder / "latest_checkpointed_iteration.txt").exists():
            raise CheckError(
                Problem(f"{folder}/latest_checkpointed_iteration.txt not found: there is no checkpoint to {item.invocation.stage} from",
                        str(item.invocation.origins.get(flag, "")), "run pretrain first, or name another checkpoint")
            )  # fmt: skip


__all__ = ["ALL", "TRAINING", "Request", "Result", "invocation", "plan", "run_stages", "scripts_of"]
