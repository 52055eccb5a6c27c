"""Locality by hand: every number of an observation has a weight."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lofo_rl.locality.base import Pairs, See, as_it_is
from lofo_rl.types import Array, Key, LofoError, Metrics, Tree


@dataclass(frozen=True)
class Handcrafted:
    """Distance sqrt(sum_i (scale_i · Δ_i)²); the instance is a function: `locality(observation)`.

    Observations are arrays of NumPy or of jax, and so is the embedding. There is nothing to fit.
    """

    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            scale = np.asarray(self.scale)
        except ValueError:
            scale = np.asarray(None)
        is_valid = scale.ndim == 1 and scale.size and scale.dtype.kind in "iuf"
        if not is_valid or not np.isfinite(scale).all():
            raise LofoError(
                "scale must have one finite number for each number of an observation, such as "
                f"(1.0, 12.2), got {self.scale!r}"
            )
        object.__setattr__(self, "scale", tuple(scale.tolist()))

    def __call__(self, observation: Any) -> Any:
        """The embedding of observations [..., size], float32 of the same shape."""
        given = observation if hasattr(observation, "astype") else np.asarray(observation)
        if given.dtype.kind in "cmMOSU":
            raise LofoError(f"observations must be numbers, got {given.dtype}: {observation!r}")
        if given.shape[-1:] != (self.size,):
            raise LofoError(
                f"a scale of {self.size} numbers needs observations of as many, not of shape "
                f"{list(given.shape)}"
            )
        return given.astype(np.float32) * np.asarray(self.scale, np.float32)

    @property
    def size(self) -> int:
        return len(self.scale)

    def init(self, key: Key) -> Tree:
        """No parameters."""
        del key
        return ()

    def fit(
        self, params: Tree, pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[Tree, Metrics]:
        """The same parameters: nothing is learned."""
        del pairs, key, see
        return params, {}

    def embed(self, params: Tree, observation: Array) -> Array:
        """`self(observation)`, in the form that a `Locality` has."""
        del params
        embedding: Array = self(observation)
        return embedding
