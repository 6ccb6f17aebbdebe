"""vendor sync, status and verify on small repositories: the GIT cases, kills, mirrors, patches, edits, full disks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import clean_env, ms_recipe

import upstream_repos
from ms_recipe import upstream
from ms_recipe.errors import UpstreamError
from ms_recipe.upstream import argspec, assemble, fetch, load_pin, node_probe, trees
from upstream_repos import Upstream, git, make_upstream

LLM_FILES = {p for p in upstream_repos.LLM if not p.startswith("megatron/")}


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = make_upstream(tmp_path)
    for name in ("MS_RECIPE_MIRROR", "GIT_DIR", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MS_RECIPE_PINS", str(made.pins))
    monkeypatch.setenv("MS_RECIPE_HOME", str(made.home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


def sync(mirror: Path | str | None = None, **more: object) -> assemble.Synced:
    return assemble.sync(load_pin("mini"), mirror=str(mirror) if mirror else None, **more)  # type: ignore[arg-type]


def marker(up: Upstream) -> str:
    return (up.tree / "megatron" / "core" / "marker.py").read_text().strip()


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_ino) for p in sorted(root.rglob("*"))}


def move_on(up: Upstream, **texts: str) -> str:
    """A next commit of MindSpeed-LLM, and the pin on it."""
    up.commits["MindSpeed-LLM"] = upstream_repos.commit(up.root / "MindSpeed-LLM", {
        k.replace("__", "/") + ".py": v for k, v in texts.items()})
    up.write_pins()
    return up.commits["MindSpeed-LLM"]


# --- the tree is the commits -------------------------------------------------------------------------------------


def test_tree_equals_git_archive(up: Upstream, tmp_path: Path) -> None:
    done = sync()
    assert done.changed and set(done.fetched) == {"MindSpeed-LLM", "MindSpeed", "Megatron-LM"}
    archives = tmp_path / "archives"
    for name, commit in up.commits.items():
        (archives / name).mkdir(parents=True)
        tar = subprocess.run(["git", "archive", commit], cwd=up.root / name, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(archives / name)], input=tar, check=True)
    shutil.rmtree(archives / "MindSpeed-LLM" / "megatron")
    (archives / "Megatron-LM" / "megatron").rename(archives / "MindSpeed-LLM" / "megatron")
    assert files(up.tree) == files(archives / "MindSpeed-LLM")
    assert files(up.tree.parent / "MindSpeed") == files(archives / "MindSpeed")
    assert os.access(up.tree / "examples" / "run.sh", os.X_OK)
    assert {p.name for p in up.tree.iterdir() if p.is_dir()} >= {"logs", "dataset", "ckpt", "megatron"}
    assert not list(up.home.glob(".mini*"))
    assert trees.status(load_pin("mini"), content=True).clean


def test_line_end_settings_do_not_reach_the_tree(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "gitconfig"
    config.write_text("[core]\n\tautocrlf = true\n\teol = crlf\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    sync()
    assert b"\r" not in (up.tree / "pretrain_gpt.py").read_bytes()


def test_second_sync_touches_nothing(up: Upstream) -> None:
    sync()
    before = snapshot(up.home)
    done = sync()
    assert not done.changed and done.seconds < 0.3
    assert snapshot(up.home) == before


def test_two_pins_share_what_they_share(up: Upstream) -> None:
    sync()
    move_on(up, extra="1\n")
    again = sync()
    assert again.fetched["MindSpeed"].address == "" and again.fetched["MindSpeed-LLM"].address


def test_products_and_users_folders_are_no_drift(up: Upstream) -> None:
    sync()
    (up.tree / "mindspeed_llm" / "__pycache__").mkdir()
    (up.tree / "mindspeed_llm" / "__pycache__" / "x.pyc").write_text("x")
    (up.tree / "megatron" / "core" / "datasets" / "helpers.cpython-311.so").write_text("x")
    (up.tree / "logs" / "train.log").write_text("mine")
    state = trees.status(load_pin("mini"), content=True)
    assert state.clean and state.drift == []
    assert not sync().changed
    (up.tree / "megatron" / "core" / "other.so").write_text("x")
    assert trees.status(load_pin("mini")).extra == ["MindSpeed-LLM/megatron/core/other.so"]


# --- the GIT cases -----------------------------------------------------------------------------------------------


def test_git01_branch_and_tag_of_one_name(up: Upstream, tmp_path: Path) -> None:
    """The commit counts, whichever way the source is got: from a clone, a bare mirror, or the server."""
    assert git("rev-parse", "refs/heads/core_r0.8.0", cwd=up.root / "Megatron-LM") != up.commits["Megatron-LM"]
    for n, options in enumerate(([], ["--bare"], ["--mirror"])):
        mirror = tmp_path / f"mirror{n}"
        for name in up.commits:
            git("clone", "-q", *options, f"file://{up.root / name}", str(mirror / (name + (".git" if n else ""))), cwd=tmp_path)
        shutil.rmtree(up.home, ignore_errors=True)
        sync(mirror)
        assert marker(up) == "VALUE = 'tag'"
    shown = ms_recipe("vendor", "status", "--pin", "mini", cwd=tmp_path, env=dict(os.environ))
    assert f"Megatron-LM {up.commits['Megatron-LM']} (refs/tags/core_r0.8.0)" in shown.out


def _mirror(up: Upstream, folder: Path, *megatron: str) -> Path:
    for name in up.commits:
        options = megatron if name == "Megatron-LM" else ()
        git("clone", "-q", *options, f"file://{up.root / name}", str(folder / name), cwd=folder.parent)
    return folder


def test_git02_shallow_mirror_lacks_the_commit(up: Upstream, tmp_path: Path) -> None:
    mirror = _mirror(up, tmp_path / "m", "--depth", "1")
    with pytest.raises(UpstreamError) as error:
        sync(mirror)
    text = str(error.value)
    assert f"Megatron-LM: commit {up.commits['Megatron-LM']} (refs/tags/core_r0.8.0) is not there (a shallow clone)" in text
    assert f"git -C {mirror / 'Megatron-LM'} fetch file://{up.root / 'Megatron-LM'} {up.commits['Megatron-LM']}" in text
    assert not up.tree.exists(), "nothing of main may be copied"
    git("fetch", "-q", f"file://{up.root / 'Megatron-LM'}", up.commits["Megatron-LM"], cwd=mirror / "Megatron-LM")
    sync(mirror)  # the command that the message gave is right
    assert marker(up) == "VALUE = 'tag'"


def test_git02_shallow_mirror_that_has_the_commit(up: Upstream, tmp_path: Path) -> None:
    sync(_mirror(up, tmp_path / "m", "--depth", "1", "--branch", "core_r0.8.0", "--no-single-branch"))
    assert marker(up) == "VALUE = 'tag'"


def test_mirror_that_lacks_commit_or_repository(up: Upstream, tmp_path: Path) -> None:
    mirror = _mirror(up, tmp_path / "m")
    shutil.rmtree(mirror / "MindSpeed")
    up.commits["MindSpeed-LLM"] = "1" * 40
    up.write_pins()
    with pytest.raises(UpstreamError) as error:
        sync(mirror)
    text = str(error.value)
    assert f"MindSpeed-LLM: commit {'1' * 40} (refs/heads/main) is not there; run: git -C " in text
    assert f"{mirror}: --mirror: no repository MindSpeed or MindSpeed.git" in text, "all problems at once"


def test_git04_edits_in_the_clone_are_not_copied_nor_touched(up: Upstream, tmp_path: Path) -> None:
    mirror = _mirror(up, tmp_path / "m")
    edited = mirror / "Megatron-LM" / "megatron" / "core" / "marker.py"
    edited.write_text("VALUE = 'edited'\n")
    (mirror / "Megatron-LM" / "notes.txt").write_text("mine")
    before = snapshot(mirror)
    sync(mirror)
    assert marker(up) == "VALUE = 'tag'"
    assert edited.read_text() == "VALUE = 'edited'\n"
    assert snapshot(mirror) == before


def test_git06_stale_files_go_and_users_files_stay(up: Upstream) -> None:
    """A file of an earlier version goes; what is the user's outside megatron/ stays."""
    megatron = up.root / "Megatron-LM"
    first = up.commits["Megatron-LM"]
    git("checkout", "-q", "--detach", first, cwd=megatron)
    up.commits["Megatron-LM"] = upstream_repos.commit(megatron, {"megatron/core/old_module.py": "old = 1\n"})
    up.write_pins()
    sync()
    assert (up.tree / "megatron" / "core" / "old_module.py").is_file()
    (up.tree / "dataset" / "wiki").mkdir()
    (up.tree / "dataset" / "wiki" / "a.bin").write_text("data")
    (up.tree / "my_script.sh").write_text("mine")
    up.commits["Megatron-LM"] = first
    up.write_pins()
    sync()
    assert not (up.tree / "megatron" / "core" / "old_module.py").exists()
    assert (up.tree / "dataset" / "wiki" / "a.bin").read_text() == "data"
    assert (up.tree / "my_script.sh").read_text() == "mine"
    assert trees.status(load_pin("mini"), content=True).drift == ["MindSpeed-LLM/my_script.sh"]
    before = snapshot(up.home)
    assert not sync().changed and snapshot(up.home) == before, "a file of the user's is no reason to build anew"
    done = sync(force=True)
    assert done.aside is not None and (done.aside / "MindSpeed-LLM" / "my_script.sh").read_text() == "mine"
    assert trees.status(load_pin("mini"), content=True).clean
    assert (up.tree / "dataset" / "wiki" / "a.bin").read_text() == "data"


