"""A training of two workers without torch that behaves as torchrun does where it matters to whoever stops it.

Each worker has a session of its own (torchrun gives them one), one ignores TERM; when one dies, that is logged at once in
torchrun's words, the other is ended (TERM, then KILL after a while), and the exit code is 1. TERM is passed on to workers.
"""

import os
import signal
import subprocess
import sys
import time

PATIENCE = float(os.environ.get("TRAINEE_PATIENCE", "30"))  # torchrun's own
WORKER = """
import os, signal, sys, time
rank, deaf = int(sys.argv[1]), sys.argv[2] == "deaf"
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = float(os.environ.get("TRAINEE_SECONDS", "600"))
begin = time.monotonic(); n = 0
while time.monotonic() - begin < end:
    n += 1
    print(" iteration %8d/  100000 | rank %d" % (n, rank), flush=True)
    time.sleep(0.1)
"""


def main() -> int:
    node = int(os.environ.get("NODE_RANK", "0"))
    workers = [subprocess.Popen([sys.executable, "-u", "-c", WORKER, str(node * 2 + i), "deaf" if i else "ears"],
                                start_new_session=True, env={**os.environ, "LOCAL_RANK": str(i)}) for i in range(2)]
    print("trainee: workers", *(w.pid for w in workers), flush=True)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    while True:
        codes = [w.poll() for w in workers]
        bad = next((i for i, c in enumerate(codes) if c), None)
        if bad is not None:
            print(f"E1130 failed (exitcode: {codes[bad]}) local_rank: {bad} (pid: {workers[bad].pid}) of binary: python",
                  flush=True)
        if bad is not None or told:
            for w in workers:
                if w.poll() is None:
                    w.terminate()
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and any(w.poll() is None for w in workers):
                time.sleep(0.05)
            for w in workers:
                if w.poll() is None:
                    w.kill()
                    w.wait()
            if bad is not None:
                print(f"Root Cause (first observed failure):\n[0]:\n  rank      : {node * 2 + bad} (local_rank: {bad})\n"
                      f"  exitcode  : {codes[bad]} (pid: {workers[bad].pid})", flush=True)
            return 1
        if all(c == 0 for c in codes):
            return 0
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
