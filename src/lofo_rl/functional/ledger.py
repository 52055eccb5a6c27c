"""Which samples are kept, in which row, and since when.

Invariant: the live rows are always the prefix [0, size). A new sample takes a fresh row
(slot == size), replaces the sample in a row (slot < size), or is refused (slot == capacity).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.buffers.rules import Placement
from lofo_rl.types import Array

DIGIT = 2**30  # the base in which neighbors are summed: exact beyond both int32 and float32


class Ledger(NamedTuple):
    """All that a buffer knows of its samples, apart from the items."""

    stamp: Array  # [C] int32, the clock at which the row was written
    embedding: Array  # [D, C] float32: a CPU reads one coordinate of all rows in a line
    size: Array  # [] int32
    clock: Array  # [] int32, samples so far
    evictions: Array  # [] int32
    overflow: Array  # [] int32, the evictions that only a larger capacity would have spared
    near_high: Array  # [] int32, neighbors found so far are near_high * 2**30 + near_low
    near_low: Array  # [] int32
    group: Array | None = None  # [C] int32, where only samples of the same group are neighbors

    @property
    def capacity(self) -> int:
        """How many rows there are, live or not."""
        return self.stamp.shape[-1]

    @property
    def live(self) -> Array:
        """Which rows [C] hold a sample."""
        return jnp.arange(self.capacity) < self.size


def init(capacity: int, embedding_size: int, *, is_grouped: bool = False) -> Ledger:
    """An empty ledger; `embedding_size` is 0 for rules that need no embedding."""
    return Ledger(
        stamp=jnp.zeros(capacity, jnp.int32),
        embedding=jnp.zeros((embedding_size, capacity), jnp.float32),
        size=jnp.zeros((), jnp.int32),
        clock=jnp.zeros((), jnp.int32),
        evictions=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), jnp.int32),
        near_high=jnp.zeros((), jnp.int32),
        near_low=jnp.zeros((), jnp.int32),
        group=jnp.zeros(capacity, jnp.int32) if is_grouped else None,
    )


def record(
    ledger: Ledger,
    placement: Placement,
    embedding: Array,
    is_counted: Array | bool = True,
    group: Array | None = None,
) -> Ledger:
    """The ledger after a sample took its place; one that is not counted changes nothing."""
    is_counted = jnp.asarray(is_counted)
    slot = jnp.where(is_counted, placement.slot, ledger.capacity)
    is_fresh = (slot == ledger.size) & (slot < ledger.capacity)
    new = ledger._replace(
        stamp=_write(ledger.stamp, slot, ledger.clock),
        size=ledger.size + is_fresh,
        clock=ledger.clock + is_counted,
        evictions=ledger.evictions + (slot < ledger.size),
        overflow=ledger.overflow + (placement.overflow & is_counted),
    )
    if len(embedding):
        near = ledger.near_low + jnp.where(is_counted, placement.num_near, 0)
        new = new._replace(
            embedding=_write(ledger.embedding, slot, embedding),
            near_high=ledger.near_high + near // DIGIT,
            near_low=near % DIGIT,
        )
    if ledger.group is not None:
        assert group is not None  # an index refuses an item without one
        new = new._replace(group=_write(ledger.group, slot, group))
    return new


def _write(values: Array, slot: Array, new: Array) -> Array:
    """The values [..., C] with new ones [...] in column `slot`; column C is dropped."""
    return jax.lax.platform_dependent(values, slot, new, cpu=_write_one, default=_write_two)


def _write_one(values: Array, slot: Array, new: Array) -> Array:
    return values.at[..., slot].set(new, mode="drop")


def _write_two(values: Array, slot: Array, new: Array) -> Array:
    # The second is dropped. A GPU takes three kernels to scatter one column; a CPU takes half a
    # microsecond more to scatter two.
    slots = jnp.stack([slot, jnp.full_like(slot, values.shape[-1])])
    return values.at[..., slots].set(new[..., None], mode="drop")


def mean_near(ledger: Ledger) -> Array:
    """How many neighbors a new sample has found on average."""
    total = ledger.near_high * jnp.float32(DIGIT) + ledger.near_low
    return total / jnp.maximum(ledger.clock, 1)


def fraction_older(ledger: Ledger, age: Array | int) -> Array:
    """The fraction of live rows that are not among the last `age` samples."""
    is_old = ledger.live & (ledger.stamp < ledger.clock - age)
    return jnp.sum(is_old) / jnp.maximum(ledger.size, 1)
