"""Convolutions by the device's own library, run after run.

The many pictures of one run keep a GPU busy, so runs side by side may as well take turns; `vmap`
over weights would make grouped convolutions of them, and those are slow.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from lofo_rl.networks.blocks import finish, widen
from lofo_rl.networks.tiles import cut, cut_kernel
from lofo_rl.types import Array

LAYOUT = "NHWC", "HWIO", "NHWC"
FEW = 16  # channels: tensor cores want more, so pixels that move together are taken as one
EVERY_DIGIT = "TF32_TF32_F32_X3"  # float32 by three products of shorter numbers

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Library:
    """A square kernel that slides over pictures, and the numbers that belong to its places."""

    pictures: tuple[int, ...]  # count, height, width, depth
    kernel: int
    stride: int
    size: int  # numbers of a place
    precision: str | None = None  # of products, as `jax.default_matmul_precision` has it

    def read(self, x: Array, weight: Array, bias: Array, activation: str) -> Array:
        """What every place reads in the pictures, through a kernel [k, k, depth, size]."""
        if self.precision == EVERY_DIGIT:
            x, weight = _thrice(x, weight, 2)
        return finish(self._slide(x, weight), bias, activation)

    def draw(self, y: Array, weight: Array, bias: Array, activation: str) -> Array:
        """The pictures that the places draw together; the kernel is that of reading."""
        if self.precision == EVERY_DIGIT:
            y, weight = _thrice(y, weight, 3)
        like = jax.ShapeDtypeStruct(self.pictures, y.dtype)
        (drawn,) = jax.linear_transpose(lambda x: self._slide(x, weight), like)(y)
        return finish(drawn, bias, activation)

    def learn(self, x: Array, y: Array) -> Array:
        """The sum over all places of patch ⊗ numbers, [k, k, depth, size], float32."""
        like = jax.ShapeDtypeStruct((self.kernel,) * 2 + (x.shape[-1], self.size), x.dtype)
        # Where places have as many rows as the kernel, compilers take this for a convolution whose
        # kernel is dilated: slow, and all is turned round for it. Rows of 0s tell it apart.
        margin = 1 if y.shape[1] == self.kernel else 0

        def product(x: Array, y: Array) -> Array:
            y = jnp.pad(y, ((0, 0), (margin, margin), (0, 0), (0, 0)))
            (found,) = jax.linear_transpose(lambda weight: self._slide(x, weight, margin), like)(y)
            return found.astype(jnp.float32)

        if self.precision != EVERY_DIGIT:
            return product(x, y)
        (long_x, rest_x), (long_y, rest_y) = _parts(x), _parts(y)
        return product(rest_x, long_y) + product(long_x, rest_y) + product(long_x, long_y)

    def _slide(self, x: Array, weight: Array, margin: int = 0) -> Array:
        """What every place reads; the margin is rows of places above and below the pictures."""
        block = math.gcd(self.kernel, self.stride) if self.pictures[-1] < FEW else 1
        rows, columns = (
            (n - self.kernel) // self.stride * self.stride + self.kernel for n in x.shape[1:3]
        )
        x, weight = cut(x[:, :rows, :columns], block), cut_kernel(weight, block)
        if x.dtype == jnp.bfloat16:  # else the library would copy the pictures for that
            x, weight = widen(x, 3), widen(weight, 2)
        return jax.lax.conv_general_dilated(
            x,
            weight,
            (self.stride // block,) * 2,
            ((margin * self.stride // block,) * 2, (0, 0)),
            dimension_numbers=LAYOUT,
            precision=_precision(self.precision),
        )


def one_by_one(function: F, *, folds: bool) -> F:
    """A function of pictures, a kernel and more that `vmap` runs once for each of its axis.

    Where it folds, pictures that share everything else are taken together.
    """

    @jax.custom_batching.custom_vmap
    def own(*args: Array) -> Any:
        return function(*args)

    @own.def_vmap
    def _(num: int, is_own: list[bool], *args: Array) -> tuple[Any, Any]:
        if folds and not any(is_own[1:]):
            x, *shared = args
            found = own(x.reshape(-1, *x.shape[2:]), *shared)
            return found.reshape(num, -1, *found.shape[1:]), True
        given = list(zip(args, is_own, strict=True))
        each = [own(*(x[k] if apart else x for x, apart in given)) for k in range(num)]
        found = jax.tree.map(lambda *x: jnp.stack(x), *each)
        return found, jax.tree.map(lambda _: True, found)

    return functools.wraps(function)(own)  # type: ignore[return-value]


def _parts(x: Array) -> tuple[Array, Array]:
    """A number of as many digits as tensor cores read, and the rest."""
    long = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)
    return long, x - long


def _thrice(x: Array, weight: Array, axis: int) -> tuple[Array, Array]:
    """Both in parts, side by side, so that one product adds up three; rests alone count nothing."""
    (long_x, rest_x), (long_weight, rest_weight) = _parts(x), _parts(weight)
    return (
        jnp.concatenate([rest_x, long_x, long_x], axis=-1),
        jnp.concatenate([long_weight, rest_weight, long_weight], axis=axis),
    )


def _precision(name: str | None) -> jax.lax.Precision | None:
    """What a convolution knows of precisions: products of its parts are the device's default."""
    if name is None or name == EVERY_DIGIT:
        return jax.lax.Precision.DEFAULT
    try:
        return jax.lax.Precision(name)
    except ValueError:  # the name of an algorithm that only plain products have
        return jax.lax.Precision.HIGHEST
