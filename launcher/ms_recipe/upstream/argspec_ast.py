"""The flags of upstream's entry points, read from an assembled tree by AST, without importing anything of it.

The functions that build a parser are followed in the order in which upstream calls them, with argparse's own rules
(a later definition takes an option over under ``conflict_handler='resolve'``), so the last definition wins as it
does in the real parser. How upstream reaches its parsers (MindSpeed-LLM 2.1.0 and the 0day commit):

- training: ``initialize_megatron`` (mindspeed_llm/training/initialize.py:53) wraps Megatron's ``parse_args``
  (megatron/training/arguments.py:23) with ``parse_args_decorator``, which megatron_adaptor.py has done once before:
  ``process_args`` of mindspeed_llm/training/arguments.py runs twice, the entry point's own provider before it;
- convert_ckpt.py: its ``main``, then the loader that ``--load-model-type`` names, then the saver;
- preprocess_data.py: its ``get_args``.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream.argparse_model import Action, Conflict, Group, Parser
from ms_recipe.upstream.argspec import SWITCHES
from ms_recipe.upstream.ast_values import Class, External, Function, Instance, Module, Tree, Unknown, evaluate, members
from ms_recipe.upstream.pins import Pin

CONVERT_VARIANTS = ("hf", "mg", "optim")
_CHECKPOINT = "mindspeed_llm.tasks.checkpoint"
_TRAINING = ("pretrain_gpt.py", "inference.py", "evaluation.py", "posttrain_gpt.py")


class _Reader:
    """Follows parser-building functions. A call that gets the parser and cannot be followed is noted as unread."""

    def follow(self, function: Function, parser: Parser | None, **local: Any) -> Parser:
        names = dict(local)
        args = [a.arg for a in function.node.args.args]
        if function.owner is not None:
            args = args[1:]
        if parser is not None and args:
            names[args[0]] = parser
        found = self.block(function.node.body, function.module, names)
        if found is None and parser is None:
            raise Unknown(f"{function.module.shown}:{function.node.lineno}: no parser is made")
        return parser or found or Parser()

    def block(self, body: list[ast.stmt], module: Module, names: dict[str, Any]) -> Parser | None:
        """Run statements; the parser that they make (None when they make none)."""
        made: Parser | None = None
        for statement in body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                made = self.assign(statement, module, names) or made
            elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
                self.loop(statement, module, names)
            elif isinstance(statement, ast.If):
                made = self.branch(statement, module, names) or made
            elif isinstance(statement, ast.Return) and statement.value is None:
                break
            elif isinstance(statement, ast.Expr | ast.Return) and statement.value is not None:
                self.calls(statement.value, module, names)
        return made

    def assign(self, statement: ast.Assign, module: Module, names: dict[str, Any]) -> Parser | None:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = names.get(target.value.id)
            if isinstance(owner, Parser | Group) and target.attr == "conflict_handler":
                owner.conflict_handler = str(evaluate(value, module, names))
            return None
        made = self.expression(value, module, names)
        if isinstance(target, ast.Name):
            if made is not None:
                names[target.id] = made
            else:
                try:
                    names[target.id] = evaluate(value, module, names)
                except Unknown:
                    names.pop(target.id, None)
        return made if isinstance(made, Parser) else None

    def loop(self, statement: ast.For, module: Module, names: dict[str, Any]) -> None:
        try:
            items = members(evaluate(statement.iter, module, names))
        except Unknown:
            if _mentions(statement.body, "add_argument", "register_args"):
                self.note(statement, module, names)
            return
        assert isinstance(statement.target, ast.Name)
        for item in items:
            self.block(statement.body, module, {**names, statement.target.id: item})

    def branch(self, statement: ast.If, module: Module, names: dict[str, Any]) -> Parser | None:
        try:
            chosen = statement.body if evaluate(statement.test, module, names) else statement.orelse
            return self.block(chosen, module, names)
        except Unknown:
            if _mentions([statement], "add_argument", "register_args"):
                self.note(statement, module, names)
            return None

    def note(self, node: ast.AST, module: Module, names: dict[str, Any]) -> None:
        parser = next((v for v in names.values() if isinstance(v, Parser)), None)
        if parser is not None:
            parser.unread.append(f"{module.shown}:{getattr(node, 'lineno', 0)}: {ast.unparse(node).splitlines()[0]}")

    def calls(self, node: ast.AST, module: Module, names: dict[str, Any]) -> None:
        for call in [n for n in ast.walk(node) if isinstance(n, ast.Call)]:
            self.expression(call, module, names)

    def expression(self, node: ast.AST, module: Module, names: dict[str, Any]) -> Parser | Group | None:
        """A call that makes, changes or passes on a parser."""
        if isinstance(node, ast.Name):
            value = names.get(node.id)
            return value if isinstance(value, Parser | Group) else None
        if not isinstance(node, ast.Call):
            return None
        on: Any = None
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            on = names.get(node.func.value.id)
        if isinstance(on, Parser | Group):
            return self.parser_call(on, node, module, names)
        passed = [names.get(a.id) for a in node.args if isinstance(a, ast.Name)]
        given = next((v for v in passed if isinstance(v, Parser)), None)
        function = self.function(node, on, module, names)
        if isinstance(function, External) and function.name == "argparse.ArgumentParser":
            words = {k.arg: evaluate(k.value, module, names) for k in node.keywords
                     if k.arg in ("allow_abbrev", "conflict_handler")}
            return Parser(words.get("conflict_handler", "error"), words.get("allow_abbrev", True))
        if given is None:
            return None
        if isinstance(function, list):  # the entry point's own provider, then what decorates it
            for one in function:
                self.follow(one, given)
        elif isinstance(function, Function) and function.node.name == "add_parser_argument_choices_value":
            self.add_choice(given, node, module, names)
        elif isinstance(function, Function):
            self.follow(function, given)
        else:
            self.note(node, module, names)
        return given

    def function(self, node: ast.Call, on: Any, module: Module, names: dict[str, Any]) -> Any:
        """What is called: a function of upstream's, a list of them, a name from outside, or None when unknown."""
        try:
            if isinstance(on, Instance) and isinstance(node.func, ast.Attribute):
                return on.of.method(node.func.attr)
            return evaluate(node.func, module, names)
        except Unknown:
            return None

    def add_choice(self, parser: Parser, node: ast.Call, module: Module, names: dict[str, Any]) -> None:
        flag, value = (evaluate(a, module, names) for a in node.args[1:3])
        action = parser.option(flag)
        if action is not None and action.choices is not None:
            action.choices.append(value)

    def parser_call(self, on: Parser | Group, node: ast.Call, module: Module,
                    names: dict[str, Any]) -> Parser | Group | None:
        assert isinstance(node.func, ast.Attribute)
        parser = on.parser if isinstance(on, Group) else on
        name = node.func.attr
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return Group(parser, on.conflict_handler)
        if name == "add_argument":
            action = self.action(node, module, names)
            if action is not None:
                parser.add(action, on.conflict_handler)
        elif name == "set_defaults":
            for word in node.keywords:
                for action in parser.actions:
                    if action.dest == word.arg:
                        action.default = evaluate(word.value, module, names)
        return None

    def action(self, node: ast.Call, module: Module, names: dict[str, Any]) -> Action | None:
        source = f"{module.shown}:{node.lineno}"
        try:
            options = [str(evaluate(a, module, names)) for a in node.args]
            words = {k.arg: self.word(k, module, names) for k in node.keywords}
        except Unknown:
            self.note(node, module, names)
            return None
        if not options or not options[0].startswith("-"):
            return None
        kind = words.get("action") or "store"
        long = next((o for o in options if o.startswith("--")), options[0])
        choices = words.get("choices")
        new = Action(options, words.get("dest") or long.lstrip("-").replace("-", "_"), words.get("type"),
                     None if choices is None else list(choices), words.get("default"), words.get("nargs"), kind,
                     bool(words.get("required")), str(words.get("help") or ""), source)
        if kind in SWITCHES:
            new.nargs = 0
            if "default" not in words and kind in ("store_true", "store_false"):
                new.default = kind == "store_false"
        return new

    def word(self, keyword: ast.keyword, module: Module, names: dict[str, Any]) -> Any:
        if keyword.arg == "type":
            return ast.unparse(keyword.value).rpartition(".")[2]
        if keyword.arg in ("help", "metavar"):
            try:
                return evaluate(keyword.value, module, names)
            except Unknown:
                return ""
        value = evaluate(keyword.value, module, names)
        if isinstance(value, External | Function | Class | Instance | Module):
            raise Unknown(ast.unparse(keyword.value))
        return value


