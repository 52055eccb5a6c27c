"""Gradients of large weights, told by their factors.

A weight's gradient is a product: the inputs of its layer by the slopes of its outputs. Of a large
weight that takes longer to write down, and to read again, than to make. So a layer may have room
for the factors; then it leaves them there, and whoever takes the step makes the product on the way
(`agents.descent`). Such a layer is to be applied once: factors of two uses cannot be added up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo.types import Array, Tree

LEAST = 2**18  # numbers of a weight that is large
ROOM = "factors"  # the name of it in a layer


class Factors(NamedTuple):
    """A gradient [fan_in, fan_out] as `inputs.T @ slopes`."""

    inputs: Array  # [N, fan_in]
    slopes: Array  # [N, fan_out]


def make_room(layer: dict[str, Array], num_rows: int) -> Tree:
    """The layer with room for the factors of so many rows, if its weight is large."""
    weight = layer["weight"]
    if weight.size < LEAST:
        return layer
    sizes = len(weight), weight.size // len(weight)
    return layer | {ROOM: Factors(*(jnp.zeros((num_rows, size)) for size in sizes))}


def multiply(layer: Tree, x: Array) -> Array:
    """Rows [..., fan_in] by the layer's weight [fan_in, ...], flat."""
    weight = layer["weight"].reshape(x.shape[-1], -1)
    if ROOM not in layer:
        return x @ weight
    found = _multiply(x.reshape(-1, x.shape[-1]), weight, layer[ROOM])
    return found.reshape(*x.shape[:-1], -1)


def take_factors(gradient: Tree) -> Tree:
    """The gradient with factors in place of the weights that had room for them."""

    def take(layer: Tree) -> Tree:
        if not (isinstance(layer, dict) and ROOM in layer):
            return layer
        return {name: x for name, x in layer.items() if name != ROOM} | {"weight": layer[ROOM]}

    return jax.tree.map(take, gradient, is_leaf=lambda x: isinstance(x, dict))


@jax.custom_vjp
def _multiply(x: Array, weight: Array, room: Factors) -> Array:
    del room
    return x @ weight


def _multiply_forth(x: Array, weight: Array, room: Factors) -> tuple[Array, tuple[Array, Array]]:
    del room
    return x @ weight, (x, weight)


def _multiply_back(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array, Factors]:
    x, weight = kept
    # Last reads come first: a weight can then be changed where it lies.
    below, slope = jax.lax.optimization_barrier((slope @ weight.T, slope))
    return below, jnp.zeros_like(weight), Factors(x, slope)


_multiply.defvjp(_multiply_forth, _multiply_back)