def test_a_clone_in_the_trees_place_keeps_its_history(up: Upstream) -> None:
    up.tree.parent.mkdir(parents=True)
    git("clone", "-q", f"file://{up.root / 'MindSpeed-LLM'}", str(up.tree), cwd=up.root)
    mine = upstream_repos.commit(up.tree, {"mine.py": "mine = 1\n"})
    with pytest.raises(UpstreamError, match=r"MindSpeed-LLM/\.git"):
        sync()
    done = sync(force=True)
    assert done.aside is not None
    assert git("rev-parse", "HEAD", cwd=done.aside / "MindSpeed-LLM") == mine
    assert (done.aside / "MindSpeed-LLM" / "mine.py").is_file()
    assert trees.status(load_pin("mini"), content=True).clean


def test_large_files_do_not_cost_time(up: Upstream) -> None:
    sync()
    with (up.tree / "model.pt").open("wb") as file:
        file.truncate(40 * 1024**3)  # sparse
    begun = time.monotonic()
    assert trees.status(load_pin("mini"), content=True).extra == ["MindSpeed-LLM/model.pt"]
    assert upstream.digest(up.tree, "mini") and time.monotonic() - begun < 5


def test_git06_target_that_is_not_ours(up: Upstream) -> None:
    """A tree copied by hand: a module nobody knows is named, and --force takes it away, kept aside."""
    shutil.copytree(up.root / "MindSpeed-LLM", up.tree, ignore=shutil.ignore_patterns(".git"))
    (up.tree / "megatron" / "core").mkdir()
    (up.tree / "megatron" / "core" / "old_module.py").write_text("old = 1\n")
    (up.tree / "mine.txt").write_text("mine")
    with pytest.raises(UpstreamError, match=r"would be replaced: .*megatron/core/old_module\.py.*--force"):
        sync()
    assert (up.tree / "megatron" / "core" / "old_module.py").exists()
    done = sync(force=True)
    assert not (up.tree / "megatron" / "core" / "old_module.py").exists()
    assert done.aside is not None
    assert (done.aside / "MindSpeed-LLM" / "megatron" / "core" / "old_module.py").read_text() == "old = 1\n"
    assert (done.aside / "MindSpeed-LLM" / "mine.txt").read_text() == "mine"
    assert trees.status(load_pin("mini"), content=True).clean


