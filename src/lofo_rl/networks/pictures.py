"""Networks that read and draw pictures [height, width, channels].

What is large here is not the weights but the patches, and on a GPU moving them takes the time. So
networks may say in which `dtype` they keep what they make of pictures; products add in float32, and
parameters are float32 everywhere.
"""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.networks import drawings, patchless
from lofo_rl.networks.blocks import (
    ACTIVATIONS,
    Activation,
    Chain,
    Initialisation,
    Network,
    Shape,
    draw_layer,
    times,
)
from lofo_rl.networks.convolutions import convolve, spread_all
from lofo_rl.networks.gallery import Gallery, Picked, add_up, atlas, look_up, see_through
from lofo_rl.networks.sliding import Goal
from lofo_rl.networks.tiles import deepen
from lofo_rl.types import Array, Key, Tree

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
            layer = draw_layer(k, shape, fan_in, self.activation, self.initialisation)
            layers.append(_inputs_first(layer))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise ValueError(f"an image of shape {input_shape} is too small for {self}")
            depth = out
        return tuple(layers), (height * width * depth,)

    def apply(self, params: Tree, x: Array | Picked) -> Array:
        if isinstance(x, Picked):
            return self._apply_once(params, x)
        height, width = (self._num_seen(n) for n in x.shape[-3:-1])
        y = x.reshape(-1, *x.shape[-3:])[:, :height, :width].astype(self.dtype)
        for layer, stride in zip(params, self.strides, strict=True):
            weight = jnp.moveaxis(layer["weight"], 0, 2)
            y = convolve(y, weight, layer["bias"], stride, self.activation)
        return y.reshape(*x.shape[:-3], -1).astype(jnp.float32)

    def _num_seen(self, length: int) -> int:
        """Pixels of a side that anything depends on: the last ones may not fill a kernel."""
        forms = list(zip(self.kernels, self.strides, strict=True))
        for kernel, stride in forms:
            length = (length - kernel) // stride + 1
        for kernel, stride in reversed(forms):
            length = (length - 1) * stride + kernel
        return length

    def _apply_once(self, params: Tree, x: Picked) -> Array:
        """The same, asked once for every distinct patch; that is little, and always float32."""
        found = atlas(x.gallery, self.kernels, self.strides)
        activate = ACTIVATIONS[self.activation]
        first, *rest = params
        seen = see_through(x.scaling, jnp.asarray(found.patches))
        patches = jnp.moveaxis(seen, -1, 1).reshape(len(seen), -1)  # in the order of the weights
        answers = activate(patches @ first["weight"].reshape(patches.shape[-1], -1) + first["bias"])
        for layer, links in zip(rest, found.links, strict=True):
            depth, *_, size = layer["weight"].shape
            said = answers @ layer["weight"].reshape(depth, -1)
            said = said.reshape(len(answers), -1, size)  # by each place that a patch may be at
            answers = activate(add_up(said, jnp.asarray(links)) + layer["bias"])
        places = jnp.asarray(found.places)[x.rows]
        return look_up(answers, places).reshape(*x.rows.shape, -1)


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
            layers.append(_inputs_first(layer))
            depth = out
        return tuple(layers), self.picture_shape

    def apply(self, params: Tree, x: Array) -> Array:
        drawn, rest = self._begin(params, x)
        if rest:
            drawn = spread_all(drawn, rest, self.strides[1:], self.activation)
        return drawn.reshape(*x.shape[:-1], *drawn.shape[1:]).astype(jnp.float32)

    def compares(self, before: Array | Picked, after: Array | Picked) -> bool:
        """Whether `miss` knows these pictures, and this device."""
        is_listed = (
            isinstance(before, Picked)
            and isinstance(after, Picked)
            and before.gallery is after.gallery
            and before.scaling == after.scaling == Pixels()
        )
        vector = jax.ShapeDtypeStruct((), jnp.dtype(self.dtype))
        suited = (patchless.suits(vector, size, self.activation) for size in self.channels[:-1])
        num_drawn = self.strides[-1] ** 2 * self.channels[-1]
        return (
            is_listed
            and num_drawn <= drawings.MOST_DRAWN
            and len(self.channels) > 1
            and all(suited)
        )

    def miss(self, params: Tree, x: Array, before: Picked, after: Picked, counts: Array) -> Array:
        """Half the squares of `before` + drawn - `after`, each picture's times its count, added up.

        The drawing is compared where it is made, and only its gradient is ever written down.
        """
        drawn, rest = self._begin(params, x)
        weights, biases = (tuple(layer[name] for layer in rest) for name in ("weight", "bias"))
        # A small code times the size of a picture would overflow.
        first, second = (y.rows.reshape(-1).astype(jnp.int32) for y in (before, after))
        table = jnp.asarray(blocks_of(before.gallery, self.strides[-1]))
        goal = Goal(table, first, second, counts.reshape(-1))
        way = drawings.Way(self.strides[1:], self.activation)
        return drawings.miss(drawn, weights, biases, goal, 1 / 255, way)

    def _begin(self, params: Tree, x: Array) -> tuple[Array, Tree]:
        """What the first layer draws, and the others."""
        # One pixel spreads one kernel: a product, of weights above all, and so in float32, unless
        # there are so many rows that they keep a GPU busy.
        first, *rest = params
        shape, bias = first["weight"].shape[1:], first["bias"]
        weight = first["weight"].reshape(x.shape[-1], -1)
        if x.size // len(weight) * weight.size >= patchless.ENOUGH:
            x, weight = x.astype(self.dtype), weight.astype(self.dtype)
        # Pictures are flat here: the compiler would turn them round to add up the bias's gradient.
        bias = jnp.broadcast_to(bias, (*bias.shape[:-3], *shape)).reshape(*bias.shape[:-3], -1)
        drawn = (times(x, weight).astype(jnp.float32) + bias).astype(self.dtype)
        drawn = ACTIVATIONS[self.activation](drawn) if rest else drawn
        return drawn.reshape(-1, *shape), rest


def _inputs_first(layer: dict[str, Array]) -> dict[str, Array]:
    """A layer with its weight as [inputs, k, k, outputs]: products want it so, unturned."""
    return layer | {"weight": jnp.moveaxis(layer["weight"], 2, 0)}


@lru_cache(maxsize=8)
def blocks_of(gallery: Gallery, side: int) -> np.ndarray:
    """A table of pictures [pictures + 1, numbers] as blocks; its last row is 1 where pixels are."""
    num_blocks = [-(-n // side) for n in gallery.pictures.shape[1:3]]
    pictures = np.concatenate([gallery.pictures, np.ones_like(gallery.pictures[:1])])
    with jax.ensure_compile_time_eval():
        found = deepen(jnp.asarray(pictures), side, *num_blocks)
    return np.asarray(found).reshape(len(pictures), -1)


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


def _drawn_side(kernels: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The side of a picture that begins as one pixel."""
    side = 1
    for kernel, stride in zip(kernels, strides, strict=True):
        side = (side - 1) * stride + kernel
    return side
