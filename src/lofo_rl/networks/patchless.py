"""Convolutions and their transposes on a GPU without patches in memory.

Each is the other's way back. The kernels are our own or the library's, `sliding` and `library`, and
`kernels_for` is the rule that chooses. Layers that draw in turn by our own are one: `drawings`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lofo_rl.networks import onchip, tiles
from lofo_rl.networks.library import Library, one_by_one
from lofo_rl.networks.sliding import Sliding
from lofo_rl.types import Array

SIZES = 16, 32, 64  # numbers of a place that our own kernels know
SHORT, MANY = 2**10, 2**22  # numbers of a row, of all pictures: DreamerV2's last bias, no other
ENOUGH = 2**30  # multiplications that keep a GPU busy


@dataclass(frozen=True)
class Kernels:
    """Whose kernels to use."""

    make: Callable[..., Any]  # Sliding or Library
    option: Any  # the last field of what is made

    def slide(self, *form: Any) -> Any:
        """For pictures of a shape, a kernel, a stride and the numbers of a place."""
        return self.make(*form, self.option)

    def drawing(self, x: Array, weight: Array, stride: int) -> Any:
        """For the pictures that [N, H, W, C] draw; the kernel [k, k, O, C] would read them."""
        count, *sides, size = x.shape
        kernel, _, depth, _ = weight.shape
        height, width = ((n - 1) * stride + kernel for n in sides)
        return self.slide((count, height, width, depth), kernel, stride, size)

    def runs(self, function: Callable[..., Any], *, folds: bool) -> Callable[..., Any]:
        """A function as `vmap` should take it."""
        return one_by_one(function, folds=folds) if self.make is Library else function


OURS = Kernels(Sliding, option=False)


def suits(x: Array | jax.ShapeDtypeStruct, size: int, activation: str) -> bool:
    """Whether our own kernels are for these pictures or places, and for this device."""
    is_known = size in SIZES and activation in ("relu", "none")
    return is_known and x.dtype == jnp.bfloat16 and onchip.is_supported()


def kernels_for(x: Array, size: int, num_products: int, activation: str) -> Kernels | None:
    """The kernels for pictures, or for places of a size, if this device has better than patches.

    The library's where a single run keeps a GPU busy; else our own where they suit.
    """
    if num_products < ENOUGH:
        return OURS if suits(x, size, activation) else None
    if not onchip.is_supported():
        return None
    # asked for here and not by the kernels: the way back has the precision of the way forth
    is_coarse = x.dtype == jnp.bfloat16
    precision = None if is_coarse else jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return Kernels(Library, precision)


def convolve(
    x: Array, weight: Array, bias: Array, stride: int, activation: str, kernels: Kernels
) -> Array:
    """Pictures [N, H, W, C] with a kernel [k, k, C, O] and a bias [O], in the pictures' dtype."""
    if kernels.make is Sliding and tiles.is_ragged(stride, x.shape[-1]):
        kernel, reach = len(weight), -(-len(weight) // stride)
        rows, columns = ((n - kernel) // stride + reach for n in x.shape[1:3])
        x, weight = tiles.deepen(x, stride, rows, columns), tiles.deepen_kernel(weight, stride)
        stride = 1
    return _convolve(x, weight, bias, stride, activation, kernels)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _convolve(
    x: Array, weight: Array, bias: Array, stride: int, activation: str, kernels: Kernels
) -> Array:
    def forth(x: Array, weight: Array, bias: Array) -> Array:
        slide = kernels.slide(x.shape, len(weight), stride, weight.shape[-1])
        return slide.read(x, weight.astype(x.dtype), bias, activation)

    return kernels.runs(forth, folds=True)(x, weight, bias)


def _convolve_forth(x: Array, weight: Array, bias: Array, *options: Any) -> tuple[Array, Any]:
    y = _convolve(x, weight, bias, *options)
    return y, (x, weight, y)


def _convolve_back(
    stride: int, activation: str, kernels: Kernels, seen: Any, change: Array
) -> tuple[Array, Array, Array]:
    def back(x: Array, weight: Array, y: Array, change: Array) -> tuple[Array, Array, Array]:
        slide = kernels.slide(x.shape, len(weight), stride, weight.shape[-1])
        change = _before(activation, y, change)
        light = change.astype(x.dtype)
        below = slide.draw(light, weight.astype(x.dtype), jnp.zeros(x.shape[-1]), "none")
        return below.astype(x.dtype), slide.learn(x, light), added(change)

    return kernels.runs(back, folds=False)(*seen, change)


_convolve.defvjp(_convolve_forth, _convolve_back)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def spread(
    x: Array, weight: Array, bias: Array, stride: int, activation: str, kernels: Kernels
) -> Array:
    """The transposed convolution of [N, H, W, C] with [C, k, k, O], in the dtype of `x`.

    The library's is float32 without an activation, as `finish` has it.
    """

    def forth(x: Array, weight: Array, bias: Array) -> Array:
        weight = jnp.moveaxis(weight.astype(x.dtype), 0, -1)
        return kernels.drawing(x, weight, stride).draw(x, weight, bias, activation)

    return kernels.runs(forth, folds=True)(x, weight, bias)


def _spread_forth(x: Array, weight: Array, bias: Array, *options: Any) -> tuple[Array, Any]:
    y = spread(x, weight, bias, *options)
    return y, (x, weight, y)


def _spread_back(
    stride: int, activation: str, kernels: Kernels, seen: Any, change: Array
) -> tuple[Array, Array, Array]:
    def back(x: Array, weight: Array, y: Array, change: Array) -> tuple[Array, Array, Array]:
        weight = jnp.moveaxis(weight.astype(x.dtype), 0, -1)
        slide = kernels.drawing(x, weight, stride)
        change = _before(activation, y, change)
        light = change.astype(x.dtype)
        below = slide.read(light, weight, jnp.zeros(x.shape[-1]), "none").astype(x.dtype)
        return below, jnp.moveaxis(slide.learn(light, x), -1, 0), added(change)

    return kernels.runs(back, folds=False)(*seen, change)


spread.defvjp(_spread_forth, _spread_back)


def _before(activation: str, y: Array, change: Array) -> Array:
    """The gradient ahead of the activation, told by its outcome."""
    if activation == "none":
        return change
    if activation == "tanh":
        return change * (1 - y**2)
    return jnp.where(y > 0, change, change * (y + 1) if activation == "elu" else 0)


def added(change: Array) -> Array:
    """The sum over all pixels: row upon row first, for few channels make short rows."""
    *_, height, width, depth = change.shape
    rows = change.astype(jnp.float32).reshape(-1, height, width * depth)
    if width * depth < SHORT and change.size >= MANY:
        # picture by picture: over all of them, too few programs would do the work
        rows = jax.lax.optimization_barrier(rows.sum(1))
    return rows.reshape(-1, width * depth).sum(0).reshape(width, depth).sum(0)
