"""What a batch costs: errors of predictions, and how far a latent's two beliefs lie apart."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lofo_rl.networks import Latent, Statistics
from lofo_rl.types import Array


def dynamics_loss(prediction: Array, target: Array, terminated: Array) -> Array:
    """Half the squared error, summed over the state; an ended episode has no successor to learn.

    Terminal samples count in the mean's denominator, as in LoCA2.
    """
    axes = tuple(range(terminated.ndim, target.ndim))
    error = 0.5 * jnp.sum((target - prediction) ** 2, axis=axes)
    return jnp.mean(jnp.where(terminated, 0.0, error))


def reward_loss(prediction: Array, target: Array, known: Array) -> Array:
    """Half the squared error; 0 where the reward is unknown."""
    return jnp.mean(jnp.where(known, 0.5 * (target - prediction) ** 2, 0.0))


def termination_loss(logit: Array, terminated: Array) -> Array:
    """Binary cross-entropy of the sigmoid of the logit."""
    return jnp.mean(jax.nn.softplus(logit) - jnp.where(terminated, logit, 0.0))


def value_loss(values: Array, action: Array, target: Array) -> Array:
    """Half the squared error of the taken action's value; no gradient through the target."""
    # Masked and added up, for the way back from an index is a scatter: three kernels on a GPU.
    is_taken = jnp.arange(values.shape[-1]) == action[..., None]
    taken = jnp.sum(jnp.where(is_taken, values, 0.0), axis=-1)
    return jnp.mean(0.5 * (jax.lax.stop_gradient(target) - taken) ** 2)


def planning_target(
    reward: Array, termination: Array, next_values: Array, discount: float
) -> Array:
    """The one-step target: the predicted reward, and what the target network promises after it.

    `termination` is a probability, not a decision, and the reward counts whatever it says.
    """
    return reward + discount * (1 - termination) * jnp.max(next_values, axis=-1)


@dataclass(frozen=True)
class BalancedKL:
    """DreamerV2's: the prior is drawn to the posterior more than the reverse."""

    scale: float = 1.0
    balance: float = 0.8  # the prior's share
    free: float = 1.0  # nats of the batch's mean that cost nothing to lower further

    def loss(self, latent: Latent, posterior: Statistics, prior: Statistics) -> tuple[Array, Array]:
        """The loss, and the mean KL it comes from."""
        still_posterior, still_prior = jax.lax.stop_gradient((posterior, prior))
        for_posterior = jnp.mean(latent.kl(posterior, still_prior))
        for_prior = jnp.mean(latent.kl(still_posterior, prior))
        parts = (jnp.maximum(kl, self.free) for kl in (for_posterior, for_prior))
        shares = 1 - self.balance, self.balance
        loss = sum((share * part for share, part in zip(shares, parts, strict=True)), jnp.zeros(()))
        return self.scale * loss, for_posterior


@dataclass(frozen=True)
class HingedKL:
    """PlaNet's: each step's KL counts as far as it exceeds the free nats."""

    free: float = 3.0

    def loss(self, latent: Latent, posterior: Statistics, prior: Statistics) -> tuple[Array, Array]:
        """The loss, and the mean KL it comes from."""
        kl = latent.kl(posterior, prior)
        return jnp.mean(jnp.maximum(kl - self.free, 0.0)), jnp.mean(kl)
