"""Random rows in proportion to a weight."""

import jax
import jax.numpy as jnp

from lofo_rl.types import Array, Key

BLOCK = 256  # rows whose weights are summed up before one of them is chosen


def draw_weighted(weight: Array, num: int, key: Key) -> Array:
    """`num` rows, each in proportion to its weight [C]; never one of weight 0.

    A block of rows by the sum of its weights, then a row of that block: no running sum over all
    rows, for which a GPU takes many passes.
    """
    weight = weight.astype(jnp.float32)
    blocks = jnp.pad(weight, (0, -weight.size % BLOCK)).reshape(-1, BLOCK)
    uniform = 1.0 - jax.random.uniform(key, (2, num))  # in (0, 1]
    first = BLOCK * _find(jnp.sum(blocks, axis=-1), uniform[0])
    # Read from `weight`: of the padded blocks only the sums are ever written down.
    rows = first[:, None] + jnp.arange(BLOCK)
    own = weight.at[rows].get(mode="fill", fill_value=0.0)
    return first + _find(own, uniform[1])


def _find(weight: Array, uniform: Array) -> Array:
    """The entries of `weight`, [C] or [num, C], on which uniform numbers [num] in (0, 1] fall."""
    total = jnp.cumsum(weight, axis=-1)
    # Rounding may lift the sum where the weight is 0, or leave it below every share.
    is_reached = (total >= uniform[:, None] * total[..., -1:]) & (weight > 0)
    any_row = jnp.argmax(weight > 0, axis=-1)
    found = jnp.where(jnp.any(is_reached, -1), jnp.argmax(is_reached, axis=-1), any_row)
    return found.astype(jnp.int32)
