"""A script's commands understood: entry point, launcher, arguments by their arity, environment, log.

``Meaning`` is what two scripts are compared by and what a recipe is made of. Arguments are told apart from their
values by the pin's argspec, so that ``--spec A B`` is one flag with two values and a path with blanks that bash tore
apart is one path again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ms_recipe.scripts.shell import Command, Script
from ms_recipe.scripts.tree import Note
from ms_recipe.scripts.values import Word

if TYPE_CHECKING:
    from ms_recipe.upstream.argspec import ArgSpec, Entry, Flag

Arg = bool | str | list[str]

# torchrun's own names for the same thing, and msrun's and mpirun's.
_LAUNCHER_NAMES = {
    "nproc_per_node": "nproc_per_node",
    "nproc-per-node": "nproc_per_node",
    "local_worker_num": "nproc_per_node",
    "node-rank": "node_rank",
    "master-addr": "master_addr",
    "master-port": "master_port",
    "np": "np",
    "n": "np",
}
_LAUNCHER_SWITCHES = {"standalone", "no_python", "no-python", "m", "module", "allow-run-as-root", "bind-to-core"}
_WRAPPERS = {"nohup", "time", "stdbuf", "command", "exec", "sudo", "numactl", "taskset", "env"}
_DATA_PATHS = ("data_path",)
_WEIGHT = re.compile(r"[0-9.eE+-]+")


@dataclass
class Meaning:
    """What one launch of a script does.

    ``args`` holds upstream's flags in the order of their last occurrence's place in the line: True, one text, or a
    list of texts. ``lines`` and ``notes`` tell where things stand in the script.
    """

    source: str
    line: int
    entry: str
    launcher: str
    launcher_args: dict[str, str] = field(default_factory=dict)
    args: dict[str, Arg] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    log: str | None = None
    stderr_in_log: bool = False
    entry_path: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)


def entry_of(spec: ArgSpec | None, name: str) -> Entry | None:
    """The argspec's entry point ``name``, or None when the pin has none of that name."""
    return spec.entry(name) if spec is not None and name in spec.entries else None


def meanings(script: Script, spec: ArgSpec | None) -> list[Meaning]:
    """The launches of a script: each python, torchrun, msrun or mpirun command that starts a .py file."""
    found = []
    for command in script.commands:
        meaning = _launch(script, command, spec)
        if meaning is not None:
            found.append(meaning)
    return found


def orphans(script: Script) -> list[Note]:
    """Lines that bash takes for commands though they are arguments: the line before them lost its backslash."""
    return [
        Note(command.line, "orphan", " ".join(command.argv))
        for command in script.commands
        if command.argv and command.argv[0].startswith("-")
    ]


def _unwrapped(words: list[Word], env: dict[str, str]) -> list[Word]:
    while words:
        name = PurePosixPath(words[0].text).name
        if name not in _WRAPPERS:
            return words
        words = words[1:]
        while words and (words[0].text.startswith("-") or "=" in words[0].text):
            key, equals, value = words[0].text.partition("=")
            if equals and key.isidentifier():
                env[key] = value
            words = words[1:]
    return words


def _launch(script: Script, command: Command, spec: ArgSpec | None) -> Meaning | None:
    env = dict(command.env)
    words = _unwrapped(command.words, env)
    if not words:
        return None
    name = PurePosixPath(words[0].text).name
    rest = words[1:]
    launcher = ""
    options: dict[str, str] = {}
    if name in {"mpirun", "mpiexec"}:
        launcher = "mpirun"
        options, rest = _options(rest, stop={"python", "python3", "torchrun", "bash"})
        if rest and PurePosixPath(rest[0].text).name.startswith("python"):
            rest = rest[1:]
    elif name in {"torchrun", "msrun", "accelerate", "deepspeed"}:
        launcher = name
        options, rest = _options(rest, stop=set())
    elif re.fullmatch(r"python[0-9.]*", name):
        launcher = "python"
        while rest and rest[0].text in {"-u", "-B", "-O", "-E", "-s"}:
            rest = rest[1:]
        if len(rest) > 1 and rest[0].text == "-m" and rest[1].text.startswith("torch.distributed."):
            launcher = "torchrun"
            options, rest = _options(rest[2:], stop=set())
    if not launcher or not rest:
        return None
    path = rest[0].text
    if not path.endswith(".py"):
        return None
    meaning = Meaning(
        script.name,
        command.line,
        PurePosixPath(path).name,
        launcher,
        dict(options),
        env=env,
        log=command.outputs[0] if command.outputs else None,
        stderr_in_log=command.stderr_too,
        entry_path=path,
    )
    entry = entry_of(spec, meaning.entry)
    if spec is not None and entry is None:
        meaning.notes.append(Note(command.line, "unlisted", f"the pin has no entry point {path}"))
    _arguments(meaning, rest[1:], entry)
    return meaning