def test_git08_repository_of_another_owner(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = _mirror(up, tmp_path / "m")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    config = tmp_path / "gitconfig"
    config.write_text(f"[safe]\n\tdirectory = {mirror / 'MindSpeed'}\n\tdirectory = {mirror / 'MindSpeed' / '.git'}\n"
                      f"\tdirectory = {mirror / 'Megatron-LM'}\n\tdirectory = {mirror / 'Megatron-LM' / '.git'}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    before = config.read_text()
    with pytest.raises(UpstreamError) as error:
        sync(mirror)
    text = str(error.value)
    assert "dubious ownership" in text and f"{mirror / 'MindSpeed-LLM'}" in text
    assert f"git config --global --add safe.directory {mirror / 'MindSpeed-LLM'}" in text
    assert len(error.value.problems) == 1
    assert config.read_text() == before, "the user's git config is not ours to edit"


def test_git09_partial_megatron(up: Upstream) -> None:
    """A pip-installed megatron-core beside a tree without training: nothing may complete it silently."""
    sync()
    pin = load_pin("mini")
    for part in ("training", "legacy", "inference"):
        shutil.rmtree(up.tree / "megatron" / part)
    (up.tree / "megatron" / "core" / "datasets" / "helpers.cpp").unlink()
    problems = upstream.check_megatron(pin, up.tree)
    assert len(problems) == 1
    for part in ("megatron/training", "megatron/legacy", "megatron/inference", "megatron/core/datasets/helpers.cpp"):
        assert part in str(problems[0])
    assert upstream.status(pin).missing
    with pytest.raises(UpstreamError, match="Megatron is not whole"):
        upstream.verify_tree(up.tree, pin)


def test_git09_import_origin(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "megatron" / "core").mkdir(parents=True)
    (site / "megatron" / "core" / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    sync()
    pin = load_pin("mini")
    assert upstream.check_origins(pin, up.tree) == []
    assert upstream.verify_tree(up.tree, pin).clean
    shutil.rmtree(up.tree / "megatron" / "core")
    problems = [str(p) for p in upstream.check_origins(pin, up.tree)]
    assert len(problems) == 1 and f"megatron.core would be imported from {site}/megatron/core/__init__.py" in problems[0]
    shutil.rmtree(up.tree / "megatron")
    told = " ".join(map(str, upstream.check_origins(pin, up.tree)))
    assert "megatron.training is not found" in told


def test_git12_wrong_version(up: Upstream, tmp_path: Path) -> None:
    sync()
    info = up.tree / "megatron" / "core" / "package_info.py"
    info.write_text("MAJOR = 0\nMINOR = 12\nPATCH = 0\n")
    said = [str(p) for p in upstream.check_megatron(load_pin("mini"), up.tree)]
    assert len(said) == 1 and "expected 0.8.0 (core_r0.8.0), found 0.12.0" in said[0]
    for command, code in (("status", 3), ("verify", 3)):
        done = ms_recipe("vendor", command, "--pin", "mini", cwd=tmp_path, env=dict(os.environ))
        assert done.code == code and "found 0.12.0" in done.out
    with pytest.raises(UpstreamError, match=r"found 0\.12\.0") as error:
        upstream.verify_tree(up.tree, "mini")
    assert error.value.exit_code == 5
    state = upstream.verify_tree(up.tree, "mini", allow_drift=True)
    assert state.as_dict()["changed"] == ["MindSpeed-LLM/megatron/core/package_info.py"]
    assert not state.as_dict()["clean"]


# --- drift and edits ---------------------------------------------------------------------------------------------


def test_drift_by_name(up: Upstream, tmp_path: Path) -> None:
    sync()
    changed = up.tree / "pretrain_gpt.py"
    stat = changed.stat()
    changed.write_text("print('pretrAin')\n")
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time: only content can tell
    (up.tree / "inference.py").unlink()
    (up.tree / "torch.py").write_text("# would be imported instead\n")
    (up.tree / "examples" / "run.sh").chmod(0o644)
    pin = load_pin("mini")
    fast, full = trees.status(pin), trees.status(pin, content=True)
    assert fast.changed == ["MindSpeed-LLM/examples/run.sh"]
    assert sorted(full.changed) == ["MindSpeed-LLM/examples/run.sh", "MindSpeed-LLM/pretrain_gpt.py"]
    assert full.missing == ["MindSpeed-LLM/inference.py"] and full.extra == ["MindSpeed-LLM/torch.py"]
    done = ms_recipe("vendor", "verify", "--pin", "mini", "--json", cwd=tmp_path, env=dict(os.environ))
    assert done.code == 3
    told = json.loads(done.out)["trees"][0]
    assert told["changed"] == sorted(full.changed, key=told["changed"].index) and told["missing"] == full.missing


def test_verify_believes_the_commits_and_not_the_manifest(up: Upstream) -> None:
    sync()
    file, manifest = up.tree / "pretrain_gpt.py", up.tree.parent / trees.MANIFEST
    file.write_text("print('forged')\n")
    info = file.stat()
    data = json.loads(manifest.read_text())
    data["files"]["MindSpeed-LLM/pretrain_gpt.py"] = ["100644", node_probe.blob(str(file), info), info.st_size, info.st_mtime_ns]
    manifest.write_text(json.dumps(data))
    assert trees.status(load_pin("mini")).clean
    assert trees.status(load_pin("mini"), content=True).changed == ["MindSpeed-LLM/pretrain_gpt.py"]


def test_edits_are_reported_and_force_keeps_them_aside(up: Upstream, tmp_path: Path) -> None:
    sync()
    (up.tree / "pretrain_gpt.py").write_text("print('my debug')\n")
    (up.tree / "megatron" / "core" / "mine.py").write_text("mine = 1\n")
    (up.tree / "logs" / "a.log").write_text("log")
    before = files(up.home)
    refused = ms_recipe("vendor", "sync", "--pin", "mini", cwd=tmp_path, env=dict(os.environ))
    assert refused.code == 5
    assert "MindSpeed-LLM/pretrain_gpt.py" in refused.err and "MindSpeed-LLM/megatron/core/mine.py" in refused.err
    assert "Traceback" not in refused.err
    after = files(up.home)
    assert {k: v for k, v in after.items() if "repositories/" not in k} == {k: v for k, v in before.items() if "repositories/" not in k}
    done = ms_recipe("vendor", "sync", "--pin", "mini", "--force", "--json", cwd=tmp_path, env=dict(os.environ))
    assert done.code == 0, done.err
    aside = Path(json.loads(done.out)["synced"][0]["aside"]) / "MindSpeed-LLM"
    assert files(aside) == {"pretrain_gpt.py": b"print('my debug')\n", "megatron/core/mine.py": b"mine = 1\n"}
    assert (up.tree / "logs" / "a.log").read_text() == "log"
    assert trees.status(load_pin("mini"), content=True).clean


def test_missing_files_come_back_without_force(up: Upstream) -> None:
    sync()
    (up.tree / "inference.py").unlink()
    (up.tree.parent / "MindSpeed" / "mindspeed" / "__init__.py").unlink()
    assert sync().changed
    assert trees.status(load_pin("mini"), content=True).clean


def test_folder_that_is_a_link_stays_a_link(up: Upstream, tmp_path: Path) -> None:
    sync()
    big = tmp_path / "big"
    big.mkdir()
    (big / "corpus").write_text("data")
    (up.tree / "dataset").rmdir()
    (up.tree / "dataset").symlink_to(big)
    move_on(up, extra="1\n")
    sync()
    assert (up.tree / "dataset").is_symlink() and (up.tree / "dataset" / "corpus").read_text() == "data"


def test_tree_of_another_commit_is_named(up: Upstream) -> None:
    sync()
    old = up.commits["MindSpeed-LLM"]
    move_on(up, extra="1\n")
    state = trees.status(load_pin("mini"))
    assert not state.clean and f"the tree is of MindSpeed-LLM at {old}" in str(state.problems[0])
    with pytest.raises(UpstreamError, match="the tree is of"):
        upstream.verify_tree(up.tree, "mini")


def test_tree_made_elsewhere_is_known_by_the_pins_digest(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync()
    foreign = tmp_path / "foreign"
    shutil.copytree(up.tree.parent, foreign)
    (foreign / trees.MANIFEST).unlink()
    up.write_pins(digest=upstream.digest(up.tree, "mini"))
    monkeypatch.setenv("MS_RECIPE_HOME", str(tmp_path / "empty"))
    state = upstream.verify_tree(foreign / "MindSpeed-LLM", "mini")
    assert state.clean and not state.known and state.commits == up.commits
    (foreign / "MindSpeed-LLM" / "x.py").write_text("")
    with pytest.raises(UpstreamError, match="the tree is not pin mini"):
        upstream.verify_tree(foreign / "MindSpeed-LLM", "mini")


def test_copied_tree_is_compared_by_content(up: Upstream, tmp_path: Path) -> None:
    """cp -r gives other times: that is no drift."""
    sync()
    subprocess.run(["cp", "-r", str(up.tree.parent), str(tmp_path / "copy")], check=True)
    assert upstream.verify_tree(tmp_path / "copy" / "MindSpeed-LLM", "mini").clean


# --- digest and probe --------------------------------------------------------------------------------------------


def test_digest_same_everywhere_and_from_the_stdlib_alone(up: Upstream, tmp_path: Path) -> None:
    sync()
    shutil.copytree(up.tree.parent, tmp_path / "other")
    other = tmp_path / "other" / "MindSpeed-LLM"
    (other / "logs" / "x").write_text("x")
    here = upstream.digest(up.tree, "mini")
    assert here == upstream.digest(other, "mini") == trees.status(load_pin("mini")).digest
    assert here == trees.read_manifest(up.tree.parent)["digest"]  # type: ignore[index]
    done = subprocess.run([sys.executable, "-I", "-S", "-"], input=upstream.probe_source(other, "mini"), text=True,
                          capture_output=True, check=True, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["digest"] == here and told["outside"] == {} and told["exists"] and told["count"] > 20
    (other / "inference.py").chmod(0o755)
    assert upstream.digest(other, "mini") != here
    gone = subprocess.run([sys.executable, "-"], input=upstream.probe_source(tmp_path / "no", "mini"), text=True,
                          capture_output=True, check=True)
    assert json.loads(gone.stdout)["exists"] is False


# --- patches -----------------------------------------------------------------------------------------------------


def _patch(up: Upstream, repository: str, name: str, path: str, old: str, new: str) -> Path:
    folder = up.pins.parent / "patches" / "mini" / repository
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n")
    return folder / name


def test_patches_apply_in_order_and_are_part_of_the_tree(up: Upstream) -> None:
    sync()
    plain = upstream.digest(up.tree, "mini")
    _patch(up, "MindSpeed-LLM", "0002-b.patch", "pretrain_gpt.py", "print('one')", "print('two')")
    _patch(up, "MindSpeed-LLM", "0001-a.patch", "pretrain_gpt.py", "print('pretrain')", "print('one')")
    _patch(up, "Megatron-LM", "0001.patch", "megatron/core/marker.py", "VALUE = 'tag'", "VALUE = 'patched'")
    state = trees.status(load_pin("mini"))
    assert "other patches" in str(state.problems[0])
    assert sync().changed
    assert (up.tree / "pretrain_gpt.py").read_text() == "print('two')\n" and marker(up) == "VALUE = 'patched'"
    for content in (False, True):
        state = trees.status(load_pin("mini"), content=content)
        assert state.clean and state.patches == [
            "MindSpeed-LLM/0001-a.patch", "MindSpeed-LLM/0002-b.patch", "Megatron-LM/0001.patch"]
    assert upstream.digest(up.tree, "mini") != plain
    assert not sync().changed
    shutil.rmtree(up.pins.parent / "patches")
    sync()
    assert upstream.digest(up.tree, "mini") == plain


def test_a_patch_that_adds_a_flag_adds_it_to_the_argspec(up: Upstream) -> None:
    sync()
    _patch(up, "MindSpeed-LLM", "0001.patch", "x", "x", "x").write_text(
        "--- a/mindspeed_llm/tasks/checkpoint/saver.py\n+++ b/mindspeed_llm/tasks/checkpoint/saver.py\n@@ -1,2 +1,3 @@\n"
        " def add_arguments(parser):\n+    parser.add_argument('--ours')\n"
        "     parser.add_argument('--size', type=int, default=1)\n")
    sync()
    assert "--ours" in argspec.load("mini").entry("convert_ckpt.py").flags


def test_patch_that_does_not_apply_leaves_the_old_tree(up: Upstream) -> None:
    sync()
    before = files(up.home / "mini")
    bad = _patch(up, "MindSpeed-LLM", "0001.patch", "pretrain_gpt.py", "print('nobody wrote this')", "x")
    with pytest.raises(UpstreamError, match="the patch does not apply to MindSpeed-LLM: ") as error:
        sync()
    assert str(error.value).startswith(str(bad))
    assert files(up.home / "mini") == before and not list(up.home.glob(".mini*"))
    bad.unlink()
    _patch(up, "Megatron-LM", "0001.patch", "tools/t.py", "x", "y")
    with pytest.raises(UpstreamError, match=r"tools/t\.py is not in the tree"):
        sync()
    assert files(up.home / "mini") == before
    shutil.rmtree(up.pins.parent / "patches")
    _patch(up, "Megatron", "0001.patch", "megatron/core/marker.py", "x", "y")
    with pytest.raises(UpstreamError, match="no repository Megatron in pin mini"):
        sync()


def test_patches_apply_inside_another_git_repository(up: Upstream) -> None:
    """vendor/checkouts lies inside a checkout of ms-recipe, where plain ``git apply`` skips files without a word."""
    up.home.mkdir()
    git("init", "-q", ".", cwd=up.home)
    _patch(up, "MindSpeed-LLM", "0001.patch", "pretrain_gpt.py", "print('pretrain')", "print('one')")
    sync()
    assert (up.tree / "pretrain_gpt.py").read_text() == "print('one')\n"


# --- addresses and mirrors ---------------------------------------------------------------------------------------


def test_addresses_are_tried_in_order(up: Upstream, tmp_path: Path) -> None:
    good = {name: f"file://{up.root / name}" for name in up.commits}
    up.write_pins(repositories={n: {"commit": c, "ref": "refs/heads/main", "urls": [
        f"file://{tmp_path}/gone/{n}", "https://127.0.0.1:1/nobody/x.git", good[n]]} for n, c in up.commits.items()})
    assert {n: f.address for n, f in sync().fetched.items()} == good


def test_all_addresses_fail(up: Upstream) -> None:
    up.write_pins(repositories={n: {"commit": c, "urls": ["https://127.0.0.1:1/a.git", "ssh://127.0.0.1:1/b.git"]}
                                for n, c in up.commits.items()})
    with pytest.raises(UpstreamError) as error:
        sync()
    assert len(error.value.problems) == 6
    assert "https://127.0.0.1:1/a.git: MindSpeed-LLM: " in str(error.value)


@pytest.mark.parametrize("way", ["option", "env", "config", "url"])
def test_ways_to_name_a_mirror(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    mirror = _mirror(up, tmp_path / "m")
    (mirror / "MindSpeed").rename(mirror / "MindSpeed.git")
    up.write_pins(repositories={n: {"commit": c, "ref": "refs/heads/main", "urls": ["https://127.0.0.1:1/a.git"]}
                                for n, c in up.commits.items()})
    option: str | None = None
    if way == "option":
        option = str(mirror)
    elif way == "env":
        monkeypatch.setenv("MS_RECIPE_MIRROR", str(mirror))
    elif way == "config":
        up.pins.write_text(f"mirror: {mirror}\n{up.pins.read_text()}")
    else:
        option = f"file://{mirror}"
    assert sync(option).changed


def test_mirror_that_is_not_there(up: Upstream) -> None:
    with pytest.raises(UpstreamError, match=r"/no/such: --mirror: folder not found"):
        sync("/no/such")


def test_server_that_gives_no_single_commits(up: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bare commit id is refused, the ref is fetched whole, and the commit found in it."""
    asked: list[list[str]] = []
    real = fetch.gitcmd.run_with_progress

    def refusing(args: list[str], progress: object, quiet_s: float = 1) -> None:
        asked.append(list(args))
        if "--depth=1" in args:
            raise fetch.GitError("x", "error: Server does not allow request for unadvertised object 1")
        real(args, lambda _: None)

    monkeypatch.setattr(fetch.gitcmd, "run_with_progress", refusing)
    sync()
    assert marker(up) == "VALUE = 'tag'"
    assert any("refs/tags/core_r0.8.0" in a[-1] for a in asked)


def test_old_protocol_and_a_commit_that_is_no_tip(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server that refuses: git's protocol 0 gives tips only, unless it is told otherwise."""
    old = up.commits["MindSpeed-LLM"]
    move_on(up, extra="1\n")
    up.commits["MindSpeed-LLM"] = old
    up.write_pins()
    config = tmp_path / "gitconfig"
    config.write_text("[protocol]\n\tversion = 0\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    said: list[str] = []
    sync(progress=said.append)
    assert not (up.tree / "extra.py").exists()
    assert trees.status(load_pin("mini"), content=True).clean


def test_silent_server_is_given_up(up: Upstream, tmp_path: Path) -> None:
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    begun = time.monotonic()
    with pytest.raises(fetch.GitError, match="no word from it"):
        old = os.environ["PATH"]
        os.environ["PATH"] = f"{tmp_path}{os.pathsep}{old}"
        try:
            fetch.gitcmd.run_with_progress(["fetch"], lambda _: None, quiet_s=0.2)
        finally:
            os.environ["PATH"] = old
    assert time.monotonic() - begun < 10


def test_nothing_is_ever_asked() -> None:
    env = fetch.gitcmd.environment()
    assert env["GIT_TERMINAL_PROMPT"] == "0" and env["GIT_ASKPASS"] == "false"
    assert "BatchMode=yes" in env["GIT_SSH_COMMAND"]


def test_no_git(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UpstreamError, match="git is not on PATH"):
        sync()


# --- interruptions, full disks, two at once ----------------------------------------------------------------------


def test_killed_at_ten_random_moments(up: Upstream, tmp_path: Path) -> None:
    """Whenever sync is killed, the next one ends clean and the user's files are all there."""
    command = [sys.executable, "-m", "ms_recipe", "vendor", "sync", "--pin", "mini"]
    env = clean_env(MS_RECIPE_PINS=str(up.pins), MS_RECIPE_HOME=str(up.home), GIT_CONFIG_GLOBAL="/dev/null")
    begun = time.monotonic()
    subprocess.run(command, env=env, check=True, capture_output=True)
    whole = time.monotonic() - begun
    (up.tree / "dataset" / "big.bin").write_text("precious")
    (up.tree / "notes.txt").write_text("mine")
    chance = random.Random(8)
    killed = 0
    for n in range(10):
        move_on(up, **{f"new{n}": f"n = {n}\n"})
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=chance.uniform(0.25, 1.0) * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        assert (up.tree / "dataset" / "big.bin").read_text() == "precious"
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode in (0,), done.stderr
        state = trees.status(load_pin("mini"), content=True)
        assert state.drift == ["MindSpeed-LLM/notes.txt"] and state.commits == up.commits
        assert (up.tree / "notes.txt").read_text() == "mine"
        assert not list(up.home.glob(".mini*")) and not list((up.home / "repositories").glob(".*"))
    assert killed >= 3


def test_killed_after_the_exchange_is_cleared_up(up: Upstream) -> None:
    sync()
    shutil.copytree(up.home / "mini", up.home / ".mini.build")
    assert not sync().changed and not (up.home / ".mini.build").exists()


def test_stopped_between_the_two_renames(up: Upstream) -> None:
    """Where one exchange is not to be had the swap is two renames: a stop between them is mended."""
    sync()
    (up.home / "mini").rename(up.home / ".mini.old")
    sync()
    assert trees.status(load_pin("mini"), content=True).clean and not (up.home / ".mini.old").exists()


def test_exchange_in_two_steps(up: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    sync()
    (up.tree / "logs" / "a").write_text("a")
    move_on(up, extra="1\n")
    monkeypatch.setattr(assemble.ctypes, "CDLL", lambda *a, **k: object())
    sync()
    assert (up.tree / "extra.py").is_file() and (up.tree / "logs" / "a").read_text() == "a"


def test_no_hard_links(up: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: object, **kwargs: object) -> None:
        raise OSError(95, "not supported")

    sync()
    (up.tree / "logs" / "a").write_text("a")
    (up.tree / "mine.txt").write_text("mine")
    move_on(up, extra="1\n")
    monkeypatch.setattr(assemble.os, "link", no)
    sync()
    assert (up.tree / "logs" / "a").read_text() == "a" and (up.tree / "mine.txt").read_text() == "mine"


def test_left_over_with_users_only_copy_is_kept_aside(up: Upstream) -> None:
    sync()
    left = up.home / ".mini.build" / "MindSpeed-LLM" / "logs"
    left.mkdir(parents=True)
    (left / "only.log").write_text("only here")
    (up.tree / "inference.py").unlink()
    sync()
    assert [p.read_text() for p in up.home.glob("mini.aside-*/MindSpeed-LLM/logs/only.log")] == ["only here"]


def test_two_at_once(up: Upstream, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ms_recipe", "vendor", "sync", "--pin", "mini"]
    env = clean_env(MS_RECIPE_PINS=str(up.pins), MS_RECIPE_HOME=str(up.home), GIT_CONFIG_GLOBAL="/dev/null")
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [p.communicate()[0] is not None and p.returncode for p in both] == [0, 0]
    assert trees.status(load_pin("mini"), content=True).clean


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB that can be remounted."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mount is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk(up: Upstream, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_RECIPE_HOME", str(mount))
    sync()
    tree = mount / "mini" / "MindSpeed-LLM"
    before = files(mount / "mini")
    move_on(up, big="x = '" + "".join(random.Random(1).choices("abcdefghijklmnop", k=500_000)) + "'\n")
    with pytest.raises(UpstreamError, match="the disk is full") as error:
        sync()
    assert error.value.exit_code == 5
    assert files(mount / "mini") == before and not list(mount.glob(".mini*"))
    assert tree.is_dir()


def test_read_only_target(up: Upstream, mount: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    done = ms_recipe("vendor", "sync", "--pin", "mini", "--into", mount, cwd=tmp_path, env=dict(os.environ))
    assert done.code == 5
    assert "cannot be written: Read-only file system" in done.err and "--into" in done.err and "Traceback" not in done.err
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    assert ms_recipe("vendor", "sync", "--pin", "mini", "--into", mount, cwd=tmp_path, env=dict(os.environ)).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    again = ms_recipe("vendor", "sync", "--pin", "mini", "--into", mount, cwd=tmp_path, env=dict(os.environ))
    assert again.code == 0 and "in place" in again.out, "what is whole needs no writing"
    assert ms_recipe("vendor", "verify", "--pin", "mini", "--into", mount, cwd=tmp_path, env=dict(os.environ)).code == 0


# --- the commands ------------------------------------------------------------------------------------------------


def test_commands(up: Upstream, tmp_path: Path) -> None:
    env = dict(os.environ)
    none = ms_recipe("vendor", "status", "--pin", "mini", cwd=tmp_path, env=env)
    assert none.code == 3 and "no tree there; run: ms-recipe vendor sync --pin mini" in none.out
    done = ms_recipe("vendor", "sync", "-p", "mini", cwd=tmp_path, env=env)
    assert done.code == 0 and up.commits["MindSpeed"] in done.out
    assert "in place" in ms_recipe("vendor", "sync", "-p", "mini", cwd=tmp_path, env=env).out
    listed = json.loads(ms_recipe("vendor", "list", "--json", cwd=tmp_path, env=env).out)
    assert {p["name"]: p["assembled"] for p in listed["pins"]} == {"mcore-0.8": False, "qwen3-0day": False, "mini": True}
    assert "no drift (by content)" in ms_recipe("vendor", "verify", "-p", "mini", cwd=tmp_path, env=env).out
    assert ms_recipe("vendor", "sync", "-p", "nix", cwd=tmp_path, env=env).code == 5


def test_args_command(tmp_path: Path) -> None:
    found = ms_recipe("args", "pretrain_gpt", "--grep", "micro_batch", cwd=tmp_path)
    assert found.code == 0 and "--micro-batch-size int, no default  [Megatron-LM/" in found.out
    different = ms_recipe("args", "--diff", "qwen3-0day", "mcore-0.8", cwd=tmp_path)
    assert different.code == 1 and "~ --pre-tockens default: 65536 -> 1048576" in different.out
    assert "pretrain_gpt.py: 11 added, 0 removed, 5 changed" in different.out
    assert ms_recipe("args", "--diff", "mcore-0.8", "mcore-0.8", cwd=tmp_path).code == 0
    told = json.loads(ms_recipe("args", "convert_ckpt.py", "--variant", "hf", "--json", cwd=tmp_path).out)
    assert len(told["entries"]["convert_ckpt.py"]) == 38
    wrong = ms_recipe("args", "convert_ckpt.py", "--variant", "nix", cwd=tmp_path)
    assert wrong.code == 2 and "it has hf, mg, optim" in wrong.err


def test_build_needs_its_sources(up: Upstream, tmp_path: Path) -> None:
    done = ms_recipe("vendor", "build", "-p", "mini", cwd=tmp_path, env=dict(os.environ))
    assert done.code == 5 and "Makefile is missing" in done.err
    sync()
    failed = ms_recipe("vendor", "build", "-p", "mini", cwd=tmp_path, env=dict(os.environ))
    assert failed.code == 5 and "the helper cannot be built" in failed.err
    assert trees.status(load_pin("mini")).clean
