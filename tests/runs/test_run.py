"""``ms-recipe run`` on a torch-free tree: proofs, what is kept, what is skipped, resume, locks, prompts, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Result, clean_env, ms_recipe

import fake_files

sys.path.insert(0, str(Path(__file__).parent))
import fake_upstream

HF = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 32, "vocab_size": 640, "tie_word_embeddings": True, "model_type": "qwen3"}  # fmt: skip


@dataclass
class Place:
    """A folder to run in, the fake tree, and the recipe's sets."""

    work: Path
    tree: Path

    def words(self, *words: str) -> list[str]:
        sets = {
            "paths.hf": self.work / "hf", "paths.raw_data": self.work / "raw.jsonl", "cluster.tree": self.tree,
            "cluster.setup": f"'PATH={self.tree.parent}/bin:$PATH'", "cluster.npus_per_node": 1, "pretrain.global_batch_size": 8,
        }  # fmt: skip
        out = [*words, "--recipe", "qwen3-0.6b", "--scale", "tiny", "--allow-drift", "--no-check"]
        for key, value in sets.items():
            out += ["--set", f"{key}={value}"]
        return out

    def env(self) -> dict[str, str]:
        return clean_env(ASCEND_HOME_PATH="/none")

    def run(self, *words: str) -> Result:
        return ms_recipe("run", *self.words(*words), cwd=self.work, env=self.env())

    def faults(self, *words: str) -> None:
        (self.tree / "logs" / "faults").write_text("\n".join(words))

    def calls(self) -> list[str]:
        file = self.tree / "logs" / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def save(self, *parts: str) -> Path:
        return self.work.joinpath("ckpt/Qwen3-0.6B", *parts)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    work = tmp_path / "work"
    work.mkdir()
    fake_files.hf_folder(work / "hf", HF)
    (work / "raw.jsonl").write_text('{"text": "a"}\n')
    return Place(work, fake_upstream.make(tmp_path, sys.executable))


def last(place: Place) -> dict:
    folder = sorted((place.work / "runs").iterdir(), key=lambda p: p.stat().st_mtime_ns)[-1]
    return json.loads((folder / "run.json").read_text())


def test_all_runs_every_stage_to_its_proof_and_a_second_time_skips_them(place: Place) -> None:
    done = place.run("all")
    assert done.code == 0, done.err
    for stage in ("hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate"):
        assert f"{stage}: done" in done.err
    assert done.out.strip() == "fine, thank you\nand you?"
    assert not list(place.work.rglob("*.incomplete-*"))
    record = last(place)
    assert record["state"] == "succeeded" and [a["stage"] for a in record["attempts"]] == ["hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate"]
    assert all(a["proof"]["ok"] for a in record["attempts"])
    before = len(place.calls())
    done = place.run("all")
    assert done.code == 0 and done.err.count("skipped, finished before, and its inputs did not change") == 4
    assert len(place.calls()) == before + 1
    (place.work / "raw.jsonl").write_text('{"text": "b"}\n')
    done = place.run("all", "--json")
    assert json.loads(done.out)["stages"]["data_convert"] == "done" and json.loads(done.out)["stages"]["hf2mcore"] == "skipped"


def test_layers_that_pp_does_not_divide_exit_0_upstream_and_4_here(place: Place) -> None:
    done = place.run("hf2mcore", "--set", "parallel.pp=3", "--set", "model.num_layers=4")
    assert done.code == 4
    assert "hf2mcore ended with exit code 0 but is not complete" in done.err and "the converter's saver died" in done.err
    assert not (place.work / "model_weights/Qwen3-0.6B-mcore").exists()
    assert list((place.work / "model_weights").glob("Qwen3-0.6B-mcore.incomplete-*"))
    assert last(place)["state"] == "failed" and last(place)["exit_code"] == 4


@pytest.mark.parametrize(
    ("stage", "fault", "reason"),
    [("hf2mcore", "saver-killed", "torn"), ("data_convert", "half-data", "corpus"), ("data_convert", "no-documents", "no token"),
     ("mcore2hf", "half-hf", "safetensors"), ("generate", "silent", "0 of 1 texts were generated")],
)  # fmt: skip
def test_what_upstream_calls_success_without_a_result_is_a_failure(place: Place, stage: str, fault: str, reason: str) -> None:
    assert place.run("all").code == 0
    earlier = {p: p.read_bytes() for p in place.work.rglob("*") if p.is_file() and "runs" not in p.parts and "logs" not in p.parts}
    place.faults(fault)
    done = place.run(stage)
    assert done.code == 4, done.err
    assert "ended with exit code 0 but is not complete" in done.err
    if reason != "corpus":
        assert reason in done.err
    for file, data in earlier.items():
        assert file.read_bytes() == data, file


