"""Dense layers that read many rows in half precision, forth and back.

The way back is given, with rows before numbers everywhere and gradients of weights in float32. Left
to itself, the compiler turns all rows round in memory where several runs lie side by side, and
writes slopes down in float32.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from lofo_rl import devices
from lofo_rl.networks.blocks import finish, slope_of, times
from lofo_rl.networks.recurrence import Layer
from lofo_rl.types import Array

Head: TypeAlias = tuple[Layer, ...]
Kept: TypeAlias = tuple[tuple[Head, ...], list[list[Array]]]  # heads, and what their layers read


def read(heads: Sequence[Sequence[Layer]], x: Array, activation: str) -> tuple[Array, ...]:
    """What `MLP.apply` makes of rows [..., size] by each head, in the dtype of the rows.

    Weights may have more digits than rows have; their gradients then have them, too.
    """
    given = tuple(tuple(head) for head in heads)
    found = _read(activation, given, x.reshape(-1, x.shape[-1]))
    return tuple(y.reshape(*x.shape[:-1], y.shape[-1]) for y in found)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(activation: str, heads: tuple[Head, ...], x: Array) -> tuple[Array, ...]:
    return tuple(_climb(activation, head, x)[-1] for head in heads)


def _forth(activation: str, heads: tuple[Head, ...], x: Array) -> tuple[tuple[Array, ...], Kept]:
    seen = [_climb(activation, head, x) for head in heads]
    # else who reads the outcome in float32 would have it written down so
    found = jax.lax.optimization_barrier(tuple(own[-1] for own in seen))
    return found, (heads, [[*own[:-1], y] for own, y in zip(seen, found, strict=True)])


def _climb(activation: str, head: Head, x: Array) -> list[Array]:
    """What each layer reads, and what the last one gives."""
    seen = [x]
    for layer in head:
        product = times(seen[-1], layer["weight"].astype(x.dtype))
        seen.append(finish(product, layer["bias"], activation))
    return seen


def _back(activation: str, kept: Kept, slopes: tuple[Array, ...]) -> tuple[tuple[Head, ...], Array]:
    heads, seen = kept
    own = zip(heads, seen, slopes, strict=True)
    found, lowest = zip(*(_descend(activation, *given) for given in own), strict=True)
    # one product for all heads, which adds their parts up
    weights = [head[0]["weight"].astype(seen[0][0].dtype) for head in heads]
    return found, _pull_back(jnp.concatenate(lowest, axis=1), jnp.concatenate(weights, axis=1))


def _descend(activation: str, head: Head, seen: list[Array], slope: Array) -> tuple[Head, Array]:
    """The gradients of a head's layers, and the slope by what its first product gives."""
    dtype, found = seen[0].dtype, []
    for k in reversed(range(len(head))):
        slope = (slope * slope_of(activation, seen[k + 1])).astype(dtype)
        weight = _multiply(seen[k], slope, 0, jnp.float32).astype(head[k]["weight"].dtype)
        found.append({"weight": weight, "bias": jnp.sum(slope.astype(jnp.float32), axis=0)})
        if k:
            slope = _pull_back(slope, head[k]["weight"].astype(dtype))
    return tuple(reversed(found)), slope


_read.defvjp(_forth, _back)


def _pull_back(slope: Array, weight: Array) -> Array:
    """The slope by what a weight was multiplied with, in the dtype of both."""
    # rounded behind the product, it would be written down in float32 by a GPU's library
    dtype = jnp.float32 if devices.is_cpu() else slope.dtype
    return _multiply(slope, weight, 1, dtype).astype(slope.dtype)


def _multiply(x: Array, y: Array, axis: int, dtype: Any) -> Array:
    """The product of two matrices over an axis of both, which adds in float32."""
    axes: Any = ((axis,), (axis,)), ((), ())
    return jax.lax.dot_general(x, y, axes, preferred_element_type=dtype)
