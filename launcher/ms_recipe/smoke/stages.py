"""The stages of a smoke run, one after the other, each with its time and its comparison."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import backends, resources
from ms_recipe.cluster.hosts import Host, is_loopback
from ms_recipe.errors import CheckError, MsRecipeError, Problem
from ms_recipe.preflight import find_tree
from ms_recipe.recipe import Recipe, load_recipe
from ms_recipe.render import invocation
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, choose_tree
from ms_recipe.runs.sequence import UNSUPPORTED, Result, run_stages
from ms_recipe.smoke import checks
from ms_recipe.smoke.checks import Check

#: Learning rates at which the tiny models learn visibly within the scale's 20 iterations.
SETS = ("pretrain.lr=2e-3", "pretrain.min_lr=2e-4", "pretrain.lr_warmup_fraction=null", "pretrain.lr_warmup_iters=2")
#: Upstream's fixed prompt (MindSpeed-LLM mindspeed_llm/tasks/inference/infer_base.py:37).
PROMPT = "how are you?"
_SEED, _STEPS = 20250429, 200


@dataclass(frozen=True)
class Options:
    """What was asked: ``npus_per_node`` and ``nnodes`` None mean the smallest world that has the recipe's layout."""

    recipe: str
    upstream: str
    work: Path
    npus_per_node: int | None = None
    nnodes: int | None = None
    sets: tuple[str, ...] = ()
    allow_drift: bool = False


