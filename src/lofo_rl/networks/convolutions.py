"""Convolutions and their transposes as patches and one product.

`lax` has convolutions of its own, but `vmap` over their weights, which is how runs share a program,
makes grouped convolutions of them, and those are slow; `vmap` over a product is a batched product.
On a GPU, pictures in bfloat16 and large networks have kernels that need no patches: `patchless`.

Products add in float32, and outcomes have the dtype of what came in, or what `finish` makes of it.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from lofo_rl import devices
from lofo_rl.networks import dense, drawings, patchless
from lofo_rl.networks.blocks import Activation, finish, times
from lofo_rl.networks.tiles import cut, cut_kernel, join
from lofo_rl.types import Array, Tree


def convolve(x: Array, weight: Array, bias: Array, stride: int, activation: Activation) -> Array:
    """Pictures [N, H, W, C] with a kernel [k, k, C, O] and a bias [O], without padding."""
    kernel, *_, out = weight.shape
    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])
    num_products = len(x) * height * width * weight.size
    kernels = patchless.kernels_for(x, out, num_products, activation)
    # patches that hold hardly more than the pictures, which the library would turn round
    are_few = height * width * kernel**2 < 2 * x.shape[1] * x.shape[2] and x.dtype == jnp.bfloat16
    if kernels and (kernels == patchless.OURS or not are_few):
        return patchless.convolve(x, weight, bias, stride, activation, kernels)
    # weights are what is large, or what a step on a GPU waits for: in the order a CNN keeps them
    is_alone = len(x) == 1 and not devices.is_cpu()
    if is_alone or len(x) * height * width <= out:
        flat = jnp.moveaxis(weight, 2, 0).reshape(-1, out).astype(x.dtype)
        patches = _patches(x, kernel, stride, height, width)
        return finish(times(patches, flat), bias, activation)
    block = math.gcd(kernel, stride)  # pixels that always move together
    num, step = kernel // block, stride // block
    x = cut(x[:, : (height - 1) * stride + kernel, : (width - 1) * stride + kernel], block)

    def reach(i: int, j: int) -> Array:
        """The blocks that are row i and column j of a patch."""
        down, across = (
            slice(k, k + (n - 1) * step + 1, step) for k, n in ((i, height), (j, width))
        )
        return x[:, down, across]

    parts = [reach(i, j) for i, j in itertools.product(range(num), repeat=2)]
    patches, flat = jnp.concatenate(parts, axis=-1), cut_kernel(weight, block).reshape(-1, out)
    if are_few:
        # patches are put side by side once: the way back would do it again
        patches = jax.lax.optimization_barrier(patches)
        return dense.read([[{"weight": flat, "bias": bias}]], patches, activation)[0]
    return finish(times(patches, flat.astype(x.dtype)), bias, activation)


def _patches(x: Array, kernel: int, stride: int, height: int, width: int) -> Array:
    """What lies under a kernel at each place [N, height, width, C · k · k], in a weight's order."""
    down, across = (
        [slice(i, i + (n - 1) * stride + 1, stride) for i in range(kernel)] for n in (height, width)
    )
    parts = [x[:, i, j] for i, j in itertools.product(down, across)]
    return jnp.stack(parts, axis=-1).reshape(len(x), height, width, -1)


def spread_all(
    x: Array, layers: Sequence[Tree], strides: tuple[int, ...], activation: Activation
) -> Array:
    """Transposed convolutions in turn; the last has no activation.

    From where on our own kernels suit all layers, and are for this much, they take them together.
    """
    weights, biases = (tuple(layer[name] for layer in layers) for name in ("weight", "bias"))
    activations = (*[activation] * (len(weights) - 1), "none")
    for k, (weight, bias, stride) in enumerate(zip(weights, biases, strides, strict=True)):
        rest = zip(weights[k:], activations[k:], strict=True)
        suited = all(patchless.suits(x, len(weight), own) for weight, own in rest)
        if suited and x.size // len(weight) * weight.size < patchless.ENOUGH:
            way = drawings.Way(strides[k:], activation)
            return drawings.spread(x, weights[k:], biases[k:], way)
        x = spread(x, weight, bias, stride, activations[k])
    return x


