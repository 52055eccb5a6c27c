"""Networks that read and draw pictures [height, width, channels].

Both directions are patches and one product. `lax` has convolutions of its own, but `vmap` over
their weights, which is how runs share a program, makes grouped convolutions of them, and those are
slow; `vmap` over a product is a batched product.
"""

import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lofo.networks.blocks import ACTIVATIONS, Activation, Initialisation, Shape, draw_layer
from lofo.types import Array, Key, Tree

SPARE = 8  # pixels that a kernel may exceed its stride by, where one is looked for


@dataclass(frozen=True)
class Pixels:
    """Maps uint8 images onto [0, 1]: the one place where pixels become numbers."""

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        del key
        return (), input_shape

    def apply(self, params: Tree, x: Array) -> Array:
        del params
        return x.astype(jnp.float32) / 255


@dataclass(frozen=True)
class CNN:
    """Convolutions without padding over [height, width, channels], flattened at the end."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        if len(input_shape) != 3:
            raise ValueError(f"a CNN wants height, width and channels, got shape {input_shape}")
        height, width, depth = input_shape
        layers = []
        keys = jax.random.split(key, len(self.channels))
        for k, out, kernel, stride in zip(
            keys, self.channels, self.kernels, self.strides, strict=True
        ):
            shape = (kernel, kernel, depth, out)
            fan_in = kernel * kernel * depth
            layers.append(draw_layer(k, shape, fan_in, self.activation, self.initialisation))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise ValueError(f"an image of shape {input_shape} is too small for {self}")
            depth = out
        return tuple(layers), (height * width * depth,)

    def apply(self, params: Tree, x: Array) -> Array:
        batch_shape = x.shape[:-3]
        x = x.reshape(-1, *x.shape[-3:])
        for layer, stride in zip(params, self.strides, strict=True):
            x = convolve(x, layer["weight"], stride)
            x = ACTIVATIONS[self.activation](x + layer["bias"])
        return x.reshape(*batch_shape, -1)


@dataclass(frozen=True)
class TransposedCNN:
    """Draws a picture of a vector, taken as one pixel; the last layer has no activation."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    @property
    def picture_shape(self) -> Shape:
        """Height, width and channels of what it draws, whatever the vector."""
        side = _drawn_side(self.kernels, self.strides)
        return side, side, self.channels[-1]

    def kernels_for(self, side: int) -> tuple[int, ...] | None:
        """The kernels most like these that draw pictures of a side without gaps, if any do."""
        ranges = [range(stride, stride + SPARE) for stride in self.strides]
        fitting = [k for k in itertools.product(*ranges) if _drawn_side(k, self.strides) == side]
        return min(fitting, key=lambda k: math.dist(k, self.kernels), default=None)

    def check_draws(self, shape: Shape) -> None:
        """Refuses pictures of another shape, and names the kernels that would draw them."""
        if shape != self.picture_shape:
            raise ValueError(
                f"the decoder draws pictures of shape {self.picture_shape}, but observations have "
                f"shape {shape}{self.hint(shape)}"
            )

    def hint(self, shape: Shape) -> str:
        """The change that would draw pictures of a shape, if it is a small one."""
        is_square = len(shape) == 3 and shape[0] == shape[1]
        kernels = self.kernels_for(shape[0]) if is_square else None
        return f"; decoder.kernels {kernels} would draw a side of {shape[0]}" if kernels else ""

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        if len(input_shape) != 1:
            raise ValueError(f"a transposed CNN wants a vector, got shape {input_shape}")
        (depth,) = input_shape
        layers = []
        keys = jax.random.split(key, len(self.channels))
        for k, out, kernel in zip(keys, self.channels, self.kernels, strict=True):
            # PyTorch counts the outputs here; they are about as many as the inputs
            fan = kernel * kernel * out
            shape = (kernel, kernel, depth, out)
            layers.append(draw_layer(k, shape, fan, self.activation, self.initialisation))
            depth = out
        return tuple(layers), self.picture_shape

    def apply(self, params: Tree, x: Array) -> Array:
        batch_shape = x.shape[:-1]
        x = x.reshape(-1, 1, 1, x.shape[-1])
        for k, (layer, stride) in enumerate(zip(params, self.strides, strict=True)):
            x = spread(x, layer["weight"], stride) + layer["bias"]
            x = ACTIVATIONS[self.activation](x) if k < len(params) - 1 else x
        return x.reshape(*batch_shape, *x.shape[1:])


