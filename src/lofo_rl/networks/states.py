"""What the recurrent state-space model knows, passes on and is given."""

from typing import NamedTuple, Self

from lofo_rl.types import Array


class RSSMState(NamedTuple):
    """What the model knows at one moment."""

    deterministic: Array  # [..., deterministic_size]
    stochastic: Array  # [..., latent.size], the sample, flattened

    @classmethod
    def of(cls, features: Array, size: int) -> Self:
        """The state with these features, whose latent has a size."""
        return cls(features[..., size:], features[..., :size])


class Passed(NamedTuple):
    """What one step of observing hands to the next."""

    deterministic: Array  # [..., deterministic_size]
    latent: Array  # [..., latent.size], the sample; or its code, as the latent wants it
    gates: Array  # [..., 3 · deterministic_size], what the deterministic part adds to the GRU's


class Given(NamedTuple):
    """What one step of observing takes from outside the recurrence."""

    action: Array  # [..., hidden_size], the previous action's part of the input layer
    embedding: Array  # [..., hidden_size], the picture's part of the posterior
    is_first: Array  # [...] bool
    noise: Array  # [..., as the latent wants it]
