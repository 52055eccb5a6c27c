"""The items: rows of 32-bit words on the device; dtypes are kept."""

import dataclasses
import functools
import math
import reprlib
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers import arrays
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, LofoError, Tree

Leaf = tuple[tuple[int, ...], Any]  # shape and dtype of a leaf of an item


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of words, and how to read them.

    An item is one row, so one scatter and one gather, however many leaves it has: on a GPU, a
    kernel for each leaf of each buffer was a third of a step's launches.
    """

    words: Array  # [T, W] uint32
    structure: Any = dataclasses.field(metadata={"static": True})
    leaves: tuple[Leaf, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def empty(cls, num_slots: int, example: Tree) -> Self:
        """Zeros, for items shaped like the example."""
        leaves, structure = jax.tree.flatten(example)
        names = leaf_names(example)
        kinds = tuple(kind_of(name, x) for name, x in zip(names, leaves, strict=True))
        for name, (_, dtype) in zip(names, kinds, strict=True):
            if dtype.itemsize > 4:
                raise LofoError(
                    f"rows are words of 32 bits, but {name} is {dtype}: store it as two leaves"
                )
        width = sum(_num_words(*kind) for kind in kinds)
        return cls(jnp.zeros((num_slots, width), jnp.uint32), structure, kinds)

    def write(self, slot: Array, item: Tree) -> Self:
        """The rows with an item in its slot, or items [K, ...] in slots [K]; slot T is dropped."""
        lead = jnp.shape(slot)
        self.check(item, lead)
        kinds = zip(jax.tree.leaves(item), self.leaves, strict=True)
        none = jnp.zeros((*lead, 0), jnp.uint32)  # an item may be empty: an index that only counts
        parts = [_to_words(jnp.asarray(x, kind[1]).reshape(*lead, -1)) for x, kind in kinds]
        words = jnp.concatenate([none, *parts], axis=-1)
        return dataclasses.replace(self, words=self.words.at[slot].set(words, mode="drop"))

    def read(self, slots: Array) -> Tree:
        """The items in slots."""
        return self._items(self.words[slots])

    def items(self) -> Tree:
        """Every row; those of free slots hold anything."""
        return self._items(self.words)

    def _items(self, words: Array) -> Tree:
        """The items that some words [..., W] stand for."""
        items, start = [], 0
        for shape, dtype in self.leaves:
            size = _num_words(shape, dtype)
            items.append(_from_words(words[..., start : start + size], shape, dtype))
            start += size
        return jax.tree.unflatten(self.structure, items)

    def check(self, item: Tree, lead: tuple[int, ...] = ()) -> None:
        """Refuse an item of another structure, shape or kind of number than the example.

        Numbers of Python or NumPy that a row cannot hold are refused, too.
        """
        leaves, structure = jax.tree.flatten(item)
        if structure != self.structure:
            raise LofoError(f"items are {self.structure}, got {structure}")
        for name, x, (shape, dtype) in zip(leaf_names(item), leaves, self.leaves, strict=True):
            fix = ": convert it, or make the buffer with such an example"
            check_kind(name, x, dtype, (*lead, *shape), fix)
            check_held(name, x, dtype)


def check_kind(name: str, x: Any, dtype: Any, shape: tuple[int, ...] = (), fix: str = "") -> None:
    """Refuse an array of another shape, or of a kind of number that the dtype cannot hold."""
    (got, given), dtype = kind_of(name, x), jnp.dtype(dtype)
    is_weak = isinstance(x, int) or getattr(x, "weak_type", False)  # has no width of its own
    are_integers = jnp.issubdtype(given, jnp.integer) and jnp.issubdtype(dtype, jnp.integer)
    is_cut = are_integers and not is_weak and not jnp.can_cast(given, dtype)
    if got != shape or _rank(given) > _rank(dtype) or is_cut:
        raise LofoError(f"{name} must be {dtype}{[*shape]}, got {given}{[*got]}{fix}")


def check_held(name: str, x: Any, dtype: Any, fix: str = "scale or clip it") -> None:
    """Refuse a number of Python or NumPy that the dtype cannot hold; infinity is held."""
    if not isinstance(x, int | float | np.ndarray | np.generic):
        return
    values, dtype = np.asarray(x), jnp.dtype(dtype)
    if np.can_cast(values.dtype, dtype):
        return
    if jnp.issubdtype(dtype, jnp.integer):
        bounds = jnp.iinfo(dtype)
        is_held = (bounds.min <= values) & (values <= bounds.max)
    else:
        if isinstance(x, int):  # perhaps beyond all floats
            x = max(-(2**1000), min(x, 2**1000))
        exact = np.asarray(x, np.float64)
        with np.errstate(over="ignore"):
            is_held = np.isfinite(exact.astype(dtype)) | ~np.isfinite(exact)
    if not np.all(is_held):
        bad = reprlib.repr(values[np.logical_not(is_held)].tolist()[0])
        raise LofoError(f"{name} is {bad}, which {dtype} cannot hold: {fix}")


def checked_size(name: str, value: Any, least: int = 1) -> int:
    """The value as a plain integer, so small that int32 can number as many rows."""
    if isinstance(value, jax.core.Tracer):
        raise LofoError(f"{name} must be known when traced: make it a static argument of jit")
    size = arrays.checked_size(name, value, least)
    if size >= np.iinfo(np.int32).max:
        raise LofoError(
            f"{name} must be less than 2**31 - 1, as rows are numbered in int32, got {size}"
        )
    return size


def kind_of(name: str, x: Any) -> Leaf:
    """The shape and dtype of a number or an array; anything else is refused."""
    try:
        if x is None or isinstance(x, str | type | np.dtype):  # jax would take them for dtypes
            raise TypeError
        dtype = jnp.result_type(x)
        return jnp.shape(x), dtype
    except TypeError as error:
        raise LofoError(
            f"{name} must be a number or an array of numbers, got {reprlib.repr(x)}"
        ) from error


def leaf_names(item: Tree) -> list[str]:
    """The names of the leaves, like `observation.image`."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(item)[0]]
    return [".".join(str(_name(key)) for key in path) or "the item" for path in paths]


def _name(key: Any) -> Any:
    return next(getattr(key, at) for at in ("name", "key", "idx") if hasattr(key, at))


def _rank(dtype: Any) -> int:
    """Which kind of number: a higher one does not fit into a lower one."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((k for k, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))


def _num_words(shape: tuple[int, ...], dtype: Any) -> int:
    return -(-math.prod(shape) * dtype.itemsize // 4)


def _to_words(x: Array) -> Array:
    """The bits of vectors [..., n] as vectors of words, the last one filled up with zeros."""
    per_word = 4 // x.dtype.itemsize
    if per_word == 1:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    margins = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % per_word)]
    padded = jnp.pad(x, margins).reshape(*x.shape[:-1], -1, per_word)
    if x.dtype == bool:  # by hand: for bytes that become a word a GPU takes a kernel of its own
        parts = (padded[..., k].astype(jnp.uint32) << 8 * k for k in range(per_word))
        return functools.reduce(jnp.bitwise_or, parts)
    return jax.lax.bitcast_convert_type(padded, jnp.uint32)


def _from_words(words: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Arrays of that kind, one for each vector of words."""
    stored = jnp.uint8 if jnp.issubdtype(dtype, bool) else dtype
    flat = jax.lax.bitcast_convert_type(words, stored)
    flat = flat.reshape(*words.shape[:-1], -1)[..., : math.prod(shape)]
    return flat.reshape(*words.shape[:-1], *shape).astype(dtype)
