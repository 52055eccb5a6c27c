"""What is held: the payload, on the device or in the host's memory; dtypes are kept."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Tree


class Storage(Protocol):
    """Rows of payload; a slot equal to their number is a refused newcomer."""

    is_host: ClassVar[bool]  # written in place, so outside any jit

    def init(self, num_slots: int, example: Tree) -> Tree:
        """Empty rows, shaped like the example."""

    def write(self, rows: Tree, slot: Array, item: Tree) -> Tree:
        """The rows with the item in its slot, or items [K, ...] in slots [K]."""

    def read(self, rows: Tree, slots: Array) -> Tree:
        """The items in the slots."""

    def items(self, rows: Tree) -> Tree:
        """The items in all slots, also those of slots that nobody has."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of 32-bit words, and how to read them."""

    words: Array  # [T, W] uint32
    structure: Any = dataclasses.field(metadata={"static": True})
    leaves: tuple[tuple[tuple[int, ...], Any], ...] = dataclasses.field(metadata={"static": True})

    def items(self, words: Array) -> Tree:
        """The items that some words [..., W] stand for."""
        items, start = [], 0
        for shape, dtype in self.leaves:
            size = _num_words(shape, dtype)
            items.append(_from_words(words[..., start : start + size], shape, dtype))
            start += size
        return jax.tree.unflatten(self.structure, items)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceStorage:
    """Payload beside the decision, inside `jit`.

    An item is one row of words, so one scatter and one gather, however many leaves it has: on a
    GPU, a kernel for each leaf of each buffer was a third of a step's launches.
    """

    is_host: ClassVar[bool] = False

    def init(self, num_slots: int, example: Tree) -> PackedRows:
        """Zeros on the device."""
        leaves, structure = jax.tree.flatten(example)
        kinds = tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
        if wide := [str(dtype) for _, dtype in kinds if dtype.itemsize > 4]:
            raise ValueError(
                f"rows are words of 32 bits: store {wide[0]} as two leaves, or on the host"
            )
        width = sum(_num_words(*kind) for kind in kinds)
        return PackedRows(jnp.zeros((num_slots, width), jnp.uint32), structure, kinds)

    def write(self, rows: PackedRows, slot: Array, item: Tree) -> PackedRows:
        """One scatter; a refused item is dropped by it."""
        leaves, structure = jax.tree.flatten(item)
        lead = jnp.shape(slot)
        shapes, own = [jnp.shape(x) for x in leaves], [(*lead, *shape) for shape, _ in rows.leaves]
        if structure != rows.structure or shapes != own:  # else their words would be misread
            raise ValueError(
                f"items are {rows.structure} of shapes {own}, got {structure} of {shapes}"
            )
        kinds = zip(leaves, rows.leaves, strict=True)
        none = jnp.zeros((*lead, 0), jnp.uint32)  # an item may be empty: an index that only counts
        parts = [_to_words(jnp.asarray(x, kind[1]).reshape(*lead, -1)) for x, kind in kinds]
        words = jnp.concatenate([none, *parts], axis=-1)
        new = rows.words.at[slot].set(words, mode="drop")
        return dataclasses.replace(rows, words=new)

    def read(self, rows: PackedRows, slots: Array) -> Tree:
        """One gather."""
        return rows.items(rows.words[slots])

    def items(self, rows: PackedRows) -> Tree:
        """Every row, unpacked."""
        return rows.items(rows.words)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HostStorage:
    """Payload too large for the device: numpy rows, written in place."""

    is_host: ClassVar[bool] = True

    def init(self, num_slots: int, example: Tree) -> Tree:
        """Zeros in the host's memory, which the system hands out only as they are written."""
        return jax.tree.map(
            lambda x: np.zeros((num_slots, *np.shape(x)), jnp.result_type(x)), example
        )

    def write(self, rows: Tree, slot: Array, item: Tree) -> Tree:
        """The same rows, changed in place unless the item was refused."""
        places = np.asarray(slot)

        def put(row: np.ndarray, x: Array) -> None:
            is_there = places < len(row)
            row[places[is_there]] = np.asarray(x)[is_there]

        jax.tree.map(put, rows, item)
        return rows

    def read(self, rows: Tree, slots: Array) -> Tree:
        """Copies of the rows."""
        return jax.tree.map(lambda row: row[np.asarray(slots)], rows)

    def items(self, rows: Tree) -> Tree:
        """The rows as they are."""
        return rows


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
