"""The rules as compiled decisions: `place` gives the row that a new sample takes.

Rules are pytrees here: their numbers are data, so they can be traced and mapped over.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.rules import Fifo, Local, Reservoir, Rule
from lofo_rl.functional.ledger import Ledger, Placement
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Key, LofoError

YOUNGER_THAN_ALL = np.iinfo(np.int32).max  # a stamp that no row can carry
AT_ONCE = 32  # coordinates that one pass over the rows adds up

Place = Callable[[Any, Ledger, Array, Key | None, Array | None], Placement]


def place(
    rule: Rule, ledger: Ledger, embedding: Array, key: Key | None, group: Array | None = None
) -> Placement:
    """The row of a new sample: by the rule's own method `place`, or by the one that stands here.

    `group` is the new sample's, where the ledger has groups.
    """
    if own := getattr(type(rule), "place", None):
        if group is not None:  # at an infinite distance no rule finds a neighbor
            is_same = ledger.group == group
            ledger = ledger._replace(embedding=jnp.where(is_same, ledger.embedding, jnp.inf))
        return own(rule, ledger, embedding, key)
    if (method := _PLACE.get(type(rule))) is None:
        raise LofoError(
            f"{type(rule).__name__} has no method place(ledger, embedding, key), which "
            "lofo_rl.functional compiles: add one, or use the rule in a ReplayBuffer"
        )
    return method(rule, ledger, embedding, key, group)


def near(embeddings: Array, embedding: Array, radius: Array | float) -> Array:
    """Which embeddings [D, C] lie strictly within the radius of one [D]: what a neighbor is."""
    # No norm expansion: it cancels, and puts points on the wrong side of a small radius.
    squares, points = jnp.zeros(embeddings.shape[1:]), (embeddings, embedding)
    num = len(embedding) // AT_ONCE if len(embedding) > AT_ONCE else 0

    def add(k: Array, squares: Array) -> Array:
        own = (jax.lax.dynamic_slice_in_dim(x, AT_ONCE * k, AT_ONCE) for x in points)
        return _add_squares(squares, *own)

    if num:  # a CPU is slow where it reads many lines of memory at a time
        squares = jax.lax.fori_loop(0, num, add, squares)
    squares = _add_squares(squares, *(x[AT_ONCE * num :] for x in points))
    return squares < jnp.square(jnp.asarray(radius, jnp.float32))


def _add_squares(squares: Array, embeddings: Array, embedding: Array) -> Array:
    # Not a sum along an axis: so a CPU vectorizes over the rows.
    for d in range(len(embedding)):
        squares += jnp.square(embeddings[d] - embedding[d])
    return squares


def _place_fifo(
    rule: Fifo, ledger: Ledger, embedding: Array, key: Key | None, group: Array | None
) -> Placement:
    """The next row of the ring."""
    return _without_neighbors(ledger.clock % ledger.capacity)


def _place_reservoir(
    rule: Reservoir, ledger: Ledger, embedding: Array, key: Key | None, group: Array | None
) -> Placement:
    """A fresh row while there is one, then a random row of all samples seen so far."""
    if key is None:
        raise LofoError("Reservoir draws at random: key must be a random key, got None")
    row = jax.random.randint(key, (), 0, ledger.clock + 1)
    is_full = ledger.size >= ledger.capacity
    return _without_neighbors(jnp.where(is_full, jnp.minimum(row, ledger.capacity), ledger.size))


def _place_local(
    rule: Local, ledger: Ledger, embedding: Array, key: Key | None, group: Array | None
) -> Placement:
    """The oldest neighbor's row if there are enough, else a fresh one, else the oldest."""
    is_near = ledger.live & near(ledger.embedding, embedding, rule.radius)
    if group is not None:
        is_near &= ledger.group == group
    num_near = jnp.sum(is_near, dtype=jnp.int32)
    is_crowded, is_full = num_near >= rule.limit, ledger.size >= ledger.capacity
    is_fresh = jnp.arange(ledger.capacity) == ledger.size
    candidates = jnp.where(is_crowded, is_near, is_full | is_fresh)
    stamps = jnp.where(candidates, ledger.stamp, YOUNGER_THAN_ALL)
    # A CPU does not vectorize argmin; on a GPU the blocks would be one kernel more.
    slot = jax.lax.platform_dependent(stamps, cpu=argmin_in_blocks, default=jnp.argmin)
    return Placement(slot.astype(jnp.int32), num_near, is_full & ~is_crowded)


def argmin_in_blocks(values: Array) -> Array:
    """The position of the least of values [C] int32, as `jnp.argmin` gives it."""
    size = 2 ** (len(values).bit_length() // 2)  # about as many blocks as values in one
    num = len(values) // size
    blocks, rest = values[: num * size].reshape(num, size), values[num * size :]
    least = jnp.append(jnp.min(blocks, axis=1), jnp.min(rest, initial=YOUNGER_THAN_ALL))
    start = jnp.minimum(size * jnp.argmin(least), len(values) - size)
    return start + jnp.argmin(jax.lax.dynamic_slice(values, (start,), (size,)))


def _without_neighbors(slot: Array) -> Placement:
    return Placement(slot, jnp.zeros((), jnp.int32), jnp.zeros((), bool))


_PLACE: dict[type, Place] = {Fifo: _place_fifo, Reservoir: _place_reservoir, Local: _place_local}

for _rule in _PLACE:
    register_dataclass(_rule)
