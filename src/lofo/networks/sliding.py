"""Kernels for convolutions on a GPU whose patches never lie in memory.

A patch holds every pixel several times, so writing patches down and reading them again takes longer
than multiplying them. Here a program takes some places of a sliding kernel, fetches what lies under
it row by row, multiplies and adds up in float32, and only the outcome is written.

`Sliding.read` makes numbers of patches, `Sliding.draw` makes patches of numbers and lays them over
each other, and `Sliding.learn` is what both have for a gradient of their weights.
"""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo.types import Array

SMALLEST = 16  # no side of a product on tensor cores may be shorter
NUM_PLACES, NUM_LEARNT = 64, 128  # places that a program takes at a time
MOST_COLUMNS = 128  # numbers of a drawn block that a program takes
MOST_SUMS = 4096  # numbers that a program adds up at a time
NUM_PROGRAMS = 128  # that share the places of one gradient


@dataclass(frozen=True)
class Sliding:
    """A square kernel that slides over pictures, and the numbers that belong to its places."""

    pictures: tuple[int, ...]  # count, height, width, depth
    kernel: int
    stride: int
    size: int  # numbers of a place
    interpret: bool = False  # run the kernels' meaning on any device, slowly

    @property
    def places(self) -> tuple[int, int, int]:
        """Count, rows and columns of places."""
        count, *sides, _ = self.pictures
        rows, columns = ((n - self.kernel) // self.stride + 1 for n in sides)
        return count, rows, columns

    @property
    def reach(self) -> int:
        """Blocks of `stride` that a kernel covers."""
        return -(-self.kernel // self.stride)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Count, rows and columns of the blocks that pictures are drawn of."""
        count, height, width, _ = self.pictures
        return count, pl.cdiv(height, self.stride), pl.cdiv(width, self.stride)

    @property
    def run(self) -> int:
        """Numbers of one row under the kernel: they lie side by side in a picture."""
        return self.kernel * self.pictures[-1]

    @property
    def piece(self) -> int:
        """Numbers of such a row that are fetched at a time."""
        power = self.run & -self.run  # the largest that goes into it
        return min(power, 64) if power >= SMALLEST else min(_padded(self.run), 64)

    def read(self, x: Array, weight: Array, bias: Array, activation: str) -> Array:
        """What every place reads in the pictures, through a kernel [k, k, depth, size]."""
        num = prod(self.places)
        found = self._call(
            partial(_read_kernel, self, activation),
            (pl.cdiv(num, NUM_PLACES),),
            jax.ShapeDtypeStruct((num * self.size,), x.dtype),
            (x, weight, bias),
        )
        return found.reshape(*self.places, self.size)

    def draw(self, y: Array, weight: Array, bias: Array, activation: str) -> Array:
        """The pictures that the places draw together; the kernel is that of reading."""
        stride, reach, depth = self.stride, self.reach, self.pictures[-1]
        rest = (0, reach * stride - self.kernel)
        weight = jnp.pad(weight, (rest, rest, (0, 0), (0, 0)))
        weight = weight.reshape(reach, stride, reach, stride, depth, self.size)
        weight = weight.transpose(0, 2, 5, 1, 3, 4)
        num_columns = stride * stride * depth
        drawn = self._call(
            partial(_draw_kernel, self, activation),
            (pl.cdiv(prod(self.blocks), NUM_PLACES), pl.cdiv(num_columns, MOST_COLUMNS)),
            jax.ShapeDtypeStruct((prod(self.pictures),), y.dtype),
            (y, weight, bias),
        )
        return drawn.reshape(self.pictures)

    def learn(self, x: Array, y: Array) -> Array:
        """The sum over all places of patch ⊗ numbers, [k, k, depth, size], float32."""
        num_rows = self.kernel if self.kernel * self.piece * self.size <= MOST_SUMS else 1
        parts = self.kernel // num_rows, pl.cdiv(self.run, self.piece)
        num_programs = min(
            pl.cdiv(NUM_PROGRAMS, prod(parts)), pl.cdiv(prod(self.places), NUM_LEARNT)
        )
        shape = num_programs, self.kernel * self.run * self.size
        sums = self._call(
            partial(_learn_kernel, self, num_rows, num_programs),
            (num_programs, *parts),
            jax.ShapeDtypeStruct((prod(shape),), jnp.float32),
            (x, y),
        )
        depth = self.pictures[-1]
        return sums.reshape(shape).sum(0).reshape(self.kernel, self.kernel, depth, self.size)

    def _call(
        self, kernel: Any, grid: tuple[int, ...], shape: Any, inputs: tuple[Array, ...]
    ) -> Any:
        return pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=shape,
            compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
            interpret=self.interpret,
            name=kernel.func.__name__.strip("_"),
        )(*(x.reshape(-1) for x in inputs))


def _read_kernel(
    slide: Sliding, activation: str, x: Any, weight: Any, bias: Any, found: Any
) -> None:
    starts, is_place, at = _places(slide, NUM_PLACES, pl.program_id(0))
    columns = jnp.arange(slide.size)
    sums = jnp.zeros((NUM_PLACES, slide.size), jnp.float32)
    for row in range(slide.kernel):
        for first in range(0, slide.run, slide.piece):
            patch, own = _fetch(slide, x, starts, is_place, row, first)
            inside = (own < slide.run)[:, None]
            at_weight = (row * slide.run + own)[:, None] * slide.size + columns[None, :]
            sums += _dot(patch, plt.load(weight.at[at_weight], mask=inside, other=0.0))
    sums = _activate(sums + bias[columns][None, :], activation)
    at = at[:, None] * slide.size + columns[None, :]
    _store(found, at, sums, is_place[:, None])


def _draw_kernel(
    slide: Sliding, activation: str, y: Any, weight: Any, bias: Any, drawn: Any
) -> None:
    _, height, width, depth = slide.pictures
    _, rows, columns = slide.places
    num_own = slide.stride * slide.stride * depth  # numbers of a block
    own = pl.program_id(1) * MOST_COLUMNS + jnp.arange(min(_padded(num_own), MOST_COLUMNS))
    at = pl.program_id(0) * NUM_PLACES + jnp.arange(NUM_PLACES)
    number, row, column = _unravel(at, slide.blocks)
    size = jnp.arange(slide.size)
    sums = jnp.zeros((NUM_PLACES, len(own)), jnp.float32)
    for i in range(slide.reach):
        for j in range(slide.reach):
            is_place = (row >= i) & (row - i < rows) & (column >= j) & (column - j < columns)
            is_place &= number < slide.pictures[0]
            at = ((number * rows + row - i) * columns + column - j) * slide.size
            numbers = plt.load(y.at[at[:, None] + size[None, :]], mask=is_place[:, None], other=0.0)
            at = ((i * slide.reach + j) * slide.size + size)[:, None] * num_own + own[None, :]
            sums += _dot(numbers, plt.load(weight.at[at], mask=(own < num_own)[None, :], other=0.0))
    sums = _activate(sums + bias[jax.lax.rem(own, depth)][None, :], activation)
    # A block's numbers are some rows of a picture, and those of neighbours lie side by side.
    length = slide.stride * depth
    down = row[:, None] * slide.stride + jax.lax.div(own, length)[None, :]
    across = column[:, None] * length + jax.lax.rem(own, length)[None, :]
    inside = (down < height) & (across < width * depth) & (own < num_own)[None, :]
    inside &= (number < slide.pictures[0])[:, None]
    at = (number[:, None] * height + down) * (width * depth) + across
    _store(drawn, at, sums, inside)


def _learn_kernel(
    slide: Sliding, num_rows: int, num_programs: int, x: Any, y: Any, sums: Any
) -> None:
    size, program = jnp.arange(slide.size), pl.program_id(0)
    first_row, first = pl.program_id(1) * num_rows, pl.program_id(2) * slide.piece

    def add(turn: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        block = turn * num_programs + program
        starts, is_place, at = _places(slide, NUM_LEARNT, block)
        at = at[:, None] * slide.size + size[None, :]
        numbers = plt.load(y.at[at], mask=is_place[:, None], other=0.0)
        patches = [
            _fetch(slide, x, starts, is_place, first_row + k, first)[0] for k in range(num_rows)
        ]
        return tuple(
            so_far + _dot(patch, numbers, trans_a=True)
            for so_far, patch in zip(carry, patches, strict=True)
        )

    nothing = jnp.zeros((slide.piece, slide.size), jnp.float32)
    num_turns = pl.cdiv(prod(slide.places), NUM_LEARNT * num_programs)
    found = jax.lax.fori_loop(0, num_turns, add, (nothing,) * num_rows)
    own = first + jnp.arange(slide.piece)
    for k, part in enumerate(found):
        row = (program * slide.kernel + first_row + k) * slide.run
        at = (row + own)[:, None] * slide.size + size[None, :]
        _store(sums, at, part, (own < slide.run)[:, None])


def _places(slide: Sliding, num: int, block: Array) -> tuple[Array, Array, Array]:
    """Where the patches of a block of places begin, which of them there are, and their numbers."""
    _, height, width, depth = slide.pictures
    at = block * num + jnp.arange(num)
    number, row, column = _unravel(at, slide.places)
    starts = ((number * height + row * slide.stride) * width + column * slide.stride) * depth
    return starts, at < prod(slide.places), at


def _fetch(
    slide: Sliding, x: Any, starts: Array, is_place: Array, row: Array | int, first: Array | int
) -> tuple[Array, Array]:
    """A piece of one row of the patches, and which numbers of the row they are."""
    _, _, width, depth = slide.pictures
    own = first + jnp.arange(slide.piece)
    at = (starts + row * (width * depth))[:, None] + own[None, :]
    inside = is_place[:, None] & (own < slide.run)[None, :]
    return plt.load(x.at[at], mask=inside, other=0.0), own


def _store(ref: Any, at: Array, values: Array, inside: Array) -> None:
    # Nowhere, for what is outside: interpreted, a masked store writes what it found there.
    plt.store(ref.at[jnp.where(inside, at, ref.shape[0])], values.astype(ref.dtype), mask=inside)


def _unravel(at: Array, shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    _, rows, columns = shape
    within = jax.lax.rem(at, rows * columns)
    return (
        jax.lax.div(at, rows * columns),
        jax.lax.div(within, columns),
        jax.lax.rem(within, columns),
    )


def _activate(x: Array, activation: str) -> Array:
    return jnp.maximum(x, 0) if activation == "relu" else x


def _dot(a: Array, b: Array, *, trans_a: bool = False) -> Array:
    contracted = ((0 if trans_a else 1,), (0,))
    return jax.lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _padded(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())
