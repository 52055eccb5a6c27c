"""Learning steps in a row."""

from collections.abc import Callable
from typing import Any

import jax

from lofo_rl.types import Metrics, Tree

Step = Callable[[Any, Any], tuple[Any, Metrics]]  # (state, batch) to the next state


def in_turn(step: Step, state: Any, batches: Tree) -> tuple[Any, Metrics]:
    """A step for each of the batches, leaves [num, ...]; metrics [num] each, or [] of a single one.

    A single step is no loop, so that the compiler shares what is known around it: an agent that
    has just acted need not ask its Q-network again what it makes of the same patches.
    """
    if len(jax.tree.leaves(batches)[0]) == 1:
        return step(state, jax.tree.map(lambda x: x[0], batches))
    return jax.lax.scan(step, state, batches)
