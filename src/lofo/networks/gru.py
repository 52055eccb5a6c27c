"""The cell that carries the recurrent state: what acts on it, and its gates."""

import jax
import jax.numpy as jnp

from lofo.networks.blocks import mix
from lofo.networks.recurrence import Apply, Layers
from lofo.types import Array

NORM_EPSILON = 1e-3  # Keras' default


def act_on(layers: Layers, action: Array) -> Array:
    """What actions add to the input layer."""
    layer = layers["action"]
    return mix(layer["weight"].astype(jnp.float32), action, layer["bias"])


def gate(apply: Apply, layers: Layers, gates: Array, deterministic: Array) -> Array:
    """The next state, by what the gates are given; layers may have a "norm"."""
    if "norm" in layers:
        gates = apply(layers["norm"], standardise(gates))
    reset, candidate, update = jnp.split(gates, 3, axis=-1)
    return advance(reset, candidate, update, deterministic)


def advance(reset: Array, candidate: Array, update: Array, deterministic: Array) -> Array:
    """The next state by its gates."""
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1)  # biased towards remembering
    return update * candidate + (1 - update) * deterministic


def standardise(x: Array) -> Array:
    """To mean 0 and variance 1 over the last axis."""
    # both moments in one pass over x: one kernel less in every step
    mean, square = jnp.mean(x, axis=-1, keepdims=True), jnp.mean(x**2, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.maximum(square - mean**2, 0.0) + NORM_EPSILON)
