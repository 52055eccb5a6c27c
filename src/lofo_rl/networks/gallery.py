"""Pictures out of a table, told by their rows: what a network makes of a patch, it makes once.

A world may show few distinct pictures, and those hold still fewer distinct patches: the 256 of the
paper's MiniGrid have 248 at the first layer of its CNN, 143 at the second and 409 at the third. A
convolution answers equal patches equally, so it is asked once for each, and a batch looks up the
answers. Function and gradient are those of the pictures themselves.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.networks.blocks import IDENTITY, Network, Shape
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array

SHARE = 16  # rows of a product that a GPU takes at once


class Atlas(NamedTuple):
    """The distinct patches of a gallery under the layers of a CNN, from pixels to answers.

    Each layer has a few rows more than it has patches, that no one asks for: GPUs multiply tables
    of 143 or 409 rows at half the speed of 144 or 416.
    """

    patches: np.ndarray  # [distinct, kernel, kernel, channels]: what the first layer sees
    links: tuple[np.ndarray, ...]  # [distinct, kernel · kernel]: which answers the next ones see
    places: np.ndarray  # [pictures, height · width]: which answers of the last one a picture has


@dataclass(frozen=True, eq=False)
class Gallery:
    """All pictures that a world shows."""

    pictures: np.ndarray  # [pictures, height, width, channels]


@register_dataclass
@dataclass(frozen=True)
class Picked:
    """Pictures [..., height, width, channels], told by the rows [...] they have in a gallery."""

    rows: Array
    gallery: Gallery = field(metadata={"static": True})
    # through which they are seen, pixel by pixel
    scaling: Network = field(default=IDENTITY, metadata={"static": True})

    @property
    def shape(self) -> Shape:
        """That of the pictures."""
        return (*self.rows.shape, *self.gallery.pictures.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> "Picked":
        return replace(self, rows=self.rows[index])

    def pixels(self) -> Array:
        """The pictures themselves, float32."""
        # The barrier keeps the table in bytes: the compiler would scale it beforehand.
        table = jax.lax.optimization_barrier(jnp.asarray(self.gallery.pictures))
        return see_through(self.scaling, table[self.rows])


Pictures = TypeVar("Pictures", Array, Picked)  # however they are told


def pixels_of(x: Array | Picked) -> Array:
    """The pictures themselves, however they are told."""
    return x.pixels() if isinstance(x, Picked) else x


def see_through(scaling: Network, observation: Pictures) -> Pictures:
    """Observations, or patches of them, as the networks see them."""
    if isinstance(observation, Picked):
        return replace(observation, scaling=scaling)
    params, _ = scaling.init(jax.random.key(0), observation.shape)
    return scaling.apply(params, observation.astype(jnp.float32))


@lru_cache(maxsize=32)
def atlas(gallery: Gallery, kernels: tuple[int, ...], strides: tuple[int, ...]) -> Atlas:
    """What convolutions without padding see of a gallery, layer by layer."""
    distinct = []
    found = gallery.pictures
    for kernel, stride in zip(kernels, strides, strict=True):
        patches, found = _tell_apart(found, kernel, stride)
        distinct.append(patches)
    first, *later = (_fill_up(patches) for patches in distinct)
    links = tuple(patches.reshape(len(patches), -1) for patches in later)
    return Atlas(first, links, found.reshape(len(found), -1))


@jax.custom_vjp
def look_up(table: Array, rows: Array) -> Array:
    """Rows [...] of a table [num, size]; the way back is a product, which adds in a fixed order."""
    return table[rows]


def _look_up_forth(table: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
    return table[rows], (table, rows)


def _look_up_back(seen: tuple[Array, Array], change: Array) -> tuple[Array, None]:
    table, rows = seen
    num, size = table.shape
    is_row = jax.nn.one_hot(rows.reshape(-1), num, axis=0, dtype=change.dtype)
    return is_row @ change.reshape(-1, size), None


look_up.defvjp(_look_up_forth, _look_up_back)


@jax.custom_vjp
def add_up(tables: Array, rows: Array) -> Array:
    """The sums [num, size] of one row of every table [rows, tables, size], told by [num, tables].

    What patches have in common can so be multiplied before it is looked up, and the way back adds
    up what asked for a row before it multiplies: the products are a few times smaller either way.
    """
    return sum((tables[own, k] for k, own in enumerate(rows.T)), jnp.float32(0))


def _add_up_forth(tables: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
    return add_up(tables, rows), (tables, rows)


def _add_up_back(seen: tuple[Array, Array], change: Array) -> tuple[Array, None]:
    tables, rows = seen
    is_row = jax.nn.one_hot(rows.T, len(tables), axis=0, dtype=change.dtype)  # [rows, tables, num]
    return is_row @ change, None


add_up.defvjp(_add_up_forth, _add_up_back)


def _fill_up(rows: np.ndarray) -> np.ndarray:
    """The same with rows of zeros at the end, up to a multiple of SHARE."""
    return np.pad(rows, [(0, -len(rows) % SHARE), *[(0, 0)] * (rows.ndim - 1)])


def _tell_apart(x: np.ndarray, kernel: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct patches of [N, H, W, ...], and which of them lies where [N, H', W']."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    windows = np.moveaxis(windows[:, ::stride, ::stride], (-2, -1), (3, 4))
    where = windows.shape[:3]
    flat = np.ascontiguousarray(windows).reshape(np.prod(where), -1)
    words = flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
    _, first, which = np.unique(words, return_index=True, return_inverse=True)
    return flat[first].reshape(-1, *windows.shape[3:]), which.reshape(where).astype(np.int32)
