"""What a machine has, as JSON: run by the python that the scripts would find, on any node, with its standard library only
(Python 3.8 and later). It is sent as text in which the line of ASK is filled in: names, paths and a port to look at."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from typing import Any, Sequence

ASK: dict[str, Any] = {}


def run(words: Sequence[str], timeout: float = 20) -> tuple[int | None, str]:
    """(status, output and errors) of a program; (None, "") without it."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              timeout=timeout)
        return done.returncode, done.stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        return None, ""


def packages(names: Sequence[str]) -> dict[str, str | None]:
    """Installed versions, None for what is not there; nothing is imported."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except Exception:
            found[name] = None
    return found


def text_of(path: str, limit: int = 65536) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return None


def ascend() -> dict[str, Any]:
    """Devices, driver, CANN, npu-smi: what is not there is None."""
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    cann = None
    for base in [home] if home else ["/usr/local/Ascend/ascend-toolkit/latest"]:
        for pattern in ("version.cfg", "version.info", "*/ascend_toolkit_install.info", "*-linux/ascend_toolkit_install.info"):
            for path in sorted(glob.glob(os.path.join(base, pattern))):
                match = re.search(r"(?:version|Version)[^\d\n]*(\d+\.[\w.]+)", text_of(path) or "")
                cann = cann or (match.group(1) if match else None)
    driver = re.search(r"Version=([\w.]+)", text_of("/usr/local/Ascend/driver/version.info") or "")
    smi = shutil.which("npu-smi")
    status, out = run(["npu-smi", "info", "-l"]) if smi else (None, "")
    count = re.search(r"Total Count\s*:\s*(\d+)", out)
    return {"home": home, "home_is_there": bool(home and os.path.isdir(home)), "cann": cann,
            "driver": driver.group(1) if driver else None, "npu_smi": smi, "npu_smi_status": status,
            "npus": int(count.group(1)) if count else None,
            "devices": len([p for p in glob.glob("/dev/davinci*") if re.search(r"\d$", p)]),
            "set_env": os.path.isfile("/usr/local/Ascend/ascend-toolkit/set_env.sh")}


def tree(path: str | None, parts: Sequence[str], package: str) -> dict[str, Any] | None:
    """The tree: which parts are missing, Megatron's version, what git says, requirements files."""
    if not path:
        return None
    found: dict[str, Any] = {"path": path, "exists": os.path.isdir(path)}
    if not found["exists"]:
        return found
    found["missing"] = [p for p in parts if not os.path.exists(os.path.join(path, p))]
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", text_of(os.path.join(path, package)) or "", re.M))
    found["megatron"] = ".".join(numbers[k] for k in ("MAJOR", "MINOR", "PATCH")) if len(numbers) == 3 else None
    beside = os.path.join(os.path.dirname(path.rstrip("/")), "MindSpeed")
    found["mindspeed"] = os.path.isdir(os.path.join(beside, "mindspeed"))
    found["git"] = {}
    for folder in (path, beside):
        if os.path.exists(os.path.join(folder, ".git")):
            status, out = run(["git", "-C", folder, "rev-parse", "HEAD"])
            found["git"][folder] = {"status": status, "said": out.strip()[-400:]}
    files = (os.path.join(path, "requirements.txt"), os.path.join(beside, "requirements.txt"))
    found["requirements"] = {f: text_of(f) for f in files if os.path.isfile(f)}
    found["helper"] = bool(glob.glob(os.path.join(path, "megatron/core/datasets/helpers*.so")))
    return found


def limits() -> dict[str, Any]:
    shm = None
    if os.path.isdir("/dev/shm"):
        stat = os.statvfs("/dev/shm")
        shm = {"total": stat.f_blocks * stat.f_frsize, "free": stat.f_bavail * stat.f_frsize}
    return {"open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "open_files_hard":
            resource.getrlimit(resource.RLIMIT_NOFILE)[1], "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0], "shm": shm, "cpus": os.cpu_count()}


def disks(paths: Sequence[str]) -> dict[str, Any]:
    found = {}
    for path in paths:
        place = path
        while not os.path.exists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        usage = shutil.disk_usage(place)
        found[path] = {"free": usage.free, "total": usage.total, "writable": os.access(place, os.W_OK)}
    return found


def port(number: int | None) -> str | None:
    """Why the port cannot be bound, "" when it can, None when none was asked about."""
    if not number:
        return None
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", int(number)))
            return ""
        except OSError as error:
            return error.strerror or str(error)


def main() -> None:
    environ = {k: v for k, v in os.environ.items()
               if re.match(r"HCCL_|ASCEND_|GLOO_|NCCL_|PYTORCH_NPU|CUDA_DEVICE|TASK_QUEUE|NPU_|HF_|TRANSFORMERS_|OMP_|.*_proxy$", k)
               and not re.search(r"TOKEN|KEY|SECRET|PASS", k) and not k.endswith("_proxy")}
    packed = None
    if ASK.get("pkg_resources", True):
        status, _ = run([sys.executable, "-W", "ignore", "-c", "import pkg_resources; pkg_resources.packaging"], 30)
        packed = status == 0
    found = {
        "exists": True, "host": socket.gethostname(), "system": platform.system(), "machine": platform.machine(),
        "python": list(sys.version_info[:3]), "executable": sys.executable, "packages": packages(ASK.get("packages", [])),
        "pkg_resources_packaging": packed, "ascend": ascend(), "environment": environ, "limits": limits(),
        "compiler": shutil.which("g++") or shutil.which("c++"), "make": shutil.which("make"),
        "torchrun": shutil.which("torchrun"), "git": shutil.which("git"), "bash": shutil.which("bash"),
        "tree": tree(ASK.get("tree"), ASK.get("parts", []), ASK.get("package", "")), "disks": disks(ASK.get("disks", [])),
        "port": port(ASK.get("port")), "interfaces": [name for _, name in socket.if_nameindex()],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
