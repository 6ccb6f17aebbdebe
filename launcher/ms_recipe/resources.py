"""Where templates/, recipes/ and vendor/ are, in a wheel and in a checkout, and where the user's state lives."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent


def path(*parts: str) -> Path:
    """The shipped file or folder ``parts``, for example ``path("templates", "pretrain_ptd.sh.j2")``.

    A wheel carries copies in ``ms_recipe/_data``; an editable install has none and uses the checkout.

    Raises:
        FileNotFoundError: neither place has it (a broken installation).
    """
    for root in (_PACKAGE / "_data", _CHECKOUT):
        candidate = root.joinpath(*parts)
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"{'/'.join(parts)} is in neither {_PACKAGE / '_data'} nor {_CHECKOUT}: reinstall")


def checkout() -> Path | None:
    """The source checkout this package runs from, or None for an installed wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "vendor").is_dir() else None


def home() -> Path:
    """Where upstream checkouts and trees are kept.

    ``$MS_RECIPE_HOME``, else ``vendor/checkouts`` of a source checkout, else ``$XDG_DATA_HOME/ms-recipe``.
    """
    if os.environ.get("MS_RECIPE_HOME"):
        return Path(os.environ["MS_RECIPE_HOME"]).expanduser().resolve()
    source = checkout()
    if source is not None:
        return source / "vendor" / "checkouts"
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "ms-recipe"
