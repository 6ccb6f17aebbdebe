"""``ms-recipe args``: the flags that upstream's entry points accept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json
from ms_recipe.errors import ExitCode, Problem, RecipeError

if TYPE_CHECKING:
    from ms_recipe.upstream.argspec import ArgSpec, Entry, Flag

app = typer.Typer()

_LIKE_PRETRAIN = ("inference.py", "evaluation.py", "posttrain_gpt.py")
_COMPARED = ("dest", "type", "choices", "default", "nargs", "action", "required")


@app.command()
def args(
    entry: Annotated[str | None, typer.Argument(metavar="[ENTRY]", help="An entry point, pretrain_gpt.py say; all when "
                                                                        "left out.")] = None,
    pin: Annotated[str | None, typer.Option("--pin", "-p", help="A pin; the default pin when left out.")] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="One parser of convert_ckpt.py: hf, mg or "
                                                                  "optim.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", "-g", help="Only flags whose name, choices or help has this "
                                                                  "word.")] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option("--diff", metavar="PIN1 PIN2", help="What differs between two "
                                                                                             "pins.")] = None,
    verify: Annotated[Path | None, typer.Option("--verify", metavar="TREE", help="Hold the argspec against the real "
                                                "parsers of a tree (runs upstream, on the cpu backend).")] = None,
    as_json: Json = False,
) -> None:
    """List upstream's flags: type, choices, default, and the line that defines them."""
    from ms_recipe.upstream import argspec

    if diff is not None:
        _diff(argspec.load(diff[0]), argspec.load(diff[1]), entry, as_json)
        return
    spec = argspec.load(pin)
    if verify is not None:
        _verify(spec, verify, as_json)
        return
    entries = [_entry(spec, name, variant) for name in ([entry] if entry else spec.entries)]
    helps = _helps(spec)
    found = {e.name: [f for f in e.flags.values() if _has(f, grep, helps)] for e in entries}
    if as_json:
        print(json.dumps({"pin": spec.pin, "entries": {
            name: {f.name: {**_facts(f), "source": f.source, "variants": f.variants, "help": helps.get(f.source, "")}
                   for f in flags} for name, flags in found.items()}}, ensure_ascii=False))
        return
    for name, flags in found.items():
        shown = flags
        if name in _LIKE_PRETRAIN and "pretrain_gpt.py" in found:
            base = {f.name: f for f in found["pretrain_gpt.py"]}
            shown = [f for f in flags if base.get(f.name) != f]
            print(f"{name}: as pretrain_gpt.py" + (", and:" if shown else ""))
        elif flags or not grep:
            print(f"{name}: {len(flags)} flags")
        for flag in shown:
            print(f"  {_line(flag)}")
            if helps.get(flag.source):
                print(f"      {helps[flag.source]}")


def _entry(spec: ArgSpec, name: str, variant: str | None) -> Entry:
    from ms_recipe.upstream.argspec import ENTRIES

    full = name if name in spec.entries else f"{name}.py" if f"{name}.py" in ENTRIES else name
    found = spec.entry(full)
    if variant is None:
        return found
    try:
        return found.variant(variant)
    except KeyError:
        has = ", ".join(found.variants) or "none"
        raise RecipeError(Problem(f"{full} has no variant {variant}", "", f"it has {has}")) from None


def _helps(spec: ArgSpec) -> dict[str, str]:
    """Upstream's help texts by source line, when the pin's tree is here to read them from."""
    from ms_recipe.errors import UpstreamError
    from ms_recipe.upstream import load_pin, tree_path

    tree = tree_path(spec.pin)
    if not tree.is_dir():
        return {}
    from ms_recipe.upstream.argspec_ast import read_tree

    try:
        read, _ = read_tree(tree, load_pin(spec.pin), with_help=True)
    except UpstreamError:
        return {}
    return {f["source"]: f["help"] for e in read["entrypoints"].values() for f in e["flags"].values() if "help" in f}


