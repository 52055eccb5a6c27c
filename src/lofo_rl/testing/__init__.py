"""Checks for rules of your own; importing this needs NumPy alone."""

from lofo_rl.testing.rules import check_rule

__all__ = ["check_rule"]