def _mentions(body: Iterable[ast.stmt], *names: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in names for s in body for n in ast.walk(s))


def _function(tree: Tree, module: str, name: str) -> Function:
    found = tree.module(module)
    value = found.look_up(name) if found else None
    if not isinstance(value, Function):
        raise Unknown(f"{module}.{name}")
    return value


def _decorations(tree: Tree) -> int:
    """How many times upstream wraps ``parse_args`` before it is called: each wrap runs ``process_args`` once."""
    count = 0
    for name in ("mindspeed_llm.training.initialize", "mindspeed_llm.tasks.megatron_adaptor"):
        module = tree.module(name)
        for node in ast.walk(module.body) if module else ():
            if isinstance(node, ast.Call):
                direct = isinstance(node.func, ast.Name) and node.func.id == "parse_args_decorator"
                passed = any(isinstance(a, ast.Name) and a.id == "parse_args_decorator" for a in node.args)
                count += direct or passed
    return count


def training_parser(tree: Tree, provider: Function | None = None) -> Parser:
    """The parser of ``initialize_megatron(extra_args_provider=provider)``."""
    process = _function(tree, "mindspeed_llm.training.arguments", "process_args")
    chain = ([provider] if provider else []) + [process] * max(1, _decorations(tree))
    start = _function(tree, "megatron.training.arguments", "parse_args")
    return _Reader().follow(start, None, extra_args_provider=chain, ignore_unknown_args=False)


