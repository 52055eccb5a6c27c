"""An own rule of forgetting: a random neighbor leaves, not the oldest.

`choose` says which row a new sample takes; it needs NumPy alone. `place` is its form for jax.
"""

import dataclasses
from typing import ClassVar

import jax  # for `place` alone
import jax.numpy as jnp

import lofo_rl
from lofo_rl import functional
from lofo_rl.buffers import Placement
from lofo_rl.testing import check_rule


@dataclasses.dataclass(frozen=True)
class AnyNeighbor:
    radius: float
    limit: int
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def choose(self, ledger, near, rng):
        if len(near) >= self.limit:
            return Placement(rng.choice(near), len(near), overflow=False)
        if ledger.size < ledger.capacity:
            return Placement(ledger.size, len(near), overflow=False)
        return Placement(rng.integers(ledger.size), len(near), overflow=True)


check_rule(AnyNeighbor(0.5, 10))  # raises an error if the rule breaks a promise
print("old rewards left of ten in a cell, after so many new visits (mean of 100 buffers)")
for rule in (lofo_rl.Local(0.5, 10), AnyNeighbor(0.5, 10)):
    buffers = [lofo_rl.ReplayBuffer(rule, capacity=64, seed=seed) for seed in range(100)]
    for visit in range(-10, 40):
        for buffer in buffers:
            buffer.add({"reward": 4.0 if visit < 0 else 1.0}, embedding=[0.0, 0.0])
        if visit + 1 in (5, 10, 20, 40):
            left = sum((buffer.contents().items["reward"] == 4).sum() for buffer in buffers)
            print(f"  {type(rule).__name__:11} {visit + 1:2}: {left / 100:5.2f}")


@lofo_rl.register_dataclass
@dataclasses.dataclass(frozen=True)
class Compiled(AnyNeighbor):
    def place(self, ledger, embedding, key):
        near = ledger.live & functional.near(ledger.embedding, embedding, self.radius)
        num_near = jnp.sum(near, dtype=jnp.int32)
        is_crowded, is_full = num_near >= self.limit, ledger.size >= ledger.capacity
        candidates = jnp.where(is_crowded, near, ledger.live)
        drawn = jnp.where(candidates, jax.random.uniform(key, ledger.stamp.shape), -1.0)
        slot = jnp.where(is_crowded | is_full, jnp.argmax(drawn).astype(jnp.int32), ledger.size)
        return Placement(slot, num_near, is_full & ~is_crowded)


check_rule(Compiled(0.5, 10))  # also that `choose` and `place` draw the same rows as often
