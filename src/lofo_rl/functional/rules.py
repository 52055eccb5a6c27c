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

Place = Callable[[Any, Ledger, Array, Key | None], Placement]


def place(rule: Rule, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
    """The row of a new sample: by the rule's own method `place`, or by the one that stands here."""
    own: Place | None = getattr(type(rule), "place", None)
    method = own or _PLACE.get(type(rule))
    if method is None:
        raise LofoError(
            f"{type(rule).__name__} has no method place(ledger, embedding, key), which "
            "lofo_rl.functional compiles: add one, or use the rule in a ReplayBuffer"
        )
    return method(rule, ledger, embedding, key)


def near(embeddings: Array, embedding: Array, radius: Array | float) -> Array:
    """Which embeddings [..., D] lie strictly within the radius: the definition of a neighbour."""
    # No norm expansion: it cancels, and puts points on the wrong side of a small radius.
    squares = jnp.square(embeddings - embedding).sum(axis=-1)
    return squares < jnp.square(jnp.asarray(radius, jnp.float32))


def _place_fifo(rule: Fifo, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
    """The next row of the ring."""
    return _without_neighbours(ledger.clock % ledger.capacity)


def _place_reservoir(
    rule: Reservoir, ledger: Ledger, embedding: Array, key: Key | None
) -> Placement:
    """A fresh row while there is one, then a random row of all samples seen so far."""
    if key is None:
        raise LofoError("Reservoir draws at random: key must be a random key, got None")
    lot = jax.random.randint(key, (), 0, ledger.clock + 1)
    is_full = ledger.size >= ledger.capacity
    return _without_neighbours(jnp.where(is_full, jnp.minimum(lot, ledger.capacity), ledger.size))


def _place_local(rule: Local, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
    """The oldest neighbour's row if there are enough, else a fresh one, else the oldest."""
    live = ledger.live
    is_near = live & near(ledger.embedding, embedding, rule.radius)
    num_near = jnp.sum(is_near, dtype=jnp.int32)
    is_crowded = num_near >= rule.limit
    candidates = jnp.where(is_crowded, is_near, live)
    oldest = jnp.argmin(jnp.where(candidates, ledger.stamp, YOUNGER_THAN_ALL))
    is_full = ledger.size >= ledger.capacity
    slot = jnp.where(is_crowded | is_full, oldest.astype(jnp.int32), ledger.size)
    return Placement(slot, num_near, is_full & ~is_crowded)


def _without_neighbours(slot: Array) -> Placement:
    return Placement(slot, jnp.zeros((), jnp.int32), jnp.zeros((), bool))


_PLACE: dict[type, Place] = {Fifo: _place_fifo, Reservoir: _place_reservoir, Local: _place_local}

for _rule in _PLACE:
    register_dataclass(_rule)
