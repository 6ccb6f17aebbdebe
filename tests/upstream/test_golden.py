"""The golden tests on the pinned upstream, unmodified, behind the stand-in."""

from golden_cases import *  # noqa: F403
