"""Scripts read without running them, against bash that runs them with recording stubs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Stub
from hypothesis import given, settings
from hypothesis import strategies as st

import script_shapes as shapes
from ms_recipe.errors import RecipeError
from ms_recipe.scripts import arith, tree
from ms_recipe.scripts.program import meanings, orphans
from ms_recipe.scripts.shell import read_script, read_text
from ms_recipe.upstream import argspec

_SHELLS_OWN = {"HOME", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "STUB_OUT", "MS_RECIPE_TREE", "ASCEND_HOME_PATH"}


def by_bash(stub: Stub, work: Path, text: str) -> list[list[str]]:
    script = work / "script.sh"
    script.write_text(text)
    stub.run(script, work)
    return [call["argv"] for call in stub.calls()]


@pytest.mark.parametrize("name", shapes.SHELL)
def test_words_are_those_that_bash_makes(name: str, stub: Stub, work: Path) -> None:
    text, kinds = shapes.SHELL[name]
    script = read_text(text)
    ours = [command.argv[1:] for command in script.commands if command.argv[0] in ("python", "torchrun")]
    assert ours == by_bash(stub, work, text)
    assert [note.kind for note in script.notes if note.kind not in ("condition",)] == kinds


def test_environment_is_what_was_exported_at_that_moment(stub: Stub, work: Path) -> None:
    text = shapes.SHELL["prefix"][0]
    ours = [c.env for c in read_text(text).commands if c.argv[0] == "python"]
    by_bash(stub, work, text)
    assert ours == [{"A": "1", "B": "2 3"}, {"E": "5", "F": "6"}, {"F": "6"}]
    for mine, call in zip(ours, stub.calls(), strict=True):
        assert mine.items() <= call["env"].items()


def test_pretraining_shape_is_understood(stub: Stub, work: Path) -> None:
    script = read_text(shapes.PRETRAIN, "mine.sh")
    assert [c.argv[1:] for c in script.commands if c.argv[0] == "torchrun"] == by_bash(stub, work, shapes.PRETRAIN)
    (meaning,) = meanings(script, argspec.load("mcore-0.8"))
    assert (meaning.entry, meaning.launcher, meaning.log) == ("pretrain_gpt.py", "torchrun", "logs/train.log")
    assert meaning.launcher_args["nproc_per_node"] == "8"
    assert meaning.args["--spec"] == ["mindspeed_llm.tasks.models.spec.qwen3_spec", "layer_spec"]
    assert meaning.args["--load"] == "./weights/my model"  # which bash tears into two words
    assert meaning.args["--global-batch-size"] == "16"
    kinds = {note.kind for note in meaning.notes}
    assert kinds == {"repeated", "unquoted"}
    assert {n.text for n in script.notes if n.kind == "unused"} == {"WORLD_SIZE"}


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("python x.py\nA=$(hostname)\npython x.py $A\n", "unknown", 2),
        ("source ./conf.sh\npython x.py\n", "source", 1),
        ("eval $X\npython x.py\n", "skipped", 1),
        ("python x.py\n   | tee log\n", "orphan", 2),
        ("python x.py --a \\  \n --b\n", "blank", 1),
        ("python x.py --a \\\r\n --b\r\n", "crlf", 1),
        ("A=<your address>\npython x.py\n", "syntax", 1),
        ("if grep -q x y; then\n python x.py\nfi\n", "condition", 1),
        ("while true; do A=1; done\npython x.py\n", "skipped", 1),
        ("read A\npython x.py $A\n", "unknown", 1),
    ],
)
def test_what_cannot_be_read_is_named_by_line(text: str, kind: str, line: int) -> None:
    script = read_text(text)
    assert (kind, line) in {(note.kind, note.line) for note in script.notes}, script.notes


def test_slips_of_a_line_end_are_read_as_meant() -> None:
    for text in ("python x.py --a \\  \n --b\n", "python x.py --a \\\r\n --b\r\n", "python x.py --a --b \\"):
        assert read_text(text).commands[0].argv == ["python", "x.py", "--a", "--b"]
    script = read_text("python x.py --a\n  --b 1\n")
    assert [note.line for note in orphans(script)] == [2]


@pytest.mark.parametrize(
    ("line", "launcher", "args"),
    [
        ("torchrun --nproc_per_node=4 --nnodes 2 a.py --x 1", "torchrun", {"nproc_per_node": "4", "nnodes": "2"}),
        ("python -m torch.distributed.launch --nproc_per_node 4 a.py --x 1", "torchrun", {"nproc_per_node": "4"}),
        ("msrun --worker_num 8 --local_worker_num 4 a.py --x 1", "msrun", {"worker_num": "8", "nproc_per_node": "4"}),
        ("mpirun -np 8 --allow-run-as-root python a.py --x 1", "mpirun", {"np": "8", "allow-run-as-root": ""}),
        ("nohup python3 -u a.py --x 1 &", "python", {}),
        ("env A=1 torchrun --standalone a.py --x=1", "torchrun", {"standalone": ""}),
    ],
)
def test_launchers(line: str, launcher: str, args: dict[str, str]) -> None:
    (meaning,) = meanings(read_text(line + "\n"), None)
    assert (meaning.launcher, meaning.launcher_args, meaning.args) == (launcher, args, {"--x": "1"})
    if line.startswith("env"):
        assert meaning.env == {"A": "1"}


@given(st.recursive(st.integers(0, 99).map(str), lambda e: st.tuples(e, st.sampled_from("+-*"), e).map(
    lambda t: f"({t[0]}{t[1]}{t[2]})"), max_leaves=6))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_arithmetic_is_pythons_for_whole_numbers(text: str) -> None:
    assert arith.evaluate(text, lambda _: "") == eval(text)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    tree._parser.cache_clear()
    with pytest.raises(RecipeError, match=r"pip install 'ms-recipe\[import\]'"):
        read_text("python x.py\n")
    tree._parser.cache_clear()


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        read_script(tmp_path / "none.sh")
    (tmp_path / "b.sh").write_bytes(b"python x.py \xff\n")
    with pytest.raises(RecipeError, match="no UTF-8"):
        read_script(tmp_path / "b.sh")
