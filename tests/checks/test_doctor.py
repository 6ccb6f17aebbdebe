"""``doctor``: ENV and GIT cases in stub environments, differences by majority, what was not checked."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import CASES, clean_env, ms_recipe

from ms_recipe.checks import doctor
from ms_recipe.upstream import load_pin

PIN = load_pin("mcore-0.8")
GOOD = {"transformers": "4.51.3", "tokenizers": "0.21.1", "numpy": "1.26.4", "peft": "0.7.1", "datasets": "3.6.0",
        "pandas": "2.2.3", "setuptools": "65.7.0", "torch": "2.6.0", "torch_npu": None, "mindspeed": None,
        "megatron-core": None, "pybind11": "2.13", "ninja": "1", "accelerate": None, "sentencepiece": "0.2"}


def facts(**changes):
    """A machine on which all is well; ``packages`` is merged, the rest replaced."""
    f = {"exists": True, "host": "h", "system": "Linux", "machine": "aarch64", "python": [3, 10, 12],
         "executable": "/usr/bin/python", "pkg_resources_packaging": True, "environment": {}, "compiler": "/usr/bin/g++",
         "make": "/usr/bin/make", "torchrun": "/usr/bin/torchrun", "git": "/usr/bin/git", "bash": "/bin/bash", "tree": None,
         "disks": {}, "port": "", "interfaces": ["lo", "eth0"],
         "limits": {"open_files": 1048576, "open_files_hard": 1048576, "locked": -1, "processes": -1,
                    "shm": {"total": 2**35, "free": 2**35}, "cpus": 192},
         "ascend": {"home": None, "home_is_there": False, "cann": None, "driver": None, "npu_smi": None,
                    "npu_smi_status": None, "npus": None, "devices": 0, "set_env": False}}
    f = copy.deepcopy(f)
    f["packages"] = {**GOOD, **changes.pop("packages", {})}
    f["ascend"] |= changes.pop("ascend", {})
    return {**f, **changes}


NPU = {"home": "/usr/local/Ascend/latest", "home_is_there": True, "cann": "8.2.RC1", "driver": "25.2.0",
       "npu_smi": "/usr/bin/npu-smi", "npu_smi_status": 0, "npus": 8, "devices": 8}


def said(*machines, **named):
    found = doctor.diagnose(dict(machines) if machines else {"h": facts(**named)}, PIN)
    return [str(f.problem()) for f in found.findings], found


def test_nothing_wrong():
    lines, found = said()
    assert lines == []
    assert any("NPUs, driver, CANN and torch_npu" in u for u in found.unchecked)
    lines, found = said(ascend=NPU, packages={"torch_npu": "2.6.0"})
    assert lines == []
    assert found.unchecked == ["the tree: none was named"]


def test_env_01_transformers_too_old():
    lines, found = said(packages={"transformers": "4.43.2"})
    assert "transformers 4.43.2 < 4.51.0 needed for qwen3" in lines[0]
    assert "pip install 'transformers==4.51.3'" in lines[0]
    assert found.errors


def test_env_02_the_requirements_file_takes_it_back(tmp_path):
    tree = tmp_path / "MindSpeed-LLM"
    shutil.copytree(CASES / "ENV-02", tree)
    text = (tree / "requirements.txt").read_text()
    lines, _ = said(tree={"path": str(tree), "exists": True, "missing": [], "megatron": "0.8.0", "mindspeed": True, "git": {},
                          "requirements": {str(tree / "requirements.txt"): text}, "helper": True})
    assert len(lines) == 1
    assert f"{tree}/requirements.txt:2: transformers==4.43.2 does not fit" in lines[0]
    assert "install in this order" in lines[0]


def test_env_04_python_too_old():
    lines, found = said(python=[3, 8, 10])
    assert "Python 3.8 < 3.9" in lines[0]
    assert found.errors[0].host == "h"


@pytest.mark.parametrize(("changes", "part"), [
    ({"packages": {"tokenizers": "0.20.3"}}, "tokenizers 0.20.3 is not >=0.21,<0.22"),
    ({"packages": {"numpy": "2.1.0"}}, "numpy 2.1.0 is not <2"),
    ({"pkg_resources_packaging": False, "packages": {"setuptools": "82.0"}}, "pkg_resources.packaging cannot be imported"),
    ({"packages": {"transformers": None}}, "transformers is not installed"),
    ({"packages": {"megatron-core": "0.12.1"}}, "silently completes a partial tree"),
    ({"ascend": NPU}, "torch_npu is not installed"),
    ({"ascend": NPU, "packages": {"torch_npu": "2.5.1"}}, "torch_npu 2.5.1 does not belong to torch 2.6.0"),
    ({"ascend": {**NPU, "home": None, "cann": None}, "packages": {"torch_npu": "2.6.0"}}, "ASCEND_HOME_PATH is not set"),
    ({"ascend": {**NPU, "home_is_there": False}, "packages": {"torch_npu": "2.6.0"}}, "which does not exist"),
    ({"ascend": {**NPU, "cann": "8.0.RC1"}, "packages": {"torch_npu": "2.6.0"}}, "CANN 8.0.RC1 is none of 8.2.RC1"),
    ({"ascend": {**NPU, "npu_smi_status": 8}, "packages": {"torch_npu": "2.6.0"}}, "npu-smi ends with status 8"),
    ({"torchrun": None}, "torchrun is not found"),
    ({"environment": {"HCCL_SOCKET_IFNAME": "eth1"}}, "there is no eth1"),
    ({"environment": {"HCCL_CONNECT_TIMEOUT": "-1"}}, "not a whole number of seconds"),
    ({"port": "Address already in use"}, "cannot be bound: Address already in use"),
    ({"disks": {"/data": {"free": 2**30, "total": 2**40, "writable": False}}}, "/data is not writable"),
    ({"tree": {"path": "/t", "exists": False}}, "there is no tree at /t"),
    ({"system": "Darwin"}, "Darwin is not Linux"),
])
def test_rules(changes, part):
    lines, _ = said(**changes)
    assert any(part in line for line in lines), lines


def test_differences_by_majority():
    a, b, c = facts(), facts(), facts(packages={"transformers": "4.51.0", "peft": "0.7.0"}, environment={"HCCL_BUFFSIZE": "1"})
    lines, _ = said(("n0", a), ("n1", b), ("n2", c))
    assert "n2: transformers is 4.51.0, 2 of 3 nodes have 4.51.3 [differs]; make it the same" in lines
    assert any("n2: HCCL_BUFFSIZE is 1, 2 of 3 nodes have None" in line for line in lines)
    lines, found = said(("n0", a), ("n1", facts(python=[3, 11, 2])))
    assert lines == ["all nodes: python differs and no value has the majority: 3.10.12 on 1, 3.11.2 on 1 [differs]; make "
                     "them the same"]
    assert found.errors


def test_a_host_without_an_answer():
    found = doctor.diagnose({"n0": facts()}, PIN, {"n1": "no answer for 30 s"})
    assert [str(f.problem()) for f in found.errors] == ["n1: no answer for 30 s [reachable]"]


def _environment(folder, **versions):
    """A folder of installed packages that comes first: only their metadata."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def _path(folder):
    """PATH with this interpreter as python and a torchrun."""
    folder.mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / "torchrun").write_text("#!/bin/sh\n")
    (folder / "torchrun").chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin:/bin"


