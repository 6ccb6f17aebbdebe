"""Upstream: the pins, the assembled trees, and the flags that the entry points of a pin accept (argspec).

What looks at trees is imported when it is first asked for: `render` needs pins and flags only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ms_recipe.upstream.pins import (
    Pin,
    Repository,
    Requirements,
    default_pin,
    load_pin,
    pin_names,
    requirements,
    tree_path,
)

if TYPE_CHECKING:
    from ms_recipe.upstream.needs import requirement_conflicts, tree_conflicts
    from ms_recipe.upstream.trees import (
        TreeState,
        check_megatron,
        check_origins,
        digest,
        probe_source,
        status,
        verify_tree,
    )

__all__ = [
    "Pin",
    "Repository",
    "Requirements",
    "TreeState",
    "check_megatron",
    "check_origins",
    "default_pin",
    "digest",
    "load_pin",
    "pin_names",
    "probe_source",
    "requirement_conflicts",
    "requirements",
    "status",
    "tree_conflicts",
    "tree_path",
    "verify_tree",
]

_NEEDS = ("requirement_conflicts", "tree_conflicts")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'needs' if name in _NEEDS else 'trees'}"), name)
