"""Prompts for ``run generate``: upstream takes them only in its chat, line by line on rank 0's standard input.

MindSpeed-LLM mindspeed_llm/tasks/inference/infer_base.py: ``new`` clears the history, ``q`` ends; chat always samples,
so greedy means ``--top-k 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ms_recipe.errors import Problem, RecipeError, raise_all

TASKS = ("greedy", "do_sample", "beam_search", "chat")
_COMMANDS = frozenset(("q", "quit", "exit", "new", "clear"))


def sets(task: str | None, prompts: Sequence[str]) -> list[str]:
    """The ``--set`` values that make the recipe's generate stage run ``task``, with prompts through the chat.

    Raises:
        RecipeError: an unknown task, a task that has no prompts of the user's, or a prompt that cannot be sent.
    """
    if task is not None and task not in TASKS:
        raise RecipeError(Problem(f"no task is called {task}", "--task", f"tasks: {', '.join(TASKS)}"))
    if not prompts:
        return [] if task is None else [f"generate.task={task}"]
    if task == "beam_search":
        raise RecipeError(Problem("upstream's beam search has one fixed prompt", "--task beam_search",
                                  "use greedy or do_sample with --prompt"))  # fmt: skip
    raise_all(problem for number, text in enumerate(prompts, 1) for problem in _wrong(number, text))
    greedy = ["generate.top_k=1"] if task in (None, "greedy") else []
    return ["generate.task=chat", *greedy]


def _wrong(number: int, text: str) -> list[Problem]:
    where = f"--prompt (number {number})"
    if not text.strip():
        return [Problem("is empty", where, "write a text")]
    if "\n" in text or "\r" in text:
        return [Problem("has a line break: upstream reads one line a prompt", where, "put it on one line")]
    if text.strip() in _COMMANDS:
        return [Problem(f"{text.strip()} is a command of upstream's chat", where, "write it in other words")]
    return []


def lines(prompts: Sequence[str]) -> list[str]:
    """What rank 0 reads: each prompt with a history of its own, then the end."""
    out: list[str] = []
    for number, text in enumerate(prompts):
        if number:
            out.append("new")
        out.append(text)
    return [*out, "q"]
