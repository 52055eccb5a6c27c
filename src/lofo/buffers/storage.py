"""What is held: the payload, on the device or in the host's memory; dtypes are kept."""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lofo.types import Array, Tree


class Storage(Protocol):
    """Rows of payload; a slot equal to their number is a refused newcomer."""

    is_host: ClassVar[bool]  # written in place, so outside any jit

    def init(self, num_slots: int, example: Tree) -> Tree:
        """Empty rows, shaped like the example."""

    def write(self, rows: Tree, slot: Array, item: Tree) -> Tree:
        """The rows with the item in its slot."""

    def read(self, rows: Tree, slots: Array) -> Tree:
        """The items in the slots."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceStorage:
    """Payload beside the decision, inside `jit`."""

    is_host: ClassVar[bool] = False

    def init(self, num_slots: int, example: Tree) -> Tree:
        """Zeros on the device."""
        return jax.tree.map(
            lambda x: jnp.zeros((num_slots, *jnp.shape(x)), jnp.result_type(x)), example
        )

    def write(self, rows: Tree, slot: Array, item: Tree) -> Tree:
        """One scatter a leaf; a refused item is dropped by it."""
        return jax.tree.map(lambda row, x: row.at[slot].set(x, mode="drop"), rows, item)

    def read(self, rows: Tree, slots: Array) -> Tree:
        """One gather a leaf."""
        return jax.tree.map(lambda row: row[slots], rows)


@jax.tree_util.register_dataclass
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
        place = int(slot)

        def put(row: np.ndarray, x: Array) -> None:
            if place < len(row):
                row[place] = x

        jax.tree.map(put, rows, item)
        return rows

    def read(self, rows: Tree, slots: Array) -> Tree:
        """Copies of the rows."""
        return jax.tree.map(lambda row: row[np.asarray(slots)], rows)