def evaluation_parser(tree: Tree) -> Parser:
    """The parser of evaluation.py: its ``extra_args_provider`` is read from the call itself."""
    module = tree.module("evaluation")
    if module is None:
        raise Unknown("evaluation.py")
    for node in ast.walk(module.body):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "initialize_megatron":
            for word in node.keywords:
                if word.arg == "extra_args_provider":
                    provider = evaluate(word.value, module, {})
                    if isinstance(provider, Function):
                        return training_parser(tree, provider)
    return training_parser(tree)


def convert_parser(tree: Tree, variant: str) -> Parser:
    """The parser of convert_ckpt.py for ``--load-model-type variant`` (convert_ckpt.py:37-97 at 2.1.0)."""
    reader = _Reader()
    main = _function(tree, "convert_ckpt", "main")
    body = []
    for statement in main.node.body:  # up to the point where main decides on its loader
        if isinstance(statement, ast.If):
            break
        body.append(statement)
    parser = reader.block(body, main.module, {})
    if parser is None:
        raise Unknown(f"{main.module.shown}: main makes no parser")
    reader.follow(_function(tree, f"{_CHECKPOINT}.loader_{variant}", "add_arguments"), parser)
    if variant != "optim":
        reader.follow(_function(tree, f"{_CHECKPOINT}.saver", "add_arguments"), parser)
    return parser


def preprocess_parser(tree: Tree) -> Parser:
    """The parser of preprocess_data.py."""
    return _Reader().follow(_function(tree, "preprocess_data", "get_args"), None)


def _entry(parser: Parser, with_help: bool) -> dict[str, Any]:
    flags = {}
    for action in sorted(parser.actions, key=lambda a: a.options[0]):
        raw = action.fields()
        raw["source"] = action.source
        if with_help and action.help:
            raw["help"] = " ".join(action.help.split())
        flags[action.options[0]] = raw
    return {"allow_abbrev": parser.allow_abbrev, "conflict_handler": parser.conflict_handler, "flags": flags}


def _convert(parsers: dict[str, Parser], with_help: bool) -> dict[str, Any]:
    """One entry for all loaders: a flag names its variants unless all have it; where they differ, ``overrides``."""
    entries = {name: _entry(parser, with_help) for name, parser in parsers.items()}
    merged: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}
    for variant, entry in entries.items():
        for flag, raw in entry["flags"].items():
            if flag not in merged:
                merged[flag] = dict(raw)
            elif _without(merged[flag]) != _without(raw):
                overrides.setdefault(variant, {})[flag] = raw
    for flag, raw in merged.items():
        has = [v for v, e in entries.items() if flag in e["flags"]]
        if len(has) < len(entries):
            raw["variants"] = has
    first = next(iter(entries.values()))
    made: dict[str, Any] = {"allow_abbrev": first["allow_abbrev"], "conflict_handler": first["conflict_handler"],
                            "variant_flag": "--load-model-type", "variants": list(entries),
                            "flags": dict(sorted(merged.items()))}
    if overrides:
        made["overrides"] = overrides
    return made


