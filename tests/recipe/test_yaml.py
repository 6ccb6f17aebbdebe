"""YAML as people mean it: every YML case of real users, and the edges around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CASES, ms_recipe

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import Number, load_recipe
from ms_recipe.recipe.yaml_text import plain, read_file, read_scalar, read_text
from ms_recipe.render import invocation, render_all


def case(name: str, file: str = "recipe.yaml") -> Path:
    return CASES / name / file


def as_overlay(name: str, tmp_path: Path) -> Path:
    """The case's recipe with its neutral section names (train, convert) as this project's."""
    text = case(name).read_text()
    text = (
        text.replace("train:", "pretrain:").replace("gbs:", "global_batch_size:").replace("mbs:", "micro_batch_size:")
    )
    file = tmp_path / "overlay.yaml"
    file.write_text(text)
    return file


def problems(error: pytest.ExceptionInfo[RecipeError]) -> list[str]:
    return [str(p) for p in error.value.problems]


def test_yml_01_exponents_without_a_dot_are_numbers(tmp_path: Path) -> None:
    recipe = load_recipe("qwen3-0.6b", overlays=[as_overlay("YML-01", tmp_path)])
    assert recipe.get("pretrain.lr") == 1e-05
    assert recipe.get("pretrain.weight_decay") == 0.1
    args = invocation(recipe, "pretrain").args
    assert float(str(args["--lr"])) == 1e-05
    assert (args["--lr"], args["--min-lr"], args["--weight-decay"]) == ("1e-5", "1e-6", "1e-1")


def test_yml_03_off_is_text_and_not_a_choice(tmp_path: Path) -> None:
    overlay = as_overlay("YML-03", tmp_path)
    with pytest.raises(RecipeError) as error:
        invocation(load_recipe("qwen3-0.6b", overlays=[overlay]), "pretrain")
    (text,) = problems(error)
    assert f"{overlay}:2: pretrain.recompute_granularity must be one of full/selective or absent, got off" in text


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "1", "'true'"])
def test_yml_03_a_switch_takes_only_true_and_false(word: str) -> None:
    with pytest.raises(RecipeError, match=r"pretrain\.use_flash_attn is a switch: it must be true or false"):
        invocation(load_recipe("qwen3-0.6b", sets=[f"pretrain.use_flash_attn={word}"]), "pretrain")


def test_yml_05_leading_zeros_are_errors_not_octal(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe("qwen3-0.6b", overlays=[as_overlay("YML-05", tmp_path)])
    found = problems(error)
    assert len(found) == 3
    for text, (line, key, literal) in zip(
        found,
        [
            (2, "pretrain.train_iters", "02000"),
            (3, "pretrain.seq_length", "04096"),
            (5, "cluster.master_port", "06000"),
        ],
        strict=True,
    ):
        assert f":{line}: {key}: {literal} has a leading zero" in text


def test_yml_07_a_duplicate_key_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(str(case("YML-07")))
    assert "key parallel.tp is given twice, on lines 2 and 4" in problems(error)[0]
    nested = tmp_path / "nested.yaml"
    nested.write_text("pretrain:\n  env:\n    A: 1\n    B: 2\n    A: 3\n")
    with pytest.raises(RecipeError, match=r"pretrain\.env\.A is given twice, on lines 3 and 5"):
        load_recipe(str(nested))


def test_yml_09_a_tab_is_one_line(work: Path) -> None:
    done = ms_recipe("show", case("YML-09"), cwd=work)
    assert done.code == 2
    assert done.err.count("\n") == 1 and ":2: a tab in the indentation" in done.err
    assert "Traceback" not in done.err


def test_yml_10_null_leaves_the_flag_out_and_none_is_nowhere(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("paths:\n  mcore:\n  save: /data/out\npretrain:\n  seed: ~\ngenerate:\n  seed:\n")
    recipe = load_recipe("qwen3-0.6b", overlays=[overlay])
    for item in render_all(recipe, ["data_convert", "pretrain", "mcore2hf", "generate"]):
        assert "None" not in item.text
    args = invocation(recipe, "pretrain").args
    assert "--load" not in args and "--seed" not in args and args["--save"] == "/data/out"
    with pytest.raises(
        RecipeError, match=r"paths\.mcore is missing \(ckpt_convert_hf2mcore\.sh\.j2 needs it for --save-dir"
    ):
        render_all(recipe, ["hf2mcore"])


def test_yml_13_a_misspelt_key_is_an_error_with_a_suggestion(tmp_path: Path, work: Path) -> None:
    done = ms_recipe("render", "qwen3-0.6b", "-f", as_overlay("YML-13", tmp_path), cwd=work)
    assert done.code == 2
    assert "unknown key pretrain.trian_iters" in done.err and "did you mean train_iters?" in done.err
    assert not list(work.rglob("*.sh"))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("empty.yaml", "empty.yaml: the file is empty"),
        ("list.yaml", "list.yaml:1: the top level must be a mapping, got list"),
        ("two.yaml", "two.yaml:4: more than one document"),
        ("broken.yaml", "broken.yaml:2: not valid YAML"),
    ],
)
def test_yml_15_the_wrong_file_is_one_line(file: str, reason: str, work: Path) -> None:
    done = ms_recipe("show", case("YML-15", file), cwd=work)
    assert done.code == 2
    assert reason in done.err and done.err.count("\n") == 1


def test_a_missing_file_a_folder_and_other_bytes(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: x\ndescription: caf\xe9\n")
    for path, reason in ((tmp_path / "no.yaml", "not found"), (latin, "latin.yaml:2: not UTF-8 text")):
        with pytest.raises(RecipeError, match=reason):
            load_recipe(str(path))
    folder = tmp_path / "f.yaml"
    folder.mkdir()
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(str(folder))


def test_scalars_of_yaml_1_2() -> None:
    text = "a: !!str 5\nb: 'x'\nc: 1.5e3\nd: [1, 2e-5, off]\ne: 1_000\nf: 0\ng: -5\nh: .5\ni: 12:30\nj: TRUE\nk: yes\nl: 0.0\n"
    data = read_text(text, "x").data
    assert data["a"] == "5" and data["c"] == 1500.0 and str(data["c"]) == "1.5e3"
    assert data["d"] == [1, 2e-5, "off"] and isinstance(data["d"][1], Number)
    assert (data["e"], data["i"], data["k"]) == ("1_000", "12:30", "yes")
    assert (data["f"], data["g"], data["h"], data["j"]) == (0, -5, 0.5, True)
    assert str(data["l"]) == "0.0"


@pytest.mark.parametrize("text", ["0x1F", "0o17", "00.5", "-01"])
def test_other_number_forms_are_errors(text: str) -> None:
    with pytest.raises(RecipeError):
        read_text(f"a: {text}\n", "x")


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("modle:\n  num_layers: 4\nparallel:\n  tp: 1\n  tensor_model_parallel_size: 2\ncluster:\n  nnodes: 0\n"
                    "  launcher: telnet\nenv:\n  HCCL_CONNECT_TIMEOUT: -5\n")  # fmt: skip
    with pytest.raises(RecipeError) as error:
        load_recipe(str(file))
    found = "\n".join(problems(error))
    for part in ("unknown key modle", "did you mean model?", "are the same flag", "cluster.nnodes must be", "local, ssh",
                 "env.HCCL_CONNECT_TIMEOUT must be a whole number"):  # fmt: skip
        assert part in found


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "1",
        "1e-5",
        "1.0",
        "true",
        "no",
        "",
        "a b",
        "a: b",
        "#",
        "~",
        "0x1",
        "[a]",
        "-",
        "'",
        '"',
        "é",
        5,
        True,
        None,
    ],
)
def test_plain_reads_back_the_same(value: object) -> None:
    again = read_scalar(plain(value), "k", "x")
    assert again == value and type(again) is type(value)


def test_crlf_files_read_like_others(tmp_path: Path) -> None:
    file = tmp_path / "crlf.yaml"
    file.write_bytes(b"pretrain:\r\n  lr: 1e-5\r\n  split: |\r\n    a\r\n    b\r\n")
    data = read_file(file).data
    assert data["pretrain"] == {"lr": 1e-5, "split": "a\nb\n"}
