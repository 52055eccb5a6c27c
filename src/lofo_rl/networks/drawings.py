"""Transposed convolutions in turn by the kernels of `sliding`: what they draw, or how it misses.

On the way back, each layer minds the activation of the one below.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.networks import tiles
from lofo_rl.networks.patchless import OURS, Kernels, added
from lofo_rl.networks.sliding import Goal, Sliding
from lofo_rl.types import Array

MOST_DRAWN = 128  # numbers of a block that may be compared where they are drawn
Arrays = tuple[Array, ...]


class Way(NamedTuple):
    """How layers follow each other; the activation is for all but the last."""

    strides: tuple[int, ...]
    activation: str
    kernels: Kernels = OURS


def spread(x: Array, weights: Arrays, biases: Arrays, way: Way) -> Array:
    """Transposed convolutions of [N, H, W, C] with [C, k, k, O] in turn, in the dtype of `x`."""
    weights = tuple(jnp.moveaxis(weight, 0, -1) for weight in weights)
    *_, depth, _ = weights[-1].shape
    stride = way.strides[-1]
    if not tiles.is_ragged(stride, depth):
        return _spread(x, weights, biases, way)
    height, width = x.shape[1:3]
    for weight, step in zip(weights, way.strides, strict=True):
        height, width = ((n - 1) * step + len(weight) for n in (height, width))
    blocks = _spread(x, *_deepened(weights, biases, way))
    blocks = blocks[..., : stride**2 * depth].reshape(*blocks.shape[:3], stride, stride, depth)
    return tiles.join(blocks)[:, :height, :width]


def miss(x: Array, weights: Arrays, biases: Arrays, goal: Goal, scale: float, way: Way) -> Array:
    """By how much what `spread` draws misses its goal: half the squares, counted and added up.

    Pixels of the goal's table, as blocks of the last stride, are in the drawing's units once they
    are multiplied by `scale`. The goal has no gradient.
    """
    weights = tuple(jnp.moveaxis(weight, 0, -1) for weight in weights)
    weights, biases, way = _deepened(weights, biases, way)
    return _miss(x, weights, biases, goal, scale, way)


def _deepened(weights: Arrays, biases: Arrays, way: Way) -> tuple[Arrays, Arrays, Way]:
    """The layers with the last one drawing blocks."""
    *strides, stride = way.strides
    last = tiles.deepen_kernel(weights[-1], stride)
    bias = tiles.fill(jnp.tile(biases[-1], stride**2), 0)
    way = way._replace(strides=(*strides, 1))
    return (*weights[:-1], last), (*biases[:-1], bias), way


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _spread(x: Array, weights: Arrays, biases: Arrays, way: Way) -> Array:
    return _spread_forth(x, weights, biases, way)[0]


def _spread_forth(x: Array, weights: Arrays, biases: Arrays, way: Way) -> tuple[Array, Any]:
    given = _prepare(x, weights, biases, way)
    slide, weight = _last(given[-1], weights, way)
    return slide.draw(given[-1], weight, biases[-1], "none"), (given, weights)


def _spread_back(way: Way, seen: Any, change: Array) -> tuple[Array, Arrays, Arrays]:
    given, weights = seen
    below, learnt, sums = _return(given, weights, way, change)
    return below, learnt, (*sums, added(change))


_spread.defvjp(_spread_forth, _spread_back)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _miss(x: Array, weights: Arrays, biases: Arrays, goal: Goal, scale: float, way: Way) -> Array:
    return _miss_forth(x, weights, biases, goal, scale, way)[0]


def _miss_forth(
    x: Array, weights: Arrays, biases: Arrays, goal: Goal, scale: float, way: Way
) -> tuple[Array, Any]:
    given = _prepare(x, weights, biases, way)
    slide, weight = _last(given[-1], weights, way)
    missed, change, total = slide.miss(given[-1], weight, biases[-1], goal, scale)
    return missed, (given, weights, change, total)


def _miss_back(
    scale: float, way: Way, seen: Any, share: Array
) -> tuple[Array, Arrays, Arrays, None]:
    del scale
    given, weights, change, total = seen
    # The change was written down for a share of 1; the last layer's weights bear the true one.
    weights = (*weights[:-1], weights[-1] * share)
    below, learnt, sums = _return(given, weights, way, change)
    return below, (*learnt[:-1], learnt[-1] * share), (*sums, total * share), None


_miss.defvjp(_miss_forth, _miss_back)


def _prepare(x: Array, weights: Arrays, biases: Arrays, way: Way) -> Arrays:
    """What each layer is given."""
    given = [x]
    for weight, bias, stride in zip(weights[:-1], biases, way.strides, strict=False):
        slide = way.kernels.drawing(given[-1], weight, stride)
        given.append(slide.draw(given[-1], weight.astype(x.dtype), bias, way.activation))
    return tuple(given)


def _last(x: Array, weights: Arrays, way: Way) -> tuple[Sliding, Array]:
    slide = way.kernels.drawing(x, weights[-1], way.strides[-1])
    return slide, weights[-1].astype(x.dtype)


def _return(
    given: Arrays, weights: Arrays, way: Way, change: Array
) -> tuple[Array, Arrays, Arrays]:
    """The gradients of what came in, of the weights, and of all biases but the last."""
    learnt, sums = [], []
    for k in reversed(range(len(given))):
        slide = way.kernels.drawing(given[k], weights[k], way.strides[k])
        learnt.append(slide.learn(change, given[k]))
        weight = weights[k].astype(change.dtype)
        change, total = slide.read_back(change, weight, given[k], way.activation if k else "none")
        sums.append(total)
    return change, tuple(learnt[::-1]), tuple(sums[-2::-1])
