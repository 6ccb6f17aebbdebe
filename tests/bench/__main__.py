"""``python tests/bench [NAME...]``: run the bench modules beside this file; each prints its figures."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

if __name__ == "__main__":
    wanted = sys.argv[1:]
    for module in sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name[0] != "_"):
        if wanted and module not in wanted:
            continue
        print(f"== {module}", flush=True)
        importlib.import_module(module).main()
