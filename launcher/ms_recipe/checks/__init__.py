"""What can be known before a node is touched: upstream's rules on the arguments, and the files they name."""

from ms_recipe.checks.registry import CHECKS, Check, Finding, Report, Severity
from ms_recipe.checks.runner import check_invocation, check_recipe

__all__ = ["CHECKS", "Check", "Finding", "Report", "Severity", "check_invocation", "check_recipe"]
