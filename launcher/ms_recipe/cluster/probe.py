"""What a node can tell about itself before a run: standard library only (3.8 and later), sent there like the agent.

Standard input is JSON lines, one request each ({"do": name, ...}); each gets one JSON line on standard output with the
same "do". The end of input ends it, and removes what it made.
"""

# ruff: noqa: PTH103, PTH110, PTH112, PTH118, PTH120, PTH123, PTH108, PTH208, UP022, UP031
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOUND = """
printf 'python=%s\\n' "$(command -v python || true)"
printf 'python3=%s\\n' "$(command -v python3 || true)"
printf 'torchrun=%s\\n' "$(command -v torchrun || true)"
printf 'version=%s\\n' "$(python -V 2>&1 || true)"
printf 'set_env=%s\\n' "${ASCEND_HOME_PATH:-}"
"""


def in_setup(setup: str, command: str, env: dict[str, str], timeout: float, text: str = "") -> tuple[int, str, str]:
    """Run ``command`` by bash after ``setup``, as the run's script will be: (status, output, errors)."""
    bash = shutil.which("bash") or "/bin/bash"
    script = (setup or ":") + "\n__c=$?; [ $__c -eq 0 ] || { echo \"__setup=$__c\"; exit $__c; }\n" + command
    try:
        done = subprocess.run([bash, "--noprofile", "--norc", "-c", script], input=text.encode(), timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env},
                              start_new_session=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 124, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def environment(r: dict[str, Any]) -> dict[str, Any]:
    code, out, err = in_setup(r.get("setup", ""), FOUND, r.get("env") or {}, 60)
    if "__setup=" in out:
        code = int(out.rsplit("__setup=", 1)[1].split()[0])
        return {"setup": code, "errors": err.strip()[-300:]}
    found = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return {"setup": 0, "code": code, "errors": err.strip()[-300:], **found}


def tree(r: dict[str, Any]) -> dict[str, Any]:
    """Run the program that describes a tree (it is sent along) by the run's own python."""
    if not r.get("program"):
        return {"exists": os.path.isdir(r["path"])}
    code, out, err = in_setup(r.get("setup", ""), "exec \"$(command -v python || command -v python3)\" -",
                              r.get("env") or {}, 120, r["program"])
    try:
        answer = json.loads(out.strip().splitlines()[-1])
        return dict(answer)
    except (IndexError, ValueError):
        return {"exists": os.path.isdir(r["path"]), "error": (err.strip() or "exit %d" % code)[-300:]}


def paths(r: dict[str, Any]) -> dict[str, Any]:
    """``read``: must exist (a data prefix counts when its .bin and .idx do); ``write``: can be made and written."""
    wrong = {}
    for path in r.get("read") or []:
        if not os.path.exists(path) and not (os.path.exists(path + ".bin") and os.path.exists(path + ".idx")):
            wrong[path] = "is not there"
        elif os.path.exists(path) and not os.access(path, os.R_OK):
            wrong[path] = "cannot be read by this user"
    for path in r.get("write") or []:
        place = path
        while not os.path.lexists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if place != path and not os.path.isdir(place):
            wrong[path] = "%s is not a folder" % place
            continue
        probe = os.path.join(place if os.path.isdir(place) else os.path.dirname(place), ".ms-recipe-%d" % os.getpid())
        try:
            with open(probe, "wb") as file:
                file.write(b"0" * 4096)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            wrong[path] = "cannot be written: %s" % error.strerror
        with contextlib.suppress(OSError):
            os.unlink(probe)
    return {"wrong": wrong}


def port_free(address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
            sock.listen(1)
        except OSError as error:
            return str(error.strerror)
    return ""


def port(r: dict[str, Any]) -> dict[str, Any]:
    """Is the port free here; if not, which one nearby is, and what holds it as far as this user may see."""
    number = int(r["port"])
    taken = port_free(r.get("address", ""), number)
    other = next((n for n in range(number + 1, number + 200) if not port_free("", n)), None) if taken else None
    return {"taken": taken, "free": other}


def interfaces(r: dict[str, Any]) -> dict[str, Any]:
    """Which of the named interfaces are here, and their IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []:
            try:
                data = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found[name] = socket.inet_ntoa(data[20:24])
            except OSError:
                found[name] = ""
    # /sys may be that of another network namespace; the names the kernel gives us are right
    for _, name in socket.if_nameindex():
        found.setdefault(name, "")
    return {"interfaces": {n: a for n, a in found.items() if n in [x for _, x in socket.if_nameindex()]}}


def npus(_: dict[str, Any]) -> dict[str, Any]:
    """How many NPUs there are: npu-smi's chips with a logic id, else the device files; None: cannot be told."""
    if shutil.which("npu-smi"):
        try:
            done = subprocess.run(["npu-smi", "info", "-m"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, timeout=30)
            rows = [line.split() for line in done.stdout.decode("utf-8", "replace").splitlines()]
            count = len([row for row in rows if len(row) >= 4 and row[0].isdigit() and row[2].isdigit()])
            if done.returncode == 0 and count:
                return {"count": count, "by": "npu-smi"}
        except (OSError, subprocess.TimeoutExpired):
            pass
    devices = [n for n in os.listdir("/dev") if re.match(r"davinci\d+$", n)]
    return {"count": len(devices) or None, "by": "/dev/davinci*"}


MADE: list[str] = []
LISTENERS: list[socket.socket] = []


def token_write(r: dict[str, Any]) -> dict[str, Any]:
    """Leave a file in each folder (made when it is not there) for the other nodes to look for."""
    failed = {}
    for folder in r["folders"]:
        try:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, ".ms-recipe-token-" + r["token"])
            with open(path, "w") as file:
                file.write(r["token"])
            MADE.append(path)
        except OSError as error:
            failed[folder] = str(error.strerror)
    return {"refused": failed}


def token_look(r: dict[str, Any]) -> dict[str, Any]:
    seen = {}
    for folder in r["folders"]:
        with contextlib.suppress(OSError):
            os.listdir(folder)  # makes NFS look again
        seen[folder] = os.path.exists(os.path.join(folder, ".ms-recipe-token-" + r["token"]))
    return {"seen": seen}


def listen(r: dict[str, Any]) -> dict[str, Any]:
    """Hold the master's port for a moment, so that the others can try the way."""
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in r.get("address", "") else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", int(r["port"])))
        sock.listen(1024)
        LISTENERS.append(sock)
        return {"error": ""}
    except OSError as error:
        return {"error": str(error.strerror)}


def connect(r: dict[str, Any]) -> dict[str, Any]:
    try:
        socket.create_connection((r["address"], int(r["port"])), timeout=float(r.get("timeout", 5))).close()
        return {"error": ""}
    except OSError as error:
        return {"error": error.strerror or ("timed out" if error.errno in (None, errno.ETIMEDOUT) else str(error))}


def clock(_: dict[str, Any]) -> dict[str, Any]:
    return {"now": time.time()}


def tidy() -> None:
    for sock in LISTENERS:
        sock.close()
    for path in MADE:
        with contextlib.suppress(OSError):
            os.unlink(path)


def main() -> int:
    work = {"environment": environment, "tree": tree, "paths": paths, "port": port, "interfaces": interfaces,
            "npus": npus, "token_write": token_write, "token_look": token_look, "listen": listen, "connect": connect,
            "clock": clock}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = work[request["do"]](request)
            except Exception as error:
                answer = {"failed": "%s: %s" % (type(error).__name__, error)}
            print(json.dumps({"event": "answer", "do": request["do"], **answer}), flush=True)
    finally:
        tidy()
    return 0