def test_the_command_in_a_stub_environment(work, tmp_path):
    site = _environment(tmp_path / "site", transformers="4.43.2", tokenizers="0.20.3")
    env = clean_env(PYTHONPATH=str(site), PATH=_path(tmp_path / "bin"))
    done = ms_recipe("doctor", cwd=work, env=env)
    assert done.code == 3, done.out + done.err
    assert "error: localhost: transformers 4.43.2 < 4.51.0 needed for qwen3" in done.out
    assert "tokenizers 0.20.3" in done.out
    assert "not checked: " in done.out
    found = json.loads(ms_recipe("doctor", "--json", cwd=work, env=env).out)
    assert found["ok"] is False
    assert found["facts"]["localhost"]["packages"]["transformers"] == "4.43.2"


def test_env_04_the_command_with_an_old_python(work, tmp_path):
    path = _path(tmp_path / "bin")
    (tmp_path / "bin/python").write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.version_info = (3, 8, 10); "
        "exec(compile(sys.stdin.read(), \"probe\", \"exec\"))'\n")
    done = ms_recipe("doctor", cwd=work, env=clean_env(PATH=path))
    assert done.code == 3
    assert "localhost: Python 3.8 < 3.9" in done.out


def _tree(folder, minor=8, parts=None):
    for part in PIN.parts if parts is None else parts:
        path = folder / part
        if "." in path.name or path.name == "Makefile":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
    (folder / "megatron/core/package_info.py").write_text(f"MAJOR = 0\nMINOR = {minor}\nPATCH = {0 if minor == 8 else 1}\n")
    (folder.parent / "MindSpeed/mindspeed").mkdir(parents=True, exist_ok=True)
    return folder


