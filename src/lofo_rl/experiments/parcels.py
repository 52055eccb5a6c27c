"""A loop whose small arrays travel together.

A GPU takes some microseconds for a kernel, however little it does, and a loop writes each array
that it carries by one. What an episode or a buffer counts is many arrays of a few numbers: as one
array of words, a step reads them in passing and writes them by one kernel. Not a bit is changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from lofo_rl.types import Array, Tree

SMALL = 2**12  # numbers of an array that may share: more would take time to copy
WORD = jnp.dtype(jnp.uint32)


@dataclass(frozen=True)
class Parcel:
    """How the small arrays of a tree lie among the words."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def like(cls, tree: Tree) -> Self:
        """For trees whose arrays have these shapes and dtypes."""
        leaves, structure = jax.tree.flatten(tree)
        dtypes = (jax.dtypes.canonicalize_dtype(x.dtype) for x in leaves)  # as jax will have them
        kinds = zip(leaves, dtypes, strict=True)
        return cls(structure, tuple(jax.ShapeDtypeStruct(x.shape, dtype) for x, dtype in kinds))

    def wrap(self, tree: Tree) -> tuple[Array, list[Array]]:
        """The words, and the arrays that are not among them."""
        leaves = self.check(tree)
        words = [_to_words(x).reshape(-1) for x in leaves if _shares(x)]
        return jnp.concatenate([jnp.zeros(0, WORD), *words]), [x for x in leaves if not _shares(x)]

    def check(self, tree: Tree) -> list[Array]:
        """The arrays of a tree, which are as they were: else words would be read as others."""
        leaves = [jnp.asarray(x) for x in self.structure.flatten_up_to(tree)]
        for own, x in zip(self.leaves, leaves, strict=True):
            if (x.shape, x.dtype) != (own.shape, own.dtype):
                raise TypeError(
                    f"a step must give back what it was given: {own.dtype}{list(own.shape)}, "
                    f"not {x.dtype}{list(x.shape)}"
                )
        return leaves

    def open(self, parcel: tuple[Array, list[Array]]) -> Tree:
        """The tree that was wrapped."""
        words, rest = parcel[0], iter(parcel[1])
        leaves, start = [], 0
        for own in self.leaves:
            if _shares(own):
                part = words[start : start + own.size].reshape(own.shape)
                leaves.append(_from_words(part, own.dtype))
                start += own.size
            else:
                leaves.append(next(rest))
        return jax.tree.unflatten(self.structure, leaves)


def lean_scan(
    body: Callable[[Any, Any], tuple[Any, Any]], carry: Tree, xs: Tree
) -> tuple[Any, Any]:
    """`jax.lax.scan` in parcels; a single step is no loop, so that the compiler shares its keys."""
    first = jax.tree.map(lambda x: x[0], xs)
    carried, given = Parcel.like(carry), Parcel.like(first)
    if len(jax.tree.leaves(xs)[0]) == 1:
        carry, y = body(carry, first)
        carried.check(carry)
        return carry, jax.tree.map(lambda y: y[None], y)
    made = Parcel.like(jax.eval_shape(body, carry, first)[1])

    def step(parcel: Any, x: Any) -> tuple[Any, Any]:
        carry, y = body(carried.open(parcel), given.open(x))
        return carried.wrap(carry), made.wrap(y)

    wrapped = carried.wrap(carry), jax.vmap(given.wrap)(xs)
    parcel, ys = jax.lax.scan(step, *wrapped)
    return carried.open(parcel), jax.vmap(made.open)(ys)


def lean_loop(
    num: Array, body: Callable[[Array, Any, Any], tuple[Any, Any]], carry: Tree, whole: Tree
) -> tuple[Any, Any]:
    """`jax.lax.fori_loop` from 0 to `num` with `carry` in parcels and `whole` as it is."""
    carried = Parcel.like(carry)

    def step(number: Array, both: Any) -> Any:
        carry, whole = body(number, carried.open(both[0]), both[1])
        return carried.wrap(carry), whole

    parcel, whole = jax.lax.fori_loop(0, num, step, (carried.wrap(carry), whole))
    return carried.open(parcel), whole


def _shares(x: Array | jax.ShapeDtypeStruct) -> bool:
    return x.size <= SMALL and (x.dtype == bool or x.dtype.itemsize == WORD.itemsize)


def _to_words(x: Array) -> Array:
    return x.astype(WORD) if x.dtype == bool else jax.lax.bitcast_convert_type(x, WORD)


def _from_words(words: Array, dtype: Any) -> Array:
    return words != 0 if jnp.issubdtype(dtype, bool) else jax.lax.bitcast_convert_type(words, dtype)