def test_training_that_goes_on_from_random_weights_is_stopped_at_once(place: Place) -> None:
    """The checkpoint was there at the check and is gone when upstream looks: it would train for days on nothing."""
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("checkpoint-vanishes")
    done = place.run("pretrain")
    assert done.code == 4, done.err
    assert "upstream found no checkpoint where --load points, and was going on from random weights" in done.err
    assert "latest_checkpointed_iteration.txt" in done.err and "Run the stage hf2mcore first" in done.err
    assert last(place)["attempts"][-1]["failure"]["kind"] == "said"
    assert not list((place.work / "ckpt").rglob("*.pt"))


def test_a_missing_checkpoint_is_said_before_anything_starts(place: Place) -> None:
    done = place.run("generate")
    assert done.code in (3, 4) and "latest_checkpointed_iteration.txt not found" in done.err
    assert place.calls() == []
    done = place.run("pretrain")
    assert done.code in (3, 4) and "convert the weights first" in done.err


def test_a_failing_stage_names_node_code_lines_and_log(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("die-at-3")
    done = place.run("pretrain")
    assert done.code == 4
    assert "pretrain failed on node 0" in done.err and "7" in done.err and "RuntimeError: something broke" in done.err
    log = next((place.work / "runs").glob("*-pretrain-*/logs/0-localhost.log"))
    assert str(log) in done.err and "something broke" in log.read_text()


def test_interrupting_and_running_again_goes_on_from_the_last_whole_checkpoint(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("sleep-at-15")
    process = subprocess.Popen(
        [sys.executable, "-m", "ms_recipe", "run", *place.words("pretrain")], cwd=place.work, env=place.env(),
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (place.tree / "logs" / "sleeping").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    record = last(place)
    assert record["state"] == "interrupted"
    mark = f"MS_RECIPE_RUN={record['id']}/".encode()
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    left.append(entry.name)
            except OSError:
                continue
    assert left == []
    place.faults()
    done = place.run("pretrain")
    assert done.code == 0 and "going on from iteration 10" in done.err
    assert "--no-load-optim" not in place.calls()[-1] and f"--load {place.save()}" in place.calls()[-1]
    assert place.save("latest_checkpointed_iteration.txt").read_text() == "20"


def test_a_torn_checkpoint_is_kept_aside_and_never_loaded(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("torn-at-20")
    assert place.run("pretrain").code == 4
    # As if the tracker had been written for the torn one.
    place.save("latest_checkpointed_iteration.txt").write_text("20")
    done = place.run("pretrain")
    assert done.code == 0, done.err
    assert "a checkpoint that is not whole was kept aside" in done.err and "going on from iteration 10" in done.err
    assert list(place.save().glob("iter_0000020.incomplete-*")) and place.save("iter_0000020").is_dir()


def test_keep_last_keeps_the_newest(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    done = place.run("pretrain", "--set", "pretrain.save_interval=4", "--keep-last", "2")
    assert done.code == 0, done.err
    assert sorted(p.name for p in place.save().glob("iter_*")) == ["iter_0000016", "iter_0000020"]


def test_max_restarts_goes_on_and_the_record_shows_every_attempt(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("die-at-13")
    done = place.run("pretrain", "--max-restarts", "1")
    assert done.code == 0, done.err
    assert [(a["number"], a["state"]) for a in last(place)["attempts"]] == [(1, "failed"), (2, "succeeded")]


def test_two_runs_cannot_share_a_save_folder(place: Place) -> None:
    assert place.run("hf2mcore").code == 0 and place.run("data_convert").code == 0
    place.faults("sleep-at-3")
    process = subprocess.Popen(
        [sys.executable, "-m", "ms_recipe", "run", *place.words("pretrain")], cwd=place.work, env=place.env(),
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (place.tree / "logs" / "sleeping").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        done = place.run("pretrain")
        assert done.code == 3 and "is being written by run" in done.err
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    place.faults()
    assert place.run("pretrain").code == 0


def test_prompts_are_answered_one_by_one_and_only_the_answers_are_printed(place: Place) -> None:
    assert place.run("all").code == 0
    done = place.run("generate", "--prompt", "hello", "--prompt", "it's 2 + 2?")
    assert done.code == 0, done.err
    assert done.out == "answer to hello with top-k 1\nanswer to it's 2 + 2? with top-k 1\n"
    done = place.run("generate", "--prompt", "hello", "--task", "do_sample")
    assert "top-k 1" not in done.out
    for words, reason in ((["--prompt", "q"], "is a command of upstream's chat"), (["--prompt", "a\nb"], "has a line break"),
                          (["--task", "beam_search", "--prompt", "x"], "one fixed prompt"), (["--task", "sing"], "no task is called sing"),
                          (["--task", "chat"], "free chat needs a terminal")):  # fmt: skip
        done = place.run("generate", *words)
        assert done.code == 2 and reason in done.err, done.err
    done = place.run("pretrain", "--prompt", "x")
    assert done.code == 2


def test_dry_run_starts_nothing(place: Place) -> None:
    done = place.run("all", "--dry-run", "--json")
    rows = json.loads(done.out)
    assert [r["stage"] for r in rows] == ["hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate"]
    assert rows[2]["nodes"][0]["env"]["NPUS_PER_NODE"] == "1"
    assert place.calls() == [] and not (place.work / "runs").exists()
    assert "pretrain: pretrain_qwen3_0point6b_64_ptd.sh -> pretrain_gpt.py" in place.run("all", "--dry-run").out


def test_the_recipe_is_the_one_last_rendered_here_and_edited_scripts_are_not_passed_over(place: Place) -> None:
    done = ms_recipe("run", "all", "--dry-run", cwd=place.work, env=place.env())
    assert done.code == 2 and "no recipe: none was rendered in this folder" in done.err and "qwen3-8b-2x4" in done.err
    ms_recipe("render", "qwen3-8b", "--scale", "tiny", cwd=place.work)
    done = ms_recipe("run", "pretrain", "--dry-run", cwd=place.work, env=place.env())
    assert done.code == 0 and "pretrain_qwen3_8b_64_ptd.sh" in done.out
    done = ms_recipe("run", "pretrain", "--dry-run", cwd=place.work, env={**place.env(), "MS_RECIPE": "qwen3-0.6b"})
    assert "pretrain_qwen3_0point6b_4K_ptd.sh" in done.out
    script = place.work / "rendered/qwen3-8b/pretrain_qwen3_8b_64_ptd.sh"
    script.write_text(script.read_text() + "# mine\n")
    done = ms_recipe("run", "pretrain", "--dry-run", cwd=place.work, env=place.env())
    assert done.code == 2 and str(script) in done.err and "--scripts" in done.err


def test_scripts_of_a_folder_run_as_they_are_and_the_record_says_so(place: Place) -> None:
    words = place.words()
    ms_recipe("render", "qwen3-0.6b", "-o", "mine", *[w for w in words[2:] if w not in ("--allow-drift", "--no-check")], cwd=place.work)
    script = place.work / "mine/ckpt_convert_qwen3_0point6b_hf2mcore.sh"
    script.write_text(script.read_text() + "echo edited by hand\n")
    done = place.run("hf2mcore", "--scripts", "mine")
    assert done.code == 0, done.err
    log = next((place.work / "runs").glob("*/logs/0-localhost.log"))
    assert "edited by hand" in log.read_text() and last(place)["scripts"].endswith("mine")
    done = place.run("pretrain", "--scripts", "nowhere")
    assert done.code == 2 and "no script for pretrain" in done.err


def test_several_nodes_need_a_hostfile_and_a_wrong_one_is_no_local_run(place: Place) -> None:
    done = ms_recipe("run", "pretrain", "--recipe", "qwen3-8b-2x4", cwd=place.work, env=place.env())
    assert done.code == 2 and "the recipe has 2 nodes" in done.err
    for name in ("nowhere", "."):
        done = place.run("pretrain", "--nodes", name)
        assert done.code == 2 and name in done.err
    assert place.calls() == []
    (place.work / "hosts").write_text("localhost slots=1\n")
    done = place.run("hf2mcore", "--nodes", "hosts")
    assert done.code == 0 and last(place)["launcher"] == "local", done.err


def test_a_secret_reaches_the_script_and_nothing_else(place: Place) -> None:
    (place.work / "secret.yaml").write_text("env:\n  HF_TOKEN:\n")
    done = place.run("hf2mcore", "-f", "secret.yaml")
    assert done.code == 3 and "HF_TOKEN" in done.err and "export HF_TOKEN" in done.err
    entry = place.tree / "convert_ckpt.py"
    entry.write_text(entry.read_text() + '\nprint("token is", os.environ["HF_TOKEN"], len(os.environ["HF_TOKEN"]))\n')
    done = ms_recipe("run", *place.words("hf2mcore", "-f", "secret.yaml"), cwd=place.work, env={**place.env(), "HF_TOKEN": "hf_very_secret_1"})
    assert done.code == 0, done.err
    run = next(p for p in (place.work / "runs").iterdir() if "succeeded" in (p / "run.json").read_text())
    text = "".join(p.read_text() for p in run.rglob("*") if p.is_file())
    assert "hf_very_secret_1" not in text + done.err + done.out and "token is *** 16" in text


def test_an_unsupported_stage_of_a_pin_names_the_defect(place: Place) -> None:
    done = ms_recipe("run", *place.words("mcore2hf"), "--set", "pin=qwen3-0day", cwd=place.work, env=place.env())
    assert done.code == 5 and "D1" in done.err


def test_a_full_disk_is_a_failure_with_its_reason(place: Place) -> None:
    done = place.run("hf2mcore", "--set", "paths.logs=/dev/full/logs")
    assert done.code == 4 and "log folder" in done.err
    assert os.path.exists("/dev/full")