def spread(x: Array, weight: Array, bias: Array, stride: int, activation: Activation) -> Array:
    """The transposed convolution of [N, H, W, C] with [C, k, k, O]: each pixel spreads a kernel.

    Either the kernels are made and laid over each other, or what reaches a block of the outcome is
    collected first: whichever has fewer numbers to move.
    """
    depth, kernel, _, out = weight.shape
    count, height, width, _ = x.shape
    num_products = count * height * width * weight.size
    if kernels := patchless.kernels_for(x, depth, num_products, activation):
        return patchless.spread(x, weight, bias, stride, activation, kernels)
    weight = weight.astype(x.dtype)
    reach = -(-kernel // stride)  # blocks of `stride` that a kernel covers
    num_laid = height * width * kernel**2 * out
    num_collected = (height + reach - 1) * (width + reach - 1) * reach**2 * depth
    if num_collected < num_laid:
        return finish(_collect(x, weight, stride), bias, activation)
    pieces = times(x, weight.reshape(depth, -1))
    pieces = pieces.reshape(count, height, width, kernel, kernel, out)
    return finish(_overlay(pieces, stride).astype(x.dtype), bias, activation)


def _collect(x: Array, weight: Array, stride: int) -> Array:
    """Each block of `stride` × `stride` pixels is one product of the few pixels that reach it."""
    depth, kernel, _, out = weight.shape
    count, height, width, _ = x.shape
    rows, columns = ((n - 1) * stride + kernel for n in (height, width))
    num = -(-kernel // stride)
    margin, rest = num - 1, num * stride - kernel
    height, width = height + margin, width + margin  # counted in blocks of the outcome
    x = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    reaching = [
        x[:, margin - i : margin - i + height, margin - j : margin - j + width]
        for i in range(num)
        for j in range(num)
    ]
    weight = jnp.pad(weight, ((0, 0), (0, rest), (0, rest), (0, 0)))
    weight = weight.reshape(depth, num, stride, num, stride, out).transpose(1, 3, 0, 2, 4, 5)
    blocks = times(jnp.concatenate(reaching, axis=-1), weight.reshape(num * num * depth, -1))
    blocks = blocks.reshape(count, height, width, stride, stride, out)
    return join(blocks)[:, :rows, :columns]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _overlay(pieces: Array, stride: int) -> Array:
    """Lays pieces [N, H, W, k, k, C] down, each `stride` further on, and adds up, in float32.

    The way back is given, because the compiler would add up what need only be put side by side.
    """
    height, width, kernel = pieces.shape[1:4]
    reach = -(-kernel // stride)  # blocks of `stride` that a piece covers
    blocks = functools.reduce(
        jnp.add, (_shift(pieces, stride, at) for at in itertools.product(range(reach), repeat=2))
    )
    rows, columns = ((n - 1) * stride + kernel for n in (height, width))
    return join(blocks)[:, :rows, :columns]


def _shift(pieces: Array, stride: int, at: tuple[int, ...]) -> Array:
    """One block [stride, stride] of each piece, moved to where it lies among all blocks."""
    kernel = pieces.shape[3]
    last = -(-kernel // stride) - 1
    down, across = (slice(i * stride, (i + 1) * stride) for i in at)
    part = pieces[:, :, :, down, across]
    moves = [(i, last - i) for i in at]
    rests = [(0, stride - n) for n in part.shape[3:5]]
    return jnp.pad(part.astype(jnp.float32), [(0, 0), *moves, *rests, (0, 0)])


def _overlay_forth(pieces: Array, stride: int) -> tuple[Array, Array]:
    return _overlay(pieces, stride), pieces


def _overlay_back(stride: int, pieces: Array, change: Array) -> tuple[Array]:
    count, height, width, kernel, _, depth = pieces.shape
    rows = _side_by_side(change.astype(pieces.dtype), height, kernel, stride)
    rows = rows.reshape(-1, *rows.shape[3:])
    found = _side_by_side(rows, width, kernel, stride)
    return (found.reshape(count, height, kernel, width, kernel, depth).swapaxes(2, 3),)


def _side_by_side(x: Array, num: int, kernel: int, stride: int) -> Array:
    """The pieces [N, num, k, ...] of [N, length, ...], each `stride` further on."""
    reach = -(-kernel // stride)
    rest = (num + reach - 1) * stride - x.shape[1]
    x = jnp.pad(x, [(0, 0), (0, rest), *[(0, 0)] * (x.ndim - 2)])
    blocks = x.reshape(len(x), -1, stride, *x.shape[2:])
    return jnp.concatenate([blocks[:, i : i + num] for i in range(reach)], axis=2)[:, :, :kernel]


_overlay.defvjp(_overlay_forth, _overlay_back)
