"""The argspec: loading, the committed files, reading by AST, and (with a real tree) the truth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ms_recipe import backends
from ms_recipe.errors import UpstreamError
from ms_recipe.upstream import argspec, argspec_ast, load_pin, truth
from ms_recipe.upstream.argspec import ArgSpec
from upstream_repos import make_upstream

HERE = Path(__file__).resolve().parent
REAL = os.environ.get("MS_RECIPE_TREE")  # an assembled tree of a shipped pin (MS_RECIPE_TREE_PIN, mcore-0.8)
REAL_PIN = os.environ.get("MS_RECIPE_TREE_PIN", "mcore-0.8")

# Flags of each parser, as upstream's own have them.
COUNTS = {"mcore-0.8": {"preprocess_data.py": 42, "pretrain_gpt.py": 585, "inference.py": 585, "evaluation.py": 596,
                        "posttrain_gpt.py": 585, "hf": 38, "mg": 43, "optim": 39},
          "qwen3-0day": {"preprocess_data.py": 40, "pretrain_gpt.py": 574, "inference.py": 574, "evaluation.py": 585,
                         "posttrain_gpt.py": 574, "hf": 36, "mg": 41, "optim": 37}}


@pytest.mark.parametrize("pin", COUNTS)
def test_committed_counts(pin: str) -> None:
    spec = argspec.load(pin)
    assert spec.commits == load_pin(pin).commits
    for name, count in COUNTS[pin].items():
        entry = spec.entry(name) if name.endswith(".py") else spec.entry("convert_ckpt.py").variant(name)
        assert len(entry.flags) == count, name


def test_flags_as_upstream_has_them() -> None:
    entry = argspec.load("mcore-0.8").entry("pretrain_gpt.py")
    flag = entry.flags["--micro-batch-size"]
    assert (flag.dest, flag.type, flag.default, flag.nargs, flag.action) == ("micro_batch_size", "int", None, None, "store")
    assert flag.source.startswith("Megatron-LM/megatron/training/arguments.py:")
    bias = entry.flags["--disable-bias-linear"]
    assert (bias.dest, bias.action, bias.default, bias.is_switch) == ("add_bias_linear", "store_false", True, True)
    assert entry.flags["--data-path"].many
    assert "qwen3" in (entry.flags["--prompt-type"].choices or ())
    assert "qwen3" not in (argspec.load("qwen3-0day").entry("pretrain_gpt.py").flags["--prompt-type"].choices or ())
    assert not entry.allow_abbrev
    assert argspec.load("mcore-0.8").entry("evaluation.py").flags["--task-data-path"].default == []


def test_convert_variants() -> None:
    entry = argspec.load("mcore-0.8").entry("convert_ckpt.py")
    assert entry.variant_flag == "--load-model-type"
    assert entry.variant("hf").flags["--tokenizer-model"].required
    assert "--tokenizer-model" not in entry.variant("mg").flags
    assert "--lora-load" in entry.variant("mg").flags
    with pytest.raises(KeyError):
        entry.variant("nix")


def test_suggestions_and_unknown_entry() -> None:
    spec = argspec.load()
    assert spec.entry("pretrain_gpt.py").suggest("micro_batchsize")[0] == "--micro-batch-size"
    with pytest.raises(UpstreamError, match=r"did you mean pretrain_gpt\.py"):
        spec.entry("pretrain.py")


@pytest.mark.parametrize("pin", COUNTS)
def test_nothing_is_missing_for_upstreams_own_scripts(pin: str) -> None:
    """Every flag of every Qwen3 script that upstream ships at the pin is known, and takes what it is given."""
    scripts = json.loads((HERE.parent / "render" / "upstream_invocations.json").read_text())
    seen = 0
    for script in scripts.values():
        entry = argspec.load(pin).entry(script["entrypoint"])
        if entry.variants:
            entry = entry.variant(script["args"]["--load-model-type"])
        assert [n for n in script["args"] if n not in entry.flags] == [], script["script_path"]
        seen += 1
    assert seen


def test_reading_by_ast_follows_argparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_recipe.upstream.assemble import sync

    made = make_upstream(tmp_path)
    monkeypatch.setenv("MS_RECIPE_PINS", str(made.pins))
    monkeypatch.setenv("MS_RECIPE_HOME", str(made.home))
    sync(load_pin("mini"))
    spec = argspec.load("mini")  # sync has made one, as the pin has none shipped
    flags = spec.entry("pretrain_gpt.py").flags
    assert flags["--timeout"].default == 30, "the later definition wins"
    assert flags["--timeout"].source == "MindSpeed-LLM/mindspeed_llm/training/arguments.py:32"
    assert flags["--templates"].default == "<MindSpeed-LLM>/configs/templates.json"
    assert flags["--strict"].choices == ("one", "two")
    assert flags["--level"].choices == (0, 1, 2)
    assert flags["--big"].default == 1024
    assert flags["--position"].choices == ("rope", "none", "alibi", "alibi"), "process_args runs twice"
    assert (flags["--no-fusion"].dest, flags["--no-fusion"].default) == ("fusion", True)
    assert flags["--wide"].source == "MindSpeed/mindspeed/features_manager/wide.py:7"
    assert "--task" not in flags
    assert spec.entry("evaluation.py").flags["--task"].default == []
    assert set(spec.entry("inference.py").flags) == set(flags)
    assert spec.entry("preprocess_data.py").flags["--map-keys"].type == "loads"
    assert set(spec.entry("convert_ckpt.py").variant("hf").flags) == {"--load-model-type", "--tokenizer-model", "--size"}


def test_a_parser_that_cannot_be_followed_is_said(tmp_path: Path) -> None:
    for name, text in {"preprocess_data.py": "def get_args():\n    return None\n", "convert_ckpt.py": "x = 1\n"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UpstreamError) as error:
        argspec_ast.read_tree(tmp_path)
    text = str(error.value)
    assert "the parser of preprocess_data.py cannot be read" in text
    assert "the parser of pretrain_gpt.py cannot be read" in text


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    made = make_upstream(tmp_path)
    file = made.root / "MindSpeed-LLM" / "preprocess_data.py"
    file.write_text(file.read_text().replace("    add_data(parser)\n", "    add_data(parser)\n    elsewhere.add(parser)\n"))
    tree = argspec_ast.Tree(made.root / "MindSpeed-LLM")
    assert argspec_ast.preprocess_parser(tree).unread == ["MindSpeed-LLM/preprocess_data.py:13: elsewhere.add(parser)"]


@pytest.mark.skipif(not REAL, reason="MS_RECIPE_TREE is not set")
def test_committed_argspec_is_what_the_tree_says() -> None:
    pin = load_pin(REAL_PIN)
    read, unread = argspec_ast.read_tree(Path(str(REAL)), pin)
    assert unread == []
    assert argspec_ast.dumps(read) == argspec.argspec_file(pin).read_text()


@pytest.mark.torch
@pytest.mark.skipif(not REAL, reason="MS_RECIPE_TREE is not set")
def test_truth_against_the_real_parsers(tmp_path: Path) -> None:
    tree = Path(str(REAL)).absolute()
    env = {**os.environ, **backends.environment("cpu", "pinned"), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(tree), str(tree.parent / "MindSpeed"), env["PYTHONPATH"]])
    answers = truth.verify(tree, argspec.load(REAL_PIN), env, tmp_path)
    assert [(a.parser, a.failed) for a in answers if a.failed] == []
    assert [(a.parser, a.differences) for a in answers if a.differences] == []


def test_compare_sees_every_kind_of_difference(tmp_path: Path) -> None:
    spec = ArgSpec({"pin": "x", "entrypoints": {"a.py": {"flags": {
        "--a": {"type": "int", "default": 1}, "--b": {"choices": ["x"]}, "--c": {}}}}})
    real = {name: {"dest": name[2:], "type": None, "choices": None, "default": None, "nargs": None, "action": "store",
                   "required": False} for name in ("--a", "--b", "--d")}
    real["--a"].update(type="int", default=True)
    found = truth.compare(real, dict(spec.entry("a.py").flags), tmp_path)
    assert found == [("--a", "default", True, 1), ("--b", "choices", None, ["x"]), ("--c", "flag", False, True),
                     ("--d", "flag", True, False)]
