"""An own rule of forgetting: a random neighbour leaves, not the oldest.

A rule is a frozen dataclass with one method, `place`, which answers one question: which row does
the newcomer take? `ReplayBuffer` knows the three built-in rules only; an own rule goes into the
functional `Replay`, which runs under jit, scan and vmap, and into `lofo_rl.experiments.Buffer`.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

import lofo_rl
from lofo_rl.buffers import Placement
from lofo_rl.functional import near
from lofo_rl.testing import check_rule


@lofo_rl.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnyNeighbour:
    """Local forgetting without a sense of age."""

    radius: float
    limit: int
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def place(self, ledger, embedding, key):
        is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
        num_near = jnp.sum(is_near, dtype=jnp.int32)
        is_crowded, is_full = num_near >= self.limit, ledger.size >= ledger.capacity
        candidates = jnp.where(is_crowded, is_near, ledger.live)
        lots = jnp.where(candidates, jax.random.uniform(key, ledger.stamp.shape), -1.0)
        slot = jnp.where(is_crowded | is_full, jnp.argmax(lots).astype(jnp.int32), ledger.size)
        return Placement(slot, num_near, is_full & ~is_crowded)


def stale_after(rule, num_visits):
    """Old rewards left in a cell that held ten of them, after new ones have come."""
    replay = lofo_rl.Replay(lofo_rl.TransitionIndex(rule, capacity=64))
    rewards = jnp.concatenate([jnp.full(10, 4.0), jnp.full(num_visits, 1.0)])
    keys = jax.random.split(jax.random.key(0), (1000, len(rewards)))

    def count(keys):
        state = replay.init({"reward": jnp.float32(0)}, embedding_size=2)
        visit = lambda s, x: (replay.add(s, {"reward": x[0]}, jnp.zeros(2), x[1]), None)  # noqa: E731
        state, _ = jax.lax.scan(visit, state, (rewards, keys))
        return jnp.sum(state.index.live & (replay.items(state)["reward"] == 4.0))

    return float(jax.jit(jax.vmap(count))(keys).mean())


check_rule(AnyNeighbour(0.5, 10), jax.random.key(0))  # raises if it breaks a promise
print("stale rewards left after so many new visits (mean of 1000 lives)")
for rule in (lofo_rl.Local(0.5, 10), AnyNeighbour(0.5, 10)):
    left = {visits: stale_after(rule, visits) for visits in (5, 10, 20, 40)}
    print(f"  {type(rule).__name__:14}", "  ".join(f"{v}: {n:5.2f}" for v, n in left.items()))
