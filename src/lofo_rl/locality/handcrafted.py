"""Locality by hand: weigh each number of the state, then measure as the crow flies."""

from dataclasses import dataclass

import jax.numpy as jnp

from lofo_rl.locality.base import Pairs, See, as_it_is
from lofo_rl.types import Array, Key, LofoError, Metrics, Tree


@dataclass(frozen=True)
class Handcrafted:
    """Distance sqrt(sum_i (scale_i · Δ_i)²)."""

    scale: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.scale)

    def init(self, key: Key) -> Tree:
        """Nothing to draw."""
        del key
        return ()

    def fit(
        self, params: Tree, pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[Tree, Metrics]:
        """Nothing to learn."""
        del pairs, key, see
        return params, {}

    def embed(self, params: Tree, observation: Array) -> Array:
        del params
        if jnp.shape(observation)[-1:] != (self.size,):
            raise LofoError(
                f"a scale of {self.size} numbers needs observations of as many, not of shape "
                f"{list(jnp.shape(observation))}"
            )
        return observation.astype(jnp.float32) * jnp.asarray(self.scale, jnp.float32)