def _without(raw: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in raw.items() if k not in ("source", "variants", "help")}


def _same_as(entry: dict[str, Any], base_name: str, base: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in entry.items() if k != "flags"}
    own = {n: f for n, f in entry["flags"].items() if base["flags"].get(n) != f}
    without = [n for n in base["flags"] if n not in entry["flags"]]
    return {"same_as": base_name, **rest, **({"without": without} if without else {}), "flags": own}


def read_tree(root: Path, pin: Pin | None = None, with_help: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The argspec of an assembled tree, in the form of vendor/argspec/<pin>.json, and what could not be read.

    ``root`` is the folder MindSpeed-LLM with ``megatron/`` in it and MindSpeed beside it. ``with_help`` adds upstream's
    help texts (never committed: they are upstream's text).

    Raises:
        UpstreamError: an entry point's parser cannot be followed at all.
    """
    copies = {c.to: c.repository for c in pin.copies} if pin else {"megatron": "Megatron-LM"}
    tree = Tree(root, copies)
    problems: list[Problem] = []
    unread: list[str] = []
    entries: dict[str, Any] = {}

    def read(name: str, make: Callable[[], dict[str, Any]], *parsers: str) -> None:
        try:
            entries[name] = make()
        except (Unknown, Conflict, SyntaxError) as error:
            problems.append(Problem(f"the parser of {name} cannot be read: {error}", str(root),
                                    f"is this a tree of pin {pin.name if pin else '?'}"))

    def one(parser: Parser) -> dict[str, Any]:
        unread.extend(u for u in parser.unread if u not in unread)
        return _entry(parser, with_help)

    def convert() -> dict[str, Any]:
        parsers = {}
        for variant in CONVERT_VARIANTS:
            if (root / _CHECKPOINT.replace(".", "/") / f"loader_{variant}.py").is_file():
                parsers[variant] = convert_parser(tree, variant)
                unread.extend(u for u in parsers[variant].unread if u not in unread)
        if not parsers:
            raise Unknown(f"no loader in {_CHECKPOINT}")
        return _convert(parsers, with_help)

    read("convert_ckpt.py", convert)
    read("preprocess_data.py", lambda: one(preprocess_parser(tree)))
    read("pretrain_gpt.py", lambda: one(training_parser(tree)))
    base = entries.get("pretrain_gpt.py")
    for name in _TRAINING[1:]:
        if base is not None and (root / name).is_file():
            make = evaluation_parser if name == "evaluation.py" else training_parser
            read(name, lambda make=make: _same_as(one(make(tree)), "pretrain_gpt.py", base))  # type: ignore[misc]
    if problems:
        raise UpstreamError(*problems)
    return {"pin": pin.name if pin else "", "commits": dict(pin.commits) if pin else {}, "entrypoints": entries}, unread


def dumps(spec: dict[str, Any]) -> str:
    """The argspec as text: one flag a line, so that the difference of two versions reads."""
    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def table(flags: dict[str, Any]) -> str:
        return "{\n" + ",\n".join(f"{line(n)}: {line(f)}" for n, f in flags.items()) + "\n}" if flags else "{}"

    blocks = []
    for name, raw in spec["entrypoints"].items():
        entry = copy.copy(raw)
        flags, overrides = entry.pop("flags"), entry.pop("overrides", None)
        text = f"{line(name)}: {line(entry)[:-1]}, \"flags\": {table(flags)}"
        if overrides:
            text += ', "overrides": {\n' + ",\n".join(f"{line(v)}: {table(f)}" for v, f in overrides.items()) + "\n}"
        blocks.append(text + "}")
    return ("{\n" + f"\"pin\": {line(spec['pin'])},\n\"commits\": {line(spec['commits'])},\n\"entrypoints\": {{\n"
            + ",\n".join(blocks) + "\n}\n}\n")
