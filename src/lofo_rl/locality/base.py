"""A locality is only an embedding: nearness is Euclidean there, strictly within a radius."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from lofo_rl.types import Array, Key, Metrics, Tree


class Pairs(NamedTuple):
    """States one action apart, from random trajectories, as rows of a table of observations.

    Worlds with few distinct states share rows: the data are then small indices, and an encoder
    need look at each distinct observation only once a step. Where pictures would fill the memory
    the table holds codes, and whoever uses it is told how to `see` them.
    """

    table: Array  # [M, ...] observations, or codes of them
    anchor: Array  # [T] int32, s
    successor: Array  # [T] int32, s' one action later


See = Callable[[Array], Array]  # from rows of a table to observations


def as_it_is(rows: Array) -> Array:
    """The table already holds observations."""
    return rows


class Locality(Protocol):
    """Turns an observation into a point."""

    @property
    def size(self) -> int:
        """How many numbers a point has."""
        ...

    def init(self, key: Key) -> Tree:
        """Draws the parameters."""
        ...

    def fit(
        self, params: Tree, pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[Tree, Metrics]:
        """Learns from random trajectories; afterwards the embedding is fixed for ever."""
        ...

    def embed(self, params: Tree, observation: Array) -> Array:
        """The point of an observation, float32 [..., size]."""
        ...


@runtime_checkable
class Gradual(Locality, Protocol):
    """A locality whose `fit` is made of epochs, so that a long fit can show how far it is."""

    @property
    def num_epochs(self) -> int:
        """How many make a fit, each with a key of its own, split from that of `fit`."""
        ...

    def begin(self, params: Tree, pairs: Pairs, see: See = as_it_is) -> Tree:
        """A learner that has looked at the pairs, and learnt nothing."""
        ...

    def epoch(
        self, learner: Tree, pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[Tree, Array]:
        """The learner after one more epoch, and the losses [batches] on the way."""
        ...

    def end(self, learner: Tree, losses: Array) -> tuple[Tree, Metrics]:
        """What `fit` gives, from the last learner and the losses [epochs, batches]."""
        ...
