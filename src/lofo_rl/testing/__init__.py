"""Checks for parts of your own."""

from lofo_rl.extras import needs

with needs("jax", __name__):
    from lofo_rl.testing.rules import check_rule

__all__ = ["check_rule"]
