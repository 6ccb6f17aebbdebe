"""A supervised run with a run folder, in a process of its own: HOSTFILE -> exit 0, 4 or 130."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from cluster.live import job_for
from ms_recipe.cluster.hosts import parse_hostfile
from ms_recipe.cluster.launchers.ssh import SshLauncher
from ms_recipe.cluster.supervise import run_supervised
from ms_recipe.runs.folder import Record, RunFolder, State

if __name__ == "__main__":
    hosts = parse_hostfile(sys.argv[1], 4).hosts
    record = Record("", "pretrain", recipe="test", launcher="ssh", nodes=[
        {"rank": rank, "host": h.name, "user": h.user, "port": h.port, "slots": h.slots} for rank, h in enumerate(hosts)])
    run = RunFolder.create("pretrain", record)
    attempt = run.begin("pretrain", 1)

    def tell(event: dict[str, Any]) -> None:
        if event["event"] == "line":
            run.log(event["node"], event["host"], event["line"] + "\n")
        else:
            run.event(event["event"], **{k: v for k, v in event.items() if k not in ("event", "time")})

    outcome = run_supervised(replace(job_for(hosts), run_id=record.id), SshLauncher(), tell)
    state = State.INTERRUPTED if outcome.interrupted else State.SUCCEEDED if outcome.ok else State.FAILED
    code = 130 if outcome.interrupted else 0 if outcome.ok else 4
    run.end(attempt, state, exit_code=code)
    run.set_state(state, code)
    run.close()
    sys.exit(code)
