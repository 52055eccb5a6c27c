"""Convolutions and their transposes by the kernels of `sliding`: each is the other's way back."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lofo.networks import onchip
from lofo.networks.sliding import Sliding
from lofo.types import Array

SIZES = 16, 32, 64  # numbers of a place that the kernels know


def suits(x: Array, size: int, activation: str) -> bool:
    """Whether the kernels are for these pictures or places, and for this device."""
    is_known = size in SIZES and activation in ("relu", "none")
    return is_known and x.dtype == jnp.bfloat16 and onchip.is_supported()


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def convolve(
    x: Array, weight: Array, bias: Array, stride: int, activation: str, interpret: bool = False
) -> Array:
    """Pictures [N, H, W, C] with a kernel [k, k, C, O] and a bias [O], in the pictures' dtype."""
    slide = Sliding(x.shape, len(weight), stride, weight.shape[-1], interpret)
    return slide.read(x, weight.astype(x.dtype), bias, activation)


def _convolve_forth(x: Array, weight: Array, bias: Array, *options: Any) -> tuple[Array, Any]:
    y = convolve(x, weight, bias, *options)
    return y, (x, weight, y)


def _convolve_back(
    stride: int, activation: str, interpret: bool, seen: Any, change: Array
) -> tuple[Array, Array, Array]:
    x, weight, y = seen
    slide = Sliding(x.shape, len(weight), stride, weight.shape[-1], interpret)
    change = _before(activation, y, change)
    below = slide.draw(change, weight.astype(x.dtype), jnp.zeros(x.shape[-1]), "none")
    return below, slide.learn(x, change), _added(change)


convolve.defvjp(_convolve_forth, _convolve_back)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def spread(
    x: Array, weight: Array, bias: Array, stride: int, activation: str, interpret: bool = False
) -> Array:
    """The transposed convolution of [N, H, W, C] with [C, k, k, O], in the dtype of `x`."""
    return _drawing(x, weight, stride, interpret).draw(x, _turned(weight, x), bias, activation)


def _spread_forth(x: Array, weight: Array, bias: Array, *options: Any) -> tuple[Array, Any]:
    y = spread(x, weight, bias, *options)
    return y, (x, weight, y)


def _spread_back(
    stride: int, activation: str, interpret: bool, seen: Any, change: Array
) -> tuple[Array, Array, Array]:
    x, weight, y = seen
    slide = _drawing(x, weight, stride, interpret)
    change = _before(activation, y, change)
    below = slide.read(change, _turned(weight, x), jnp.zeros(x.shape[-1]), "none")
    return below, jnp.moveaxis(slide.learn(change, x), -1, 0), _added(change)


spread.defvjp(_spread_forth, _spread_back)


def _drawing(x: Array, weight: Array, stride: int, interpret: bool) -> Sliding:
    count, *sides, size = x.shape
    kernel, depth = weight.shape[2:]
    height, width = ((n - 1) * stride + kernel for n in sides)
    return Sliding((count, height, width, depth), kernel, stride, size, interpret)


def _turned(weight: Array, x: Array) -> Array:
    """The kernel that reads what this one draws."""
    return jnp.moveaxis(weight.astype(x.dtype), 0, -1)


def _before(activation: str, y: Array, change: Array) -> Array:
    """The gradient ahead of the activation."""
    return change if activation == "none" else jnp.where(y > 0, change, 0)


def _added(change: Array) -> Array:
    """The sum over all pixels: row upon row first, for few channels make short rows."""
    *_, width, depth = change.shape
    rows = change.astype(jnp.float32).reshape(-1, width * depth)
    return rows.sum(0).reshape(width, depth).sum(0)
