"""The cell that carries the recurrent state: what acts on it, and its gates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.networks.blocks import mix
from lofo_rl.networks.recurrence import Layer, Layers
from lofo_rl.types import Array

NORM_EPSILON = 1e-3  # Keras' default
NUM_GATES = 3  # reset, candidate and update, side by side


def act_on(layers: Layers, action: Array) -> Array:
    """What actions add to the input layer."""
    layer = layers["action"]
    return mix(layer["weight"].astype(jnp.float32), action, layer["bias"])


def gate(layers: Layers, gates: Array, deterministic: Array) -> Array:
    """The next state, by what the gates are given; layers may have a "norm"."""
    if "norm" in layers:
        return _gate_normed(gates, layers["norm"], deterministic)
    reset, candidate, update = jnp.split(gates, NUM_GATES, axis=-1)
    return advance(reset, candidate, update, deterministic)


def advance(reset: Array, candidate: Array, update: Array, deterministic: Array) -> Array:
    """The next state by its gates."""
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1)  # biased towards remembering
    return update * candidate + (1 - update) * deterministic


@jax.custom_vjp
def _gate_normed(gates: Array, norm: Layer, deterministic: Array) -> Array:
    """`advance` behind a norm.

    On the way back, the slopes of all gates are that of the state times what is known ahead of it.
    So are the two means that a norm takes off them: these are added up over a state, and need not
    wait until the slopes of its gates are written down. (Slopes pass back only, not forth.)
    """
    return keep(gates, norm, deterministic)[0]


class Kept(NamedTuple):
    """What the slope of a state [..., size] is multiplied with, on its way to the gates."""

    by_gates: Array  # [..., gates, size]
    by_norm: Array  # [..., gates, size], behind the norm
    means: list[Array]  # [..., size] twice: over gates, plain and times `normed`
    normed: Array  # [..., gates, size]
    share: Array  # [..., size], of the state before


def keep(gates: Array, norm: Layer, deterministic: Array) -> tuple[Array, Kept]:
    """The next state, and what its way back wants to know."""
    normed, scale = _standardise(_apart(gates))
    given = normed * _apart(norm["weight"]) + _apart(norm["bias"])
    each = [given[..., k, :] for k in range(NUM_GATES)]
    found, pull_back = jax.vjp(advance, *each, deterministic)
    *by_given, share = pull_back(jnp.ones_like(found))  # a state's numbers do not mix
    by_norm = jnp.stack(by_given, axis=-2)
    by_gates = by_norm * _apart(norm["weight"]) * scale
    means = [jnp.sum(x, axis=-2) / gates.shape[-1] for x in (by_gates, by_gates * normed)]
    return found, Kept(by_gates, by_norm, means, normed, share)


def _back(kept: Kept, slope: Array) -> tuple[Array, Layer, Array]:
    by_gates, by_norm, means, normed, share = kept
    mean, along = (jnp.sum(slope * by, axis=-1)[..., None, None] for by in means)
    wide = slope[..., None, :]
    of_gates = wide * by_gates - mean - normed * along
    axes = tuple(range(slope.ndim - 1))
    of_norm = {
        name: jnp.sum(wide * by, axis=axes).reshape(-1)
        for name, by in (("weight", by_norm * normed), ("bias", by_norm))
    }
    return of_gates.reshape(*slope.shape[:-1], -1), of_norm, slope * share


_gate_normed.defvjp(keep, _back)


def _apart(x: Array) -> Array:
    """[..., gates, size]"""
    return x.reshape(*x.shape[:-1], NUM_GATES, -1)


def _standardise(x: Array) -> tuple[Array, Array]:
    """To mean 0 and variance 1 over the last two axes, and the factor to the latter."""
    # both moments in one pass over x: one kernel less in every step
    mean, square = (jnp.mean(y, axis=(-2, -1), keepdims=True) for y in (x, x**2))
    scale = jax.lax.rsqrt(jnp.maximum(square - mean**2, 0.0) + NORM_EPSILON)
    return (x - mean) * scale, scale
