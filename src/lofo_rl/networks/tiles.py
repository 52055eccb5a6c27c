"""Pictures as blocks of pixels: a kernel of a stride becomes one that slides block by block.

A few channels make short rows, and a GPU fetches long ones. Blocks of `side` × `side` pixels are
pixels of a smaller picture with more channels, which `deepen` fills up to a multiple of 16.
"""

import jax.numpy as jnp

from lofo_rl.types import Array

ALIGNED = 16  # numbers


def is_ragged(side: int, depth: int) -> bool:
    """Whether rows of blocks begin where a GPU does not like them to."""
    return side * depth % ALIGNED > 0


def cut(x: Array, side: int) -> Array:
    """Pictures [N, H, W, C] as blocks [N, H / side, W / side, side · side · C]."""
    if side == 1:
        return x
    count, height, width, depth = x.shape
    x = x.reshape(count, height // side, side, width // side, side, depth)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(count, height // side, width // side, -1)


def cut_kernel(weight: Array, side: int) -> Array:
    """The kernel [k, k, C, O] for such blocks, [k / side, k / side, side · side · C, O]."""
    kernel, _, depth, out = weight.shape
    num = kernel // side
    weight = weight.reshape(num, side, num, side, depth, out).transpose(0, 2, 1, 3, 4, 5)
    return weight.reshape(num, num, -1, out)


def join(blocks: Array) -> Array:
    """Blocks [N, H, W, side, side, C] as pictures [N, H · side, W · side, C]."""
    count, height, width, side, _, depth = blocks.shape
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(count, height * side, width * side, depth)


def fill(x: Array, axis: int) -> Array:
    """With zeros behind an axis, up to a multiple of 16."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % ALIGNED)
    return jnp.pad(x, widths)


def deepen(x: Array, side: int, rows: int, columns: int) -> Array:
    """Pictures as rows × columns blocks, cropped or filled with zeros."""
    x = x[:, : rows * side, : columns * side]
    rest = [(0, n * side - m) for n, m in zip((rows, columns), x.shape[1:3], strict=True)]
    return fill(cut(jnp.pad(x, [(0, 0), *rest, (0, 0)]), side), -1)


def deepen_kernel(weight: Array, stride: int) -> Array:
    """The kernel [k, k, C, O] for blocks of its stride: it moves by one block."""
    rest = (0, -len(weight) % stride)
    return fill(cut_kernel(jnp.pad(weight, (rest, rest, (0, 0), (0, 0))), stride), 2)
