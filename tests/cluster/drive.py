"""A launcher in a process of its own, for tests that kill it: HOSTFILE RUN_ID SCRIPT_FILE -> exit 0, 4 or 130."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.live import job_for
from ms_recipe.cluster.hosts import parse_hostfile
from ms_recipe.cluster.launchers.ssh import SshLauncher
from ms_recipe.cluster.supervise import run_supervised


def tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    job = replace(job_for(parse_hostfile(sys.argv[1], 4).hosts, Path(sys.argv[3]).read_text(), grace_s=2.0),
                  run_id=sys.argv[2], node_dir=sys.argv[4] if len(sys.argv) > 4 else "/srv/ms-recipe")
    outcome = run_supervised(job, SshLauncher(), tell)
    print(json.dumps({"event": "outcome", **outcome.as_dict()}), flush=True)
    sys.exit(130 if outcome.interrupted else 0 if outcome.ok else 4)