@dataclass
class Row:
    """One line of the table. ``state`` is done, failed or refused."""

    stage: str
    seconds: float
    state: str = "done"
    checks: list[Check] = field(default_factory=list)
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Done, and everything compared holds."""
        return self.state != "failed" and all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        found = [{"what": c.what, "ok": c.ok, "wrong": c.wrong} for c in self.checks]
        return {"stage": self.stage, "seconds": round(self.seconds, 1), "state": self.state, "ok": self.ok,
                "reason": self.reason, "compared": found}  # fmt: skip


class Smoke:
    """A smoke run in ``options.work``. ``told`` is called with each row when it is known."""

    def __init__(self, options: Options, told: Callable[[Row], None] = lambda row: None) -> None:
        self.options, self.told = options, told
        self.rows: list[Row] = []
        self.error: MsRecipeError | None = None
        self.work = options.work.absolute()
        base = load_recipe(options.recipe, sets=list(options.sets), scale="tiny", base=self.work)
        tp, pp, cp = (int(base.get(f"parallel.{name}", 1)) for name in ("tp", "pp", "cp"))
        self.tp, self.pp = tp, pp
        smallest = tp * pp * cp if tp * pp * cp > 1 else 2
        nnodes = options.nnodes or (1 if options.npus_per_node else int(base.get("cluster.nnodes", 1)))
        self.nnodes = nnodes
        self.npus = options.npus_per_node or max(1, -(-smallest // nnodes))
        self.sets = [
            *SETS, f"cluster.npus_per_node={self.npus}", f"cluster.nnodes={nnodes}", "generate.nproc_per_node=null",
            f"paths.hf={self.hf}", f"paths.raw_data={resources.path('recipes', 'tiny', 'corpus.parquet')}",
            *options.sets,
        ]  # fmt: skip
        if tp * pp < self.npus * nnodes:  # generate runs on its layout's ranks alone
            self.sets.append(f"generate.nproc_per_node={max(1, min(self.npus, tp * pp))}")
        self.recipe = self.load()
        if options.upstream == "stub":
            self.tree = choose_tree(self.recipe, "cpu", "stub")
        else:
            self.tree = str(find_tree(self.recipe.pin))
        self.returns = (self.recipe.pin, "mcore2hf") not in UNSUPPORTED or options.upstream == "stub"

    @property
    def hf(self) -> Path:
        """The seeded source model."""
        return self.work / "hf"

    @property
    def ok(self) -> bool:
        """Every stage ran and everything compared holds."""
        return self.error is None and all(row.ok for row in self.rows)

    def load(self, *more: str) -> Recipe:
        """The recipe, tiny, with smoke's values and ``more``; each stage gets a free port."""
        port = _free_port()
        ports = [f"cluster.master_port={port}", f"generate.master_port={port}"]
        return load_recipe(
            self.options.recipe, sets=[*self.sets, *ports, *more], scale="tiny", base=self.work
        )  # fmt: skip

    # -- the run

    def run(self) -> None:
        """All stages; what fails ends it (``error``)."""
        with _inside(self.work):
            try:
                self._run()
            except MsRecipeError as error:
                self.error = error

    def _run(self) -> None:
        self._make()
        mcore = Path(str(invocation(self.recipe, "hf2mcore").one("--save-dir")))
        layers = int(self.recipe.get("model.num_layers"))
        self._stage("hf2mcore", "hf2mcore", lambda _: [checks.shapes(self.hf, mcore, self.tp, self.pp, layers)])
        returned = self.work / "returned"
        if self.returns:
            self._stage("mcore2hf (round trip)", "mcore2hf", None, f"ckpt_convert.mcore2hf.load_dir={mcore}",
                        f"paths.hf_out={returned}")  # fmt: skip
        else:
            reason = UNSUPPORTED[self.recipe.pin, "mcore2hf"]
            self._add(Row("mcore2hf", 0.0, "refused", reason=reason))
        corpus = resources.path("recipes", "tiny", "corpus.jsonl").read_text(encoding="utf-8").count("\n")
        self._stage("data_convert", "data_convert", lambda r: [checks.documents(r.facts["data_convert"], corpus)])
        last = int(self.recipe.get("pretrain.train_iters"))
        self._stage("pretrain", "pretrain", lambda r: [checks.losses(checks.records(_logs(r)), last)])
        trained = Path(str(invocation(self.recipe, "mcore2hf").one("--save-dir")))
        generate: tuple[str, ...] = ()
        if self.returns:
            self._stage("mcore2hf", "mcore2hf", None)
        else:
            generate = (f"generate.load={mcore}",)
        # Half precision breaks ties between tokens by rounding; in float32 the texts can be held against each other.
        result = self._stage("generate", "generate", None, "model.bf16=null", *generate)
        started = time.monotonic()
        found = self._worker("check", {
            "source": str(self.hf), "returned": str(returned) if self.returns else None,
            "trained": str(trained) if self.returns else None, "prompt": PROMPT,
            "new_tokens": int(self.recipe.get("generate.max_new_tokens")),
        })  # fmt: skip
        compared = [checks.same_text(result.answers[0] if result.answers else "", found["text"])]
        if self.returns:
            compared += [checks.round_trip(found), checks.exported(found)]
        self._add(Row("compare", time.monotonic() - started, checks=compared))

    def _make(self) -> None:
        """The source: a seeded model of the recipe's tiny shape (a larger tp needs more heads than the shipped ones have)."""
        started = time.monotonic()
        get, tied = self.recipe.get, not self.recipe.get("model.untie_embeddings_and_output_weights", False)
        example = resources.path("recipes", "tiny", "tiny-tied" if tied else "tiny-untied")
        config = json.loads((example / "config.json").read_text(encoding="utf-8"))
        heads, hidden = get("model.num_attention_heads"), get("model.hidden_size")
        config |= {
            "hidden_size": hidden, "intermediate_size": get("model.ffn_hidden_size"), "num_attention_heads": heads,
            "num_key_value_heads": get("model.num_query_groups"), "num_hidden_layers": get("model.num_layers"),
            "head_dim": get("model.kv_channels", hidden // heads), "vocab_size": get("model.padded_vocab_size"),
            "max_position_embeddings": get("model.max_position_embeddings"),
        }  # fmt: skip
        made = self._worker("make", {
            "folder": str(self.hf), "tokenizer": str(example), "config": config, "seed": _SEED, "steps": _STEPS,
            "corpus": str(resources.path("recipes", "tiny", "corpus.jsonl")),
        })  # fmt: skip
        self._add(Row("model", time.monotonic() - started, reason=f"a seeded Qwen3 of {made['parameters']:,} parameters"))

    def _stage(self, name: str, stage: str, compare: Callable[[Result], list[Check]] | None, *sets: str) -> Result:
        started = time.monotonic()
        row = Row(name, 0.0)
        try:
            result = run_stages(self._request(self.load(*sets), stage), Progress("quiet"))
            row.checks = compare(result) if compare else []
            return result
        except MsRecipeError as error:
            row.state, row.reason = "failed", str(error)
            raise
        finally:
            row.seconds = time.monotonic() - started
            self._add(row)

    def _request(self, recipe: Recipe, stage: str) -> Request:
        hosts = None
        if self.nnodes > 1:
            hosts = tuple(Host(_own_name(), slots=self.npus, line=n + 1) for n in range(self.nnodes))
        return Request(
            recipe, [stage], hosts, (), "local", "cpu", self.options.upstream, self.tree, rerun=True,
            allow_drift=self.options.allow_drift, command=["smoke", *sys.argv[2:]],
        )  # fmt: skip

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.told(row)

    def _worker(self, task: str, request: dict[str, Any]) -> dict[str, Any]:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        worker = backends.standin_path().parent / "smoke_worker.py"
        done = subprocess.run([sys.executable, str(worker), task, json.dumps(request)], env=env, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CheckError(Problem(f"transformers could not {task} the model: {last}", str(self.work),
                                     "pip install 'ms-recipe[cpu]'"))  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def _logs(result: Result) -> list[Path]:
    return sorted((result.run.path / "logs").glob("*.log"))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def _own_name() -> str:
    """A name of this machine that its own processes can reach it by, other than a loopback one.

    Raises:
        CheckError: its host name does not resolve.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        name = ""
    if not name or is_loopback(name):
        raise CheckError(Problem("several nodes on one machine need a host name that resolves", socket.gethostname(),
                                 "add it to /etc/hosts, or use --nnodes 1"))  # fmt: skip
    return name


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in ``folder``: run folders and logs go there."""
    before = Path.cwd()
    runs = os.environ.pop("MS_RECIPE_RUNS", None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        if runs is not None:
            os.environ["MS_RECIPE_RUNS"] = runs