def test_git_09_partial_megatron(work, tmp_path):
    tree = _tree(tmp_path / "MindSpeed-LLM", parts=["megatron/core"])
    done = ms_recipe("doctor", "--tree", tree, cwd=work)
    assert done.code == 3
    for part in ("megatron/training", "megatron/legacy", "megatron/inference", "core/datasets/Makefile", "helpers.cpp"):
        assert part in done.out, part


def test_git_12_another_megatron(work, tmp_path):
    done = ms_recipe("doctor", "--tree", _tree(tmp_path / "MindSpeed-LLM", minor=12), cwd=work)
    assert done.code == 3
    assert "expected Megatron 0.8.0 (core_r0.8.0), found 0.12.1" in done.out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a repository another owner")
def test_git_08_another_owner(work, tmp_path):
    tree = _tree(tmp_path / "MindSpeed-LLM")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    for path in (tree, tree / ".git"):
        os.chown(path, 12345, 12345)
    env = clean_env(HOME=str(tmp_path), GIT_CONFIG_GLOBAL=str(tmp_path / "none"))
    done = ms_recipe("doctor", "--tree", tree, cwd=work, env=env)
    assert "dubious ownership" in done.out
    assert f"git config --global --add safe.directory {tree}" in done.out
    assert not (tmp_path / "none").exists()


def test_the_probe_is_python_3_8(tmp_path):
    import ast

    ast.parse(doctor.program(PIN, "/x", ["/y"], 6000), feature_version=(3, 8))


def test_nodes_that_cannot_be_reached(work, tmp_path):
    """Every host gets its line; the others are still looked at."""
    bin_ = tmp_path / "bin"
    path = _path(bin_)
    (bin_ / "ssh").write_text("#!/bin/sh\necho 'ssh: Could not resolve hostname' >&2\nexit 255\n")
    (bin_ / "ssh").chmod(0o755)
    (work / "hosts").write_text("n0 slots=8\nn1 slots=8\n")
    done = ms_recipe("doctor", "--nodes", "hosts", cwd=work, env=clean_env(PATH=path))
    assert done.code == 3
    assert "error: n0: " in done.out
    assert "error: n1: " in done.out
    assert "0 machines looked at" in done.out


def test_nodes_over_ssh(work, tmp_path):
    """A fake ssh that runs the command here, on one host with another environment: it differs from the majority."""
    site = _environment(tmp_path / "site", transformers="4.50.0")
    bin_ = tmp_path / "bin"
    path = _path(bin_)
    (bin_ / "ssh").write_text(
        "#!/bin/bash\nargs=(\"$@\")\nhost=${args[-2]} command=${args[-1]}\n"
        f'[ "$host" = n2 ] && export PYTHONPATH={site}\nexec bash -c "$command"\n')
    (bin_ / "ssh").chmod(0o755)
    (work / "hosts").write_text("n0 slots=8\nn1 slots=8\nn2 slots=8\n")
    done = ms_recipe("doctor", "--nodes", "hosts", "--json", cwd=work, env=clean_env(PATH=path))
    found = json.loads(done.out)
    assert sorted(found["facts"]) == ["n0", "n1", "n2"], done.err
    differs = [f for f in found["findings"] if f["id"] == "differs" and "transformers" in f["what"]]
    assert [f["host"] for f in differs] == ["n2"]
    assert "2 of 3 nodes have" in differs[0]["what"]
    assert any(f["host"] == "n2" and "4.50.0 < 4.51.0" in f["what"] for f in found["findings"])