def _options(words: list[Word], stop: set[str]) -> tuple[dict[str, str], list[Word]]:
    """The launcher's own options, under torchrun's names, and what follows them."""
    options: dict[str, str] = {}
    index = 0
    while index < len(words):
        text = words[index].text
        if not text.startswith("-"):
            break
        key, equals, value = text.lstrip("-").partition("=")
        key = _LAUNCHER_NAMES.get(key, key)
        if equals:
            options[key] = value
        elif key in _LAUNCHER_SWITCHES or index + 1 >= len(words) or _is_no_value(words[index + 1].text, stop):
            options[key] = ""
        else:
            run = _run(words, index + 1)
            options[key] = " ".join(word.text for word in run)
            index += len(run)
        index += 1
    return options, words[index:]


def _is_no_value(text: str, stop: set[str]) -> bool:
    return text.startswith("--") or text in stop or text.endswith(".py")


def _arguments(meaning: Meaning, words: list[Word], entry: Entry | None) -> None:
    index = 0
    while index < len(words):
        word = words[index]
        name, equals, inline = word.text.partition("=")
        if not name.startswith("--") or name == "--":
            run = _run(words, index)
            text = " ".join(w.text for w in run)
            meaning.notes.append(Note(word.line, "stray", f"{text!r} belongs to no flag"))
            index += len(run)
            continue
        flag = entry.flags.get(name) if entry else None
        values: list[Word] = [Word(inline, word.line)] if equals else []
        index += 1
        while not equals and index < len(words) and _takes(flag, values, words[index]):
            values.append(words[index])
            index += 1
        if entry is not None and flag is None:
            close = entry.suggest(name)
            hint = f"; did you mean {close[0]}?" if close else ""
            meaning.notes.append(Note(word.line, "unlisted", f"{name} is not a flag of {entry.name}{hint}"))
        _store(meaning, name, flag, values, word)


def _run(words: list[Word], index: int) -> list[Word]:
    """The word at ``index`` and those that bash split off the same variable."""
    end = index + 1
    while end < len(words) and words[index].scalar and words[end].scalar == words[index].scalar:
        end += 1
    return words[index:end]


def _takes(flag: Flag | None, values: list[Word], word: Word) -> bool:
    """Whether ``word`` is a(nother) value of ``flag``."""
    if word.text.startswith("--") and len(word.text) > 2:
        return False
    if flag is None:
        return not (values and values[-1].text.startswith("-")) or not word.text.startswith("-")
    if flag.is_switch:
        return False
    same = bool(values) and word.scalar is not None and values[-1].scalar == word.scalar
    if flag.nargs in ("+", "*"):
        return not (word.text.startswith("-") and len(word.text) > 1 and not re.fullmatch(r"-[0-9.]+", word.text))
    count = flag.nargs if isinstance(flag.nargs, int) else 1
    return len(values) < count or same


def _store(meaning: Meaning, name: str, flag: Flag | None, values: list[Word], word: Word) -> None:
    texts = [value.text for value in values]
    arg: Arg
    if not texts:
        arg = True
    elif flag is not None and flag.many:
        arg = [" ".join(texts)] if _one_path(flag, values) else texts
    elif flag is None and len(texts) > 1 and not _one_variable(values):
        arg = texts
    else:
        arg = " ".join(texts)
    if _one_variable(values) and len(texts) > 1 and arg != texts:
        variable = values[0].scalar[0] if values[0].scalar else ""
        meaning.notes.append(Note(word.line, "unquoted", f"{name} ${variable}: bash splits it into {len(texts)} words"))
    if name in meaning.args:
        same = meaning.args[name] == arg
        what = "twice" if same else f"twice, as {_show(meaning.args[name])} and as {_show(arg)}: the last one counts"
        meaning.notes.append(Note(word.line, "repeated", f"{name} is given {what}"))
    meaning.args[name] = arg
    meaning.lines[name] = word.line
    if any(value.unknown for value in values):
        meaning.unknown.add(name)
        meaning.notes.append(Note(word.line, "unknown", f"the value of {name} is not known without running the script"))


def _one_variable(values: list[Word]) -> bool:
    return bool(values) and values[0].scalar is not None and all(v.scalar == values[0].scalar for v in values)


def _one_path(flag: Flag, values: list[Word]) -> bool:
    """Whether several words of a data path are one path with blanks: a blend alternates weights and prefixes."""
    if len(values) < 2 or not flag.dest.endswith(_DATA_PATHS) or not _one_variable(values):
        return False
    return not _WEIGHT.fullmatch(values[0].text) and values[0].text.lower() in {"your", "the", "path"}


def _show(arg: Arg) -> str:
    return "true" if arg is True else " ".join(arg) if isinstance(arg, list) else str(arg)