def _has(flag: Flag, word: str | None, helps: dict[str, str]) -> bool:
    if not word:
        return True
    text = " ".join([flag.name, flag.name.replace("-", "_"), flag.dest, *map(str, flag.choices or ()),
                     helps.get(flag.source, "")])
    return word.lower() in text.lower()


def _facts(flag: Flag) -> dict[str, Any]:
    return {what: getattr(flag, what) for what in _COMPARED}


def _line(flag: Flag) -> str:
    kind = "" if flag.is_switch else f" {flag.type or 'str'}" + (f" (nargs {flag.nargs})" if flag.nargs else "")
    words = [f"{flag.name}{kind}"]
    if flag.choices is not None:
        words.append("one of " + "|".join(map(str, flag.choices)))
    default = f"default {flag.default!r}" if flag.default is not None else "no default"
    words.append("required" if flag.required else default)
    if flag.action == "store_false":
        words.append(f"sets {flag.dest} to False")
    if flag.variants:
        words.append(f"only {', '.join(flag.variants)}")
    return f"{', '.join(words)}  [{flag.source}]"


def _diff(one: ArgSpec, two: ArgSpec, only: str | None, as_json: bool) -> None:
    names = [only] if only else [n for n in one.entries if n in two.entries]
    result: dict[str, Any] = {}
    for name in names:
        a, b = _entry(one, name, None).flags, _entry(two, name, None).flags
        changed = {}
        for flag in a:
            if flag in b:
                what = {w: [getattr(a[flag], w), getattr(b[flag], w)] for w in (*_COMPARED, "variants")
                        if getattr(a[flag], w) != getattr(b[flag], w)}
                if what:
                    changed[flag] = what
        result[name] = {"added": [f for f in b if f not in a], "removed": [f for f in a if f not in b],
                        "changed": changed}
    different = any(any(r.values()) for r in result.values())
    if as_json:
        print(json.dumps({"from": one.pin, "to": two.pin, "entries": result}, ensure_ascii=False))
    else:
        for name, r in result.items():
            if name in _LIKE_PRETRAIN and r == result.get("pretrain_gpt.py"):
                print(f"{name}: as pretrain_gpt.py")
                continue
            print(f"{name}: {len(r['added'])} added, {len(r['removed'])} removed, {len(r['changed'])} changed")
            for flag in r["added"]:
                print(f"  + {flag}")
            for flag in r["removed"]:
                print(f"  - {flag}")
            for flag, what in r["changed"].items():
                for field, (old, new) in what.items():
                    print(f"  ~ {flag} {field}: {_shown(old, new)}")
    if different:
        raise typer.Exit(int(ExitCode.DIFFERENT))


def _shown(old: Any, new: Any) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple):
        words = [*(f"+{x}" for x in new if x not in old), *(f"-{x}" for x in old if x not in new)]
        return " ".join(words) or "reordered"
    return f"{old!r} -> {new!r}"


def _verify(spec: ArgSpec, tree: Path, as_json: bool) -> None:
    import tempfile

    from ms_recipe import backends
    from ms_recipe.upstream import truth

    tree = tree.absolute()
    env = {**os.environ, **backends.environment("cpu", "pinned")}
    paths = [str(tree), str(tree.parent / "MindSpeed"), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="ms-recipe-args-") as work:
        answers = truth.verify(tree, spec, env, Path(work))
    if as_json:
        print(json.dumps({"pin": spec.pin, "tree": str(tree), "parsers": [
            {"parser": a.parser, "flags": a.flags, "differences": a.differences, "failed": a.failed} for a in answers]},
            ensure_ascii=False))
    else:
        for answer in answers:
            print(f"{answer.parser}: " + (f"did not answer: {answer.failed}" if answer.failed else
                                          f"{answer.flags} flags, {len(answer.differences)} differences"))
            for flag, what, real, ours in answer.differences:
                print(f"  {flag} {what}: real {real!r}, argspec {ours!r}")
    if any(a.failed or a.differences for a in answers):
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
