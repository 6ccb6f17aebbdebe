"""Run many Python entry points quickly: torch is imported once, each process is a fork of that.

Usage: ``python golden_batch.py JOBS.json``, JOBS being a list of {"argv": [entry, ...], "cwd", "world", "log", "stdin", "env"}.
A job with world N > 0 is N forks with RANK and WORLD_SIZE as torchrun sets them. Prints one JSON list of exit codes a job.
"""

import json
import os
import runpy
import socket
import sys
import traceback


def _port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _child(job: dict, env: dict[str, str], log: int, rank: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)
    with open(job.get("stdin") or os.devnull) as source:
        os.dup2(source.fileno(), 0)
    os.environ.update(env)
    os.chdir(job["cwd"])
    sys.argv = list(job["argv"])
    sys.stdin = os.fdopen(0) if rank == 0 else open(os.devnull)  # noqa: SIM115
    sys.path.insert(0, job["cwd"])
    code = 0
    try:
        runpy.run_path(os.path.join(job["cwd"], job["argv"][0]), run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(job: dict) -> list[int]:
    world = max(job.get("world", 0), 1)
    env = {**job.get("env", {}), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), "WORLD_SIZE": str(world),
           "LOCAL_WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _child(job, {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log, rank)
        children.append(pid)
    os.close(log)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


if __name__ == "__main__":
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    for number in jobs:
        print(json.dumps(run(number)), flush=True)
