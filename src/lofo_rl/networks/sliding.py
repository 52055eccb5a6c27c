"""Kernels for convolutions on a GPU whose patches never lie in memory.

A patch holds every pixel several times, so writing patches down and reading them again takes longer
than multiplying them. Here a program takes some places of a sliding kernel, fetches what lies under
it row by row, multiplies and adds up in float32, and only the outcome is written.

`Sliding.read` makes numbers of patches, `Sliding.draw` makes patches of numbers and lays them over
each other, and `Sliding.learn` is what both have for a gradient of their weights. On the way back,
`Sliding.read_back` knows the activation below and adds up the gradient of its bias; and `miss` says
how far a drawing lies from a picture of a table, with the gradient in the drawing's place.

Rows should begin at multiples of 16 bytes: only then do 16 bytes travel at once.
"""

from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks import sliding_kernels as kernels
from lofo_rl.networks.slides import Slide
from lofo_rl.types import Array

MOST_SUMS = 4096  # numbers that a program adds up at a time


class Goal(NamedTuple):
    """What drawings should add to pictures of a table so that they become others."""

    table: Array  # [pictures + 1, numbers] bytes; the last is 1 where a picture has pixels
    before: Array  # [count] int32
    after: Array  # [count] int32
    counts: Array  # [count] float32: the weight of each drawing


class Sliding(Slide):
    """The kernels' calls."""

    def read(self, x: Array, weight: Array, bias: Array, activation: str) -> Array:
        """What every place reads in the pictures, through a kernel [k, k, depth, size]."""
        num, num_places = prod(self.places), self.plan("read").places
        (found,) = self._call(
            "read",
            partial(kernels.read_kernel, self, activation),
            (pl.cdiv(num, num_places),),
            [((num * self.size,), x.dtype)],
            (x, weight, bias),
        )
        return found.reshape(*self.places, self.size)

    def read_back(
        self, x: Array, weight: Array, below: Array, activation: str
    ) -> tuple[Array, Array]:
        """The gradient ahead of the activation that made `below`, and its sum over all places."""
        num, num_places = prod(self.places), self.plan("read").places
        num_programs = pl.cdiv(num, num_places)
        found, sums = self._call(
            "read",
            partial(kernels.read_back_kernel, self, activation),
            (num_programs,),
            [((num * self.size,), x.dtype), ((num_programs * self.size,), jnp.float32)],
            (x, weight, below),
        )
        return found.reshape(*self.places, self.size), sums.reshape(num_programs, -1).sum(0)

    def draw(self, y: Array, weight: Array, bias: Array, activation: str) -> Array:
        """The pictures that the places draw together; the kernel is that of reading."""
        plan, num_columns = self.plan("draw"), self.stride**2 * self.pictures[-1]
        (drawn,) = self._call(
            "draw",
            partial(kernels.draw_kernel, self, activation),
            (pl.cdiv(prod(self.blocks), plan.places), pl.cdiv(num_columns, plan.columns)),
            [((prod(self.pictures),), y.dtype)],
            (y, self._in_blocks(weight), bias),
        )
        return drawn.reshape(self.pictures)

    def miss(
        self, y: Array, weight: Array, bias: Array, goal: Goal, scale: float
    ) -> tuple[Array, Array, Array]:
        """Half the squares by which `draw` misses its goal, the gradient of these, and of the bias.

        For `stride` 1 and no more numbers a place than one program takes.
        """
        plan, depth = self.plan("draw"), self.pictures[-1]
        assert self.stride == 1 and depth <= plan.columns, (self, plan)
        num_programs = pl.cdiv(prod(self.blocks), plan.places)
        change, losses, sums = self._call(
            "draw",
            partial(kernels.miss_kernel, self, scale),
            (num_programs, 1),
            [
                ((prod(self.pictures),), y.dtype),
                ((num_programs,), jnp.float32),
                ((num_programs * depth,), jnp.float32),
            ],
            (y, self._in_blocks(weight), bias, *goal),
        )
        sums = sums.reshape(num_programs, depth).sum(0)
        return losses.sum(), change.reshape(self.pictures), sums

    def learn(self, x: Array, y: Array) -> Array:
        """The sum over all places of patch ⊗ numbers, [k, k, depth, size], float32."""
        plan = self.plan("learn")
        num_rows = self.kernel if self.kernel * self.piece * self.size <= MOST_SUMS else 1
        parts = self.kernel // num_rows, pl.cdiv(self.run, self.piece)
        num_blocks = pl.cdiv(prod(self.places), plan.places)
        num_programs = min(pl.cdiv(plan.programs, prod(parts)), num_blocks)
        shape = num_programs, self.kernel * self.run * self.size
        (sums,) = self._call(
            "learn",
            partial(kernels.learn_kernel, self, num_rows, num_programs),
            (num_programs, *parts),
            [((prod(shape),), jnp.float32)],
            (x, y),
        )
        depth = self.pictures[-1]
        return sums.reshape(shape).sum(0).reshape(self.kernel, self.kernel, depth, self.size)

    def _in_blocks(self, weight: Array) -> Array:
        """The kernel as what each place draws in the blocks it reaches, [i, j, size, numbers]."""
        stride, reach, depth = self.stride, self.reach, self.pictures[-1]
        rest = (0, reach * stride - self.kernel)
        weight = jnp.pad(weight, (rest, rest, (0, 0), (0, 0)))
        weight = weight.reshape(reach, stride, reach, stride, depth, self.size)
        return weight.transpose(0, 2, 5, 1, 3, 4)

    def _call(
        self, kind: str, kernel: Any, grid: tuple[int, ...], outcomes: Any, inputs: Any
    ) -> Any:
        plan = self.plan(kind)
        return pl.pallas_call(
            partial(kernel, plan),
            grid=grid,
            out_shape=[jax.ShapeDtypeStruct(*outcome) for outcome in outcomes],
            compiler_params=plt.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
            interpret=self.interpret,
            name=kernel.func.__name__,
        )(*(x.reshape(-1) for x in inputs))
