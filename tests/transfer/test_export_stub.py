"""Export on the stub upstream: a converted checkpoint comes back as the folder it was made from, and loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ms_recipe

from ms_recipe import resources
from tiny_work import Tiny, check_export

pytestmark = pytest.mark.torch
pytest.importorskip("megatron.core")


def test_a_checkpoint_becomes_a_folder_that_loads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tiny = resources.path("recipes", "tiny", "tiny-tied")
    args = ("--recipe", "qwen3-0.6b", "--scale", "tiny", "--backend", "cpu", "--upstream", "stub", "--set",
            f"paths.hf={tiny}", "--set", "paths.mcore=./mcore", "--set", "cluster.npus_per_node=1")  # fmt: skip
    done = ms_recipe("run", "hf2mcore", *args, cwd=tmp_path)
    assert done.code == 0, done.err
    # A newer iteration that is torn: the last whole one is taken, and the tracker file stays as it is.
    (tmp_path / "mcore" / "iter_0000009" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "mcore" / "iter_0000009" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"PK torn")
    tracker = tmp_path / "mcore" / "latest_checkpointed_iteration.txt"
    tracker.write_text("9")
    done = ms_recipe("export", "mcore", *args, "-o", "out", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    assert (seen["iteration"], seen["loaded"], seen["missing"], seen["finite"]) == (1, True, [], True)
    assert tracker.read_text() == "9"
    before = {k: v for file in tiny.glob("*.safetensors") for k, v in load_file(file).items()}
    after = {k: v for file in (tmp_path / "out").glob("*.safetensors") for k, v in load_file(file).items()}
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    again = ms_recipe("export", "mcore", *args, "-o", "out", cwd=tmp_path)
    assert again.code == 2 and "name another folder" in again.err


def test_the_exported_folder_writes_what_generate_writes(tmp_path: Path) -> None:
    check_export(Tiny(tmp_path, ("--backend", "cpu", "--upstream", "stub")))


def test_a_run_that_trained_nothing_has_nothing_to_export(tmp_path: Path) -> None:
    tiny = Tiny(tmp_path, ("--backend", "cpu", "--upstream", "stub"))
    run = tiny.run("hf2mcore")["run"]
    done = ms_recipe("export", run, cwd=tmp_path)
    assert done.code == 2 and "trained nothing (hf2mcore)" in done.err
    assert not list(tmp_path.glob("*-hf"))
