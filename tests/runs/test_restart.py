"""Starting again: what is decided between two attempts. With real hosts: tests/cluster/test_run_nodes.py."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from ms_recipe.cluster.checks import Row
from ms_recipe.cluster.hosts import Host
from ms_recipe.errors import CheckError, Problem, StageError
from ms_recipe.runs import execute, restart

FAILED = execute.Failed(Problem("pretrain failed on node 1", "b"))
ITEM: Any = SimpleNamespace(invocation=SimpleNamespace(stage="pretrain"))


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def request(**recipe: Any) -> Any:
    names = {"run.restart_wait_seconds": 0, **{k.replace("__", "."): v for k, v in recipe.items()}}
    return SimpleNamespace(
        hosts=(Host("a"), Host("b")), spares=(Host("c"),), launcher="ssh", check=True, shared=True, max_restarts=1,
        recipe=SimpleNamespace(get=lambda name, default=None: names.get(name, default)))  # fmt: skip


def folder() -> Any:
    record = SimpleNamespace(nodes=[{}, {}], spares_used=[], attempts=[SimpleNamespace(failure={"kind": "lost", "node": 1})])
    return SimpleNamespace(record=record, save=lambda: None, event=lambda *_, **__: None)


def looks(monkeypatch: pytest.MonkeyPatch, *answers: list[Row]) -> None:
    todo = list(answers)
    monkeypatch.setattr(restart, "_look", lambda *_: todo.pop(0) if len(todo) > 1 else todo[0])


def test_a_host_that_is_there_gets_three_looks_before_a_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [Row("port", 0, "a", "failed", "MASTER_PORT 6000 cannot be used")]
    asked, said = request(), Said()
    looks(monkeypatch, busy, busy, [])
    restart.again(asked, folder(), ITEM, FAILED, said)  # type: ignore[arg-type]
    assert [h.name for h in asked.hosts] == ["a", "b"] and sum("not yet fit" in line for line in said.lines) == 2
    looks(monkeypatch, busy, busy, busy, [])
    restart.again(asked, folder(), ITEM, FAILED, said)  # type: ignore[arg-type]
    assert [h.name for h in asked.hosts] == ["c", "b"] and asked.spares == ()


def test_node_0_is_kept_where_all_nodes_are_told_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = request(cluster__master_addr="10.0.0.1"), Said()
    looks(monkeypatch, [Row("reachable", 0, "a", "failed", "no answer")])
    with pytest.raises(StageError, match=r"b: pretrain failed on node 1\na: not started again: reachable: no answer"):
        restart.again(asked, folder(), ITEM, FAILED, said)  # type: ignore[arg-type]
    assert asked.hosts[0].name == "a" and any("cluster.master_addr names it" in line for line in said.lines)


def test_without_checks_the_failure_tells_who_is_dead() -> None:
    asked, said = request(), Said()
    asked.check = False
    restart.again(asked, folder(), ITEM, FAILED, said)  # type: ignore[arg-type]
    assert [h.name for h in asked.hosts] == ["a", "c"] and any("not checked again (--no-check)" in line for line in said.lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_waits(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def interrupt(_: float) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(execute.Interrupted):
        restart.again(request(), folder(), ITEM, FAILED, Said())  # type: ignore[arg-type]


def test_a_second_attempt_that_cannot_begin_names_the_first_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [FAILED, CheckError(Problem("training cannot go on", "c", "copy the parts"))]
    monkeypatch.setattr(execute, "_attempt", lambda *_: (_ for _ in ()).throw(errors.pop(0)))
    with pytest.raises(StageError) as caught:
        execute._attempts(request(), folder(), ITEM, None, {}, Said(), execute.Hooks(lambda *_: None))  # type: ignore[arg-type]
    assert [str(p) for p in caught.value.problems] == [
        "b: pretrain failed on node 1", "c: not started again: training cannot go on; copy the parts"]
