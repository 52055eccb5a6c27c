"""The cross-entropy method: sequences of actions are drawn, and the best shape the next draw.

It knows no model: what it maximises is a function of candidate sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.types import Array, Key, Tree

Objective = Callable[[Array, Tree], Array]  # candidates [K, H, A] and fresh lots -> returns [K]


class Plan(NamedTuple):
    """The belief about the best sequence of actions, one normal for each number."""

    mean: Array  # [H, A]
    std: Array  # [H, A]


@dataclass(frozen=True)
class CEM:
    """Plans actions in [-1, 1]; the defaults are PlaNet's."""

    horizon: int = 12
    num_iterations: int = 10
    num_candidates: int = 1000
    num_elites: int = 100  # candidates that the next belief is fitted to
    variance_floor: float = 1e-6  # added to the variance, so that a belief can always move

    def __post_init__(self) -> None:
        for name in ("horizon", "num_iterations", "num_elites"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_candidates < self.num_elites:
            raise ValueError(
                f"num_candidates must be at least num_elites={self.num_elites}, "
                f"got {self.num_candidates}"
            )

    def plan(
        self,
        objective: Objective,
        action_size: int,
        key: Key,
        draw: Callable[[Key], Tree] = lambda key: key,
    ) -> Plan:
        """The belief after all iterations; its first mean is the action to take.

        `draw` makes the objective's lots of a key, for all iterations at once.
        """
        key_noise, key_objective = jax.random.split(key)
        shape = self.num_candidates, self.horizon, action_size
        noise = jax.random.normal(key_noise, (self.num_iterations, *shape))  # [I, K, H, A], at once
        lots = jax.vmap(draw)(jax.random.split(key_objective, self.num_iterations))

        def refine(plan: Plan, given: tuple[Array, Tree]) -> tuple[Plan, None]:
            noise, lots = given
            candidates = jnp.clip(plan.mean + plan.std * noise, -1, 1)
            return self.refit(candidates, objective(candidates, lots), plan.mean), None

        first = Plan(jnp.zeros(shape[1:]), jnp.ones(shape[1:]))
        return jax.lax.scan(refine, first, (noise, lots))[0]

    def refit(self, candidates: Array, returns: Array, near: Array | None = None) -> Plan:
        """The normal of the best candidates; among equals, the earlier ones.

        Moments are taken about what is `near` them, or the very best: both in one pass, which about
        a far point would lose digits.
        """
        _, best = jax.lax.top_k(returns, self.num_elites)
        near = candidates[best[0]] if near is None else near
        away = candidates[best] - near
        mean, square = jnp.mean(jnp.stack([away, away**2], axis=1), axis=0)
        variance = jnp.maximum(square - mean**2, 0.0)
        return Plan(near + mean, jnp.sqrt(variance + self.variance_floor))
