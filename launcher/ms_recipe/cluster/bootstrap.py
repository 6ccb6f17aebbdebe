"""How a node gets the agent: its text travels as the first line of standard input, so nothing is installed there."""

from __future__ import annotations

import base64
import functools
import zlib
from pathlib import Path

# Read one line without reading ahead (FileIO reads byte by byte up to the newline), then become the program on it.
# No single quote in it: it goes through ssh, docker exec and srun as one shell word.
BOOT = (
    'import sys;sys.version_info<(3,8) and sys.exit("ms-recipe: python 3.8 or later is needed on the node, '
    'this is "+sys.version.split()[0]);import base64,zlib;f=open(0,"rb",0,closefd=False);'
    'n,t=map(base64.b64decode,f.readline().split());exec(compile(zlib.decompress(t),n.decode(),"exec"),'
    '{"__name__":"ms_recipe.node"})'
)
HERE = Path(__file__).resolve().parent


@functools.cache
def program(name: str, call: str) -> bytes:
    """The file ``name`` of this folder, ending in ``call``, as the line that BOOT executes; tracebacks name the file."""
    text = (HERE / name).read_text(encoding="utf-8") + f"\n{call}\n"
    words = (str(HERE / name).encode(), zlib.compress(text.encode(), 9))
    return b" ".join(base64.b64encode(word) for word in words) + b"\n"


def agent() -> bytes:
    """The agent as the first line of its standard input."""
    return program("agent.py", "sys.exit(main())")


def command(mark: str, python: str = "python3") -> list[str]:
    """The words that start the agent on a node; ``mark`` is ``<run id>/<rank>`` (``@``: rank from MPI, Slurm)."""
    return [python, "-u", "-c", BOOT, "ms-recipe-agent", mark]