def check_shape(
    observation: Array, shape: Shape, owner: str, decoder: TransposedCNN | None = None
) -> None:
    """Refuses observations, over any leading axes, of another shape than the owner's."""
    found = observation.shape[max(observation.ndim - len(shape), 0) :]
    if found != shape:
        hint = decoder.hint(found) if decoder and decoder.picture_shape != found else ""
        raise ValueError(
            f"the {owner} was built for observations of shape {shape}, but they have shape "
            f"{found}: set {owner}.observation_shape{hint}"
        )


def convolve(x: Array, weight: Array, stride: int) -> Array:
    """Pictures [N, H, W, C] with a kernel [k, k, C, O], without padding."""
    kernel, _, depth, out = weight.shape
    block = math.gcd(kernel, stride)  # pixels that always move together
    num, step = kernel // block, stride // block
    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])
    x = _cut(x[:, : (height - 1) * stride + kernel, : (width - 1) * stride + kernel], block)
    patches = [
        x[:, i : i + (height - 1) * step + 1 : step, j : j + (width - 1) * step + 1 : step]
        for i in range(num)
        for j in range(num)
    ]
    flat = weight.reshape(num, block, num, block, depth, out).transpose(0, 2, 1, 3, 4, 5)
    return jnp.concatenate(patches, axis=-1) @ flat.reshape(-1, out)


def spread(x: Array, weight: Array, stride: int) -> Array:
    """The transposed convolution of [N, H, W, C] with [k, k, C, O]: every pixel spreads a kernel.

    Turned round, so that nothing is added up afterwards: each block of `stride` × `stride` pixels
    of the outcome is one product of the few pixels that reach it.
    """
    kernel, _, depth, out = weight.shape
    count, height, width, _ = x.shape
    rows, columns = ((n - 1) * stride + kernel for n in (height, width))
    if height == width == 1:  # no kernels overlap
        flat = weight.transpose(2, 0, 1, 3).reshape(depth, -1)
        return (x.reshape(count, depth) @ flat).reshape(count, kernel, kernel, out)
    num = -(-kernel // stride)  # blocks that a kernel reaches
    margin, rest = num - 1, num * stride - kernel
    height, width = height + margin, width + margin  # counted in blocks of the outcome
    x = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    reaching = [
        x[:, margin - i : margin - i + height, margin - j : margin - j + width]
        for i in range(num)
        for j in range(num)
    ]
    weight = jnp.pad(weight, ((0, rest), (0, rest), (0, 0), (0, 0)))
    weight = weight.reshape(num, stride, num, stride, depth, out).transpose(0, 2, 4, 1, 3, 5)
    blocks = jnp.concatenate(reaching, axis=-1) @ weight.reshape(num * num * depth, -1)
    blocks = blocks.reshape(count, height, width, stride, stride, out)
    return _join(blocks)[:, :rows, :columns]


def _cut(x: Array, side: int) -> Array:
    """Pictures [N, H, W, C] as blocks [N, H / side, W / side, side · side · C]."""
    if side == 1:
        return x
    count, height, width, depth = x.shape
    x = x.reshape(count, height // side, side, width // side, side, depth)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(count, height // side, width // side, -1)


def _join(blocks: Array) -> Array:
    """Blocks [N, H, W, side, side, C] as pictures [N, H · side, W · side, C]."""
    count, height, width, side, _, depth = blocks.shape
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(count, height * side, width * side, depth)


def _drawn_side(kernels: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The side of a picture that begins as one pixel."""
    side = 1
    for kernel, stride in zip(kernels, strides, strict=True):
        side = (side - 1) * stride + kernel
    return side
