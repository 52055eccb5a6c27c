"""Returns of rollouts: what rewards along the way and the values behind them promise."""

import jax.numpy as jnp
import numpy as np

from lofo_rl.types import Array


def lambda_returns(rewards: Array, values: Array, discount: float, trace: float) -> Array:
    """G_t = r_t + γ[(1-λ)V_{t+1} + λG_{t+1}], from rewards [H, ...] and values [H + 1, ...].

    The recursion is linear, so all of it is one product with a fixed matrix.
    """
    num = len(rewards)
    steps = np.arange(num)
    decay = np.triu((discount * trace) ** np.maximum(steps - steps[:, None], 0.0))
    ends = np.where(steps < num - 1, 1 - trace, 1.0).reshape(-1, *[1] * (rewards.ndim - 1))
    inputs = rewards + discount * jnp.asarray(ends, jnp.float32) * values[1:]
    return jnp.einsum("ts,s...->t...", jnp.asarray(decay, jnp.float32), inputs, precision="highest")
