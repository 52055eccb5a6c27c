"""Networks that read and draw pictures [height, width, channels].

Both directions are patches and one product. `lax` has convolutions of its own, but `vmap` over
their weights, which is how runs share a program, makes grouped convolutions of them, and those are
slow; `vmap` over a product is a batched product.

What is large here is not the weights but the patches, and on a GPU moving them takes the time. So
networks may say in which `dtype` they keep what they make of pictures; products add in float32, and
parameters are float32 everywhere.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from lofo.networks.blocks import (
    ACTIVATIONS,
    Activation,
    Chain,
    Initialisation,
    Network,
    Shape,
    draw_layer,
)
from lofo.networks.gallery import Picked, atlas, look_up, see_through
from lofo.types import Array, Key, Tree

DType = Literal["float32", "bfloat16"]
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
    dtype: DType = "float32"  # of pictures and patches

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

    def apply(self, params: Tree, x: Array | Picked) -> Array:
        if isinstance(x, Picked):
            return self._apply_once(params, x)
        y = x.reshape(-1, *x.shape[-3:]).astype(self.dtype)
        for layer, stride in zip(params, self.strides, strict=True):
            y = convolve(y, layer["weight"].astype(self.dtype), stride) + layer["bias"]
            y = ACTIVATIONS[self.activation](y.astype(self.dtype))
        return y.reshape(*x.shape[:-3], -1).astype(jnp.float32)

    def _apply_once(self, params: Tree, x: Picked) -> Array:
        """The same, asked once for every distinct patch; that is little, and always float32."""
        found = atlas(x.gallery, self.kernels, self.strides)
        answers = self._answer(params[0], see_through(x.scaling, jnp.asarray(found.patches)))
        for layer, links in zip(params[1:], found.links, strict=True):
            answers = self._answer(layer, look_up(answers, jnp.asarray(links)))
        places = jnp.asarray(found.places)[x.rows]
        return look_up(answers, places).reshape(*x.rows.shape, -1)

    def _answer(self, layer: Tree, patches: Array) -> Array:
        weight = layer["weight"].reshape(-1, layer["weight"].shape[-1])
        return ACTIVATIONS[self.activation](
            patches.reshape(len(patches), -1) @ weight + layer["bias"]
        )


@dataclass(frozen=True)
class TransposedCNN:
    """Draws a picture of a vector, taken as one pixel; the last layer has no activation."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    dtype: DType = "float32"  # of pictures and patches

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
            layer = draw_layer(k, shape, fan, self.activation, self.initialisation)
            # inputs first, as the product wants them: turning the weights round would be work
            layers.append(layer | {"weight": jnp.moveaxis(layer["weight"], 2, 0)})
            depth = out
        return tuple(layers), self.picture_shape

    def apply(self, params: Tree, x: Array) -> Array:
        batch_shape = x.shape[:-1]
        x = x.reshape(-1, 1, 1, x.shape[-1])
        for k, (layer, stride) in enumerate(zip(params, self.strides, strict=True)):
            # the first layer is weights above all, and sees the vector as it is: float32
            x = spread(x, layer["weight"].astype(x.dtype), stride) + layer["bias"]
            if k < len(params) - 1:
                x = ACTIVATIONS[self.activation](x.astype(self.dtype))
        return x.reshape(*batch_shape, *x.shape[1:])


def reads_pictures(network: Network) -> bool:
    """Whether it begins with a CNN, which also takes pictures told by their rows."""
    if isinstance(network, Chain) and network.parts:
        return reads_pictures(network.parts[0])
    return isinstance(network, CNN)


def check_shape(
    observation: Array | Picked, shape: Shape, owner: str, decoder: TransposedCNN | None = None
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
    """Pictures [N, H, W, C] with a kernel [k, k, C, O], without padding, to float32."""
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
    product = jnp.concatenate(patches, axis=-1) @ flat.reshape(-1, out)
    return product.astype(jnp.float32)


def spread(x: Array, weight: Array, stride: int) -> Array:
    """The transposed convolution of [N, H, W, C] with [C, k, k, O]: each pixel spreads a kernel."""
    depth, kernel, _, out = weight.shape
    count, height, width, _ = x.shape
    kernels = (x @ weight.reshape(depth, -1)).reshape(count, height, width, kernel, kernel, out)
    if height == width == 1:  # nothing overlaps
        return kernels[:, 0, 0].astype(jnp.float32)
    return _overlay(kernels, stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _overlay(pieces: Array, stride: int) -> Array:
    """Lays pieces [N, H, W, k, k, C] down, each `stride` further on, and adds up, in float32.

    The way back is given, because the compiler would add up what need only be put side by side.
    """
    count, height, width, kernel, _, depth = pieces.shape
    reach = -(-kernel // stride)  # blocks of `stride` that a piece covers
    blocks = functools.reduce(
        jnp.add, (_shift(pieces, stride, at) for at in itertools.product(range(reach), repeat=2))
    )
    rows, columns = ((n - 1) * stride + kernel for n in (height, width))
    picture = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(
        count, (height + reach - 1) * stride, (width + reach - 1) * stride, depth
    )
    return picture[:, :rows, :columns]


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


def _cut(x: Array, side: int) -> Array:
    """Pictures [N, H, W, C] as blocks [N, H / side, W / side, side · side · C]."""
    if side == 1:
        return x
    count, height, width, depth = x.shape
    x = x.reshape(count, height // side, side, width // side, side, depth)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(count, height // side, width // side, -1)


def _drawn_side(kernels: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The side of a picture that begins as one pixel."""
    side = 1
    for kernel, stride in zip(kernels, strides, strict=True):
        side = (side - 1) * stride + kernel
    return side
