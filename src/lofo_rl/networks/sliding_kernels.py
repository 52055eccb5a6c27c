"""What the programs of `sliding` do."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks.slides import Plan, Slide, padded
from lofo_rl.types import Array


def read_kernel(
    slide: Slide, activation: str, plan: Plan, x: Any, weight: Any, bias: Any, found: Any
) -> None:
    """Places read pictures."""
    sums, at, is_place = _reading(slide, plan, x, weight)
    columns = jnp.arange(slide.size)
    sums = _activate(sums + bias[columns][None, :], activation)
    at = at[:, None] * slide.size + columns[None, :]
    _store(slide, found, at, sums, is_place[:, None])


def read_back_kernel(
    slide: Slide, activation: str, plan: Plan, x: Any, weight: Any, below: Any,
    found: Any, totals: Any,
) -> None:  # fmt: skip
    """Places read a gradient, mind the activation below and add up."""
    sums, at, is_place = _reading(slide, plan, x, weight)
    columns = jnp.arange(slide.size)
    at = at[:, None] * slide.size + columns[None, :]
    if activation == "relu":
        is_active = plt.load(below.at[at], mask=is_place[:, None], other=0.0) > 0
        sums = jnp.where(is_active, sums, 0.0)
    _store(slide, found, at, sums, is_place[:, None])
    totals[pl.program_id(0) * slide.size + columns] = jnp.sum(sums, axis=0)


def _reading(slide: Slide, plan: Plan, x: Any, weight: Any) -> tuple[Array, Array, Array]:
    """What places read, [places, size] float32; their numbers, and which of them there are."""
    starts, is_place, at = _places(slide, plan.places, pl.program_id(0))
    columns = jnp.arange(slide.size)
    num_pieces = pl.cdiv(slide.run, slide.piece)

    def part(step: Array | int) -> Array:
        row, first = _div(step, num_pieces), _rem(step, num_pieces) * slide.piece
        patch, own = _fetch(slide, x, starts, is_place, row, first)
        at_weight = (row * slide.run + own)[:, None] * slide.size + columns[None, :]
        inside = None if slide.run % slide.piece == 0 else (own < slide.run)[:, None]
        return dot(patch, _load(weight, at_weight, inside))

    sums = jnp.zeros((plan.places, slide.size), jnp.float32)
    return _add_up(slide.kernel * num_pieces, part, sums, plan), at, is_place


def draw_kernel(
    slide: Slide, activation: str, plan: Plan, y: Any, weight: Any, bias: Any, drawn: Any
) -> None:
    """Blocks of pictures are drawn."""
    _, height, width, depth = slide.pictures
    sums, (number, row, column), own = _drawing(slide, plan, y, weight, bias)
    sums = _activate(sums, activation)
    # A block's numbers are some rows of a picture, and those of neighbors lie side by side.
    length = slide.stride * depth
    down = row[:, None] * slide.stride + _div(own, length)[None, :]
    across = column[:, None] * length + _rem(own, length)[None, :]
    inside = (down < height) & (across < width * depth) & (number < slide.pictures[0])[:, None]
    if (slide.stride * length) % len(own):
        inside &= (own < slide.stride * length)[None, :]
    at = (number[:, None] * height + down) * (width * depth) + across
    _store(slide, drawn, at, sums, inside)


def miss_kernel(
    slide: Slide, scale: float, plan: Plan, y: Any, weight: Any, bias: Any,
    table: Any, before: Any, after: Any, counts: Any, change: Any, losses: Any, totals: Any,
) -> None:  # fmt: skip
    """Blocks of pictures are drawn and compared."""
    count, rows, columns = slide.blocks
    sums, (number, row, column), own = _drawing(slide, plan, y, weight, bias)
    is_block, depth = number < count, slide.pictures[-1]
    inside = is_block[:, None] & (own < depth)[None, :]
    page = rows * columns * depth
    within = ((row * columns + column) * depth)[:, None] + own[None, :]

    def find(picture: Array | int) -> Array:
        return _load(table, picture * page + within, inside).astype(jnp.float32)

    first, last = (_load(rows, number, is_block)[:, None] for rows in (before, after))
    missed = (sums + (find(first) - find(last)) * scale) * find(table.shape[0] // page - 1)
    weighted = missed * _load(counts, number, is_block)[:, None]
    _store(slide, change, number[:, None] * page + within, weighted, inside)
    losses[pl.program_id(0)] = 0.5 * jnp.sum(jnp.sum(missed * weighted, axis=1), axis=0)
    at = pl.program_id(0) * depth + own
    _store(slide, totals, at, jnp.sum(weighted, axis=0), own < depth)


def _drawing(
    slide: Slide, plan: Plan, y: Any, weight: Any, bias: Any
) -> tuple[Array, tuple[Array, Array, Array], Array]:
    """Numbers of blocks, float32, with the bias; which blocks, and which of their numbers."""
    _, rows, columns = slide.places
    depth = slide.pictures[-1]
    num_own = slide.stride**2 * depth  # numbers of a block
    num_columns = min(padded(num_own), plan.columns)
    own = pl.program_id(1) * num_columns + jnp.arange(num_columns)
    inside = None if num_own % num_columns == 0 else (own < num_own)[None, :]
    at = pl.program_id(0) * plan.places + jnp.arange(plan.places)
    number, row, column = _unravel(at, slide.blocks)
    size = jnp.arange(slide.size)

    def part(step: Array | int) -> Array:
        i, j = _div(step, slide.reach), _rem(step, slide.reach)
        is_place = (row >= i) & (row - i < rows) & (column >= j) & (column - j < columns)
        is_place &= number < slide.pictures[0]
        at = ((number * rows + row - i) * columns + column - j) * slide.size
        numbers = _load(y, at[:, None] + size[None, :], is_place[:, None])
        at = (step * slide.size + size)[:, None] * num_own + own[None, :]
        return dot(numbers, _load(weight, at, inside))

    sums = jnp.zeros((plan.places, num_columns), jnp.float32)
    sums = _add_up(slide.reach**2, part, sums, plan)
    return sums + bias[_rem(own, depth)][None, :], (number, row, column), own


def learn_kernel(
    slide: Slide, num_rows: int, num_programs: int, plan: Plan, x: Any, y: Any, sums: Any
) -> None:
    """Patches times numbers, added up over a program's own places."""
    size, program = jnp.arange(slide.size), pl.program_id(0)
    first_row, first = pl.program_id(1) * num_rows, pl.program_id(2) * slide.piece

    def add(turn: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        starts, is_place, at = _places(slide, plan.places, turn * num_programs + program)
        numbers = _load(y, at[:, None] * slide.size + size[None, :], is_place[:, None])
        patches = [
            _fetch(slide, x, starts, is_place, first_row + k, first)[0] for k in range(num_rows)
        ]
        return tuple(
            so_far + dot(patch, numbers, trans_a=True)
            for so_far, patch in zip(carry, patches, strict=True)
        )

    nothing = jnp.zeros((slide.piece, slide.size), jnp.float32)
    num_turns = pl.cdiv(prod(slide.places), plan.places * num_programs)
    found = jax.lax.fori_loop(0, num_turns, add, (nothing,) * num_rows)
    own = first + jnp.arange(slide.piece)
    for k, part in enumerate(found):
        row = (program * slide.kernel + first_row + k) * slide.run
        at = (row + own)[:, None] * slide.size + size[None, :]
        _store(slide, sums, at, part, (own < slide.run)[:, None])


def _add_up(num: int, part: Callable[[Array | int], Array], sums: Array, plan: Plan) -> Array:
    if plan.stages > 1:  # a loop is what the compiler fetches ahead in
        return jax.lax.fori_loop(0, num, lambda step, so_far: so_far + part(step), sums)
    for step in range(num):
        sums += part(step)
    return sums


def _places(slide: Slide, num: int, block: Array) -> tuple[Array, Array, Array]:
    """Where the patches of a block of places begin, which of them there are, and their numbers."""
    _, height, width, depth = slide.pictures
    at = block * num + jnp.arange(num)
    number, row, column = _unravel(at, slide.places)
    starts = ((number * height + row * slide.stride) * width + column * slide.stride) * depth
    return starts, at < prod(slide.places), at


def _fetch(
    slide: Slide, x: Any, starts: Array, is_place: Array, row: Array | int, first: Array | int
) -> tuple[Array, Array]:
    """A piece of one row of the patches, and which numbers of the row they are."""
    _, _, width, depth = slide.pictures
    own = first + jnp.arange(slide.piece)
    at = (starts + row * (width * depth))[:, None] + own[None, :]
    inside = is_place[:, None]
    if slide.run % slide.piece:
        inside &= (own < slide.run)[None, :]
    return _load(x, at, inside), own


def _load(ref: Any, at: Array, inside: Array | None) -> Array:
    if inside is None:
        return plt.load(ref.at[at])
    return plt.load(ref.at[at], mask=inside, other=jnp.zeros((), ref.dtype))


def _store(slide: Slide, ref: Any, at: Array, values: Array, inside: Array) -> None:
    if slide.interpret:  # a masked store writes what it found there: nowhere, where it is outside
        at = jnp.where(inside, at, ref.shape[0])
    plt.store(ref.at[at], values.astype(ref.dtype), mask=inside)


def _unravel(at: Array, shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    _, rows, columns = shape
    within = _rem(at, rows * columns)
    return _div(at, rows * columns), _div(within, columns), _rem(within, columns)


def _div(a: Array | int, b: int) -> Any:
    return a // b if isinstance(a, int) else jax.lax.div(a, b)


def _rem(a: Array | int, b: int) -> Any:
    return a % b if isinstance(a, int) else jax.lax.rem(a, b)


def _activate(x: Array, activation: str) -> Array:
    assert activation in ("relu", "none"), activation
    return jnp.maximum(x, 0) if activation == "relu" else x


def dot(a: Array, b: Array, *, trans_a: bool = False) -> Array:
    """A product of bfloat16 numbers, added up in float32."""
    contracted = (((0 if trans_a else 1,), (0,)), ((), ()))
    # Whatever others ask of their products: these are bfloat16 and cannot be more exact.
    return jax.lax.dot_general(
        a, b, contracted, jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32
    )
