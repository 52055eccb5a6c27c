"""Which row a newcomer takes: Fifo, Reservoir and Local differ in nothing else.

Rules are pytrees: the numbers of a rule are data, so they can be traced and mapped over.
"""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.ledger import Ledger, Placement
from lofo_rl.types import Array, Key, register_dataclass

YOUNGER_THAN_ALL = np.iinfo(np.int32).max  # a stamp that no row can carry


class Forgetting(Protocol):
    """A rule for whom a newcomer replaces."""

    needs_embedding: ClassVar[bool]
    voids_rewards: ClassVar[bool]  # in trajectories, a forgotten start's reward becomes unknown

    def place(self, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
        """The row the newcomer takes."""
        ...


def near(embeddings: Array, embedding: Array, radius: Array | float) -> Array:
    """Which embeddings lie strictly within the radius: the one definition of a neighbourhood."""
    # No norm expansion: it cancels, and puts points on the wrong side of a small radius.
    squares = jnp.square(embeddings - embedding).sum(axis=-1)
    return squares < jnp.square(jnp.asarray(radius, jnp.float32))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fifo:
    """First in, first out."""

    needs_embedding: ClassVar[bool] = False
    voids_rewards: ClassVar[bool] = False

    def place(self, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
        """The next row of the ring: constant time, neither embedding nor key."""
        return _without_neighbours(ledger.clock % ledger.capacity)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Reservoir:
    """A uniform sample of everything seen so far."""

    needs_embedding: ClassVar[bool] = False
    voids_rewards: ClassVar[bool] = False

    def place(self, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
        """A fresh row while there is one, else the row of the lot, refused if it falls outside."""
        if key is None:
            raise ValueError("Reservoir draws lots: key must be a random key, got None")
        lot = jax.random.randint(key, (), 0, ledger.clock + 1)
        is_full = ledger.size >= ledger.capacity
        return _without_neighbours(
            jnp.where(is_full, jnp.minimum(lot, ledger.capacity), ledger.size)
        )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Local:
    """Local forgetting: the oldest of the newcomer's neighbours leaves if there are enough."""

    radius: float | Array  # D_local
    limit: int | Array  # N_local
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # Only numbers can be judged here: under a transformation the fields hold tracers.
        if _is_number(self.radius) and not np.all(np.asarray(self.radius) > 0):
            raise ValueError(f"radius must be positive, got {self.radius!r}")
        if _is_number(self.limit) and not _is_count(np.asarray(self.limit)):
            raise ValueError(f"limit must be an integer of at least 1, got {self.limit!r}")

    def place(self, ledger: Ledger, embedding: Array, key: Key | None) -> Placement:
        """The oldest neighbour's row if crowded, else a fresh one, else the oldest of all."""
        live = ledger.live
        is_near = live & near(ledger.embedding, embedding, self.radius)
        num_near = jnp.sum(is_near, dtype=jnp.int32)
        is_crowded = num_near >= self.limit
        candidates = jnp.where(is_crowded, is_near, live)
        oldest = jnp.argmin(jnp.where(candidates, ledger.stamp, YOUNGER_THAN_ALL))
        is_full = ledger.size >= ledger.capacity
        slot = jnp.where(is_crowded | is_full, oldest.astype(jnp.int32), ledger.size)
        return Placement(slot, num_near, is_full & ~is_crowded)


def _without_neighbours(slot: Array) -> Placement:
    return Placement(slot, jnp.zeros((), jnp.int32), jnp.zeros((), bool))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number | np.ndarray)


def _is_count(value: np.ndarray) -> bool:
    return np.issubdtype(value.dtype, np.integer) and bool(np.all(value >= 1))
