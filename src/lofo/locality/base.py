"""A locality is only an embedding: nearness is Euclidean there, strictly within a radius."""

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from lofo.types import Array, Key, Metrics, Tree


class Pairs(NamedTuple):
    """States one action apart, from random trajectories, as rows of a table of observations.

    Worlds with few distinct states share rows: the data are then small indices, and an encoder
    need look at each distinct observation only once a step.
    """

    table: Array  # [M, ...] observations
    anchor: Array  # [T] int32, s
    successor: Array  # [T] int32, s' one action later


def pairs_of(observations: Array, successors: Array) -> Pairs:
    """Pairs whose observations are all taken as distinct."""
    count = jnp.arange(len(observations), dtype=jnp.int32)
    return Pairs(jnp.concatenate([observations, successors]), count, count + len(observations))


class Locality(Protocol):
    """Turns an observation into a point."""

    @property
    def size(self) -> int:
        """How many numbers a point has."""
        ...

    def init(self, key: Key) -> Tree:
        """Draws the parameters."""
        ...

    def fit(self, params: Tree, pairs: Pairs, key: Key) -> tuple[Tree, Metrics]:
        """Learns from random trajectories; afterwards the embedding is fixed for ever."""
        ...

    def embed(self, params: Tree, observation: Array) -> Array:
        """The point of an observation, float32 [..., size]."""
        ...
