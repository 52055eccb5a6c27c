"""Who is remembered, in which row, since when.

Invariant: the live rows are always the prefix [0, size). A newcomer takes a fresh row
(slot == size), or the row of the one forgotten (slot < size), or is refused (slot == capacity).
"""

from typing import NamedTuple

import jax.numpy as jnp

from lofo_rl.buffers.rules import Placement
from lofo_rl.types import Array

DIGIT = 2**30  # the base in which `near_total` is kept: exact beyond both int32 and float32


class Ledger(NamedTuple):
    """The book of what a buffer remembers, apart from the payload itself."""

    stamp: Array  # [C] int32, the clock at which the row was taken
    embedding: Array  # [C, D] float32
    size: Array  # [] int32
    clock: Array  # [] int32, newcomers seen
    evictions: Array  # [] int32
    overflow: Array  # [] int32, the evictions that only a larger capacity would have spared
    near_total: Array  # [2] int32, neighbours found so far: high and low digit in base 2**30

    @property
    def capacity(self) -> int:
        """How many rows there are, live or not."""
        return self.stamp.shape[-1]

    @property
    def live(self) -> Array:
        """Which rows are taken."""
        return jnp.arange(self.capacity) < self.size


def init(capacity: int, embedding_size: int) -> Ledger:
    """An empty ledger; `embedding_size` is 0 for rules that ask for no embedding."""
    return Ledger(
        stamp=jnp.zeros(capacity, jnp.int32),
        embedding=jnp.zeros((capacity, embedding_size), jnp.float32),
        size=jnp.zeros((), jnp.int32),
        clock=jnp.zeros((), jnp.int32),
        evictions=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), jnp.int32),
        near_total=jnp.zeros(2, jnp.int32),
    )


def record(
    ledger: Ledger, placement: Placement, embedding: Array, is_counted: Array | bool = True
) -> Ledger:
    """The ledger after the newcomer took its place; one not counted leaves no trace at all."""
    is_counted = jnp.asarray(is_counted)
    slot = jnp.where(is_counted, placement.slot, ledger.capacity)
    # The second goes nowhere: of a scatter of a single row XLA makes three kernels on a GPU.
    slots = jnp.stack([slot, jnp.full_like(slot, ledger.capacity)])
    is_fresh = (slot == ledger.size) & (slot < ledger.capacity)
    digits = ledger.near_total + jnp.where(is_counted, placement.num_near, 0) * jnp.array([0, 1])
    return Ledger(
        stamp=ledger.stamp.at[slots].set(ledger.clock, mode="drop"),
        embedding=ledger.embedding.at[slots].set(embedding, mode="drop"),
        size=ledger.size + is_fresh,
        clock=ledger.clock + is_counted,
        evictions=ledger.evictions + (slot < ledger.size),
        overflow=ledger.overflow + (placement.overflow & is_counted),
        # No stack: under vmap that is two more kernels a step.
        near_total=jnp.where(jnp.arange(2) == 0, digits[0] + digits[1] // DIGIT, digits[1] % DIGIT),
    )


def mean_near(ledger: Ledger) -> Array:
    """How many neighbours a newcomer has found on average."""
    total = ledger.near_total[0] * jnp.float32(DIGIT) + ledger.near_total[1]
    return total / jnp.maximum(ledger.clock, 1)


def fraction_older(ledger: Ledger, age: Array | int) -> Array:
    """The fraction of live rows that are not among the last `age` newcomers."""
    is_old = ledger.live & (ledger.stamp < ledger.clock - age)
    return jnp.sum(is_old) / jnp.maximum(ledger.size, 1)
