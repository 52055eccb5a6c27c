"""Networks as plain `init` / `apply` over pytrees: at once configuration and code.

`init(key, input_shape)` returns the parameters and the output shape, so networks chain without
stating sizes twice; `apply(params, x)` takes any number of leading batch axes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from lofo_rl import devices
from lofo_rl.types import Array, Key, Tree

Activation = Literal["tanh", "relu", "elu", "none"]
Initialisation = Literal["kaiming", "torch", "glorot"]
Shape = tuple[int, ...]

ALIGNED = 8  # numbers of 2 bytes: tensor cores read rows well that begin at multiples of 16 bytes


@jax.custom_jvp
def relu(x: Array) -> Array:
    """The positive part; its gradient asks the outcome, so that the input need not be kept."""
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = relu(*primals)
    return y, jnp.where(y > 0, *tangents, 0)


@jax.custom_jvp
def elu(x: Array) -> Array:
    """x, and e^x - 1 below 0; its gradient, too, asks the outcome."""
    wide = x.astype(jnp.float32)
    # expm1 is many instructions, and keeps digits near 0 that bfloat16 beside larger numbers lacks
    low = jnp.expm1(wide) if x.dtype == jnp.float32 else jnp.exp(wide) - 1
    return jnp.where(wide > 0, wide, low).astype(x.dtype)


@elu.defjvp
def _elu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y, (tangent,) = elu(*primals), tangents
    return y, tangent * jnp.where(y > 0, 1, y + 1)


@jax.custom_vjp
def once(x: Array) -> Array:
    """x, whose slope is a sum that many ask for: it is added up once.

    Otherwise the compiler adds up again for each of those who ask.
    """
    return x


once.defvjp(lambda x: (x, None), lambda _, slope: (jax.lax.optimization_barrier(slope),))


def times(x: Array, weight: Array) -> Array:
    """x @ weight in their dtype; sums, those of its gradients too, are float32.

    GPUs see to that themselves. Newer compilers for CPUs add some bfloat16 products up in bfloat16.
    """
    if not x.dtype == weight.dtype == jnp.bfloat16:
        return x @ weight
    if devices.is_cpu():
        return (x.astype(jnp.float32) @ weight.astype(jnp.float32)).astype(x.dtype)
    if x.ndim == 1:  # one row: as a product, a kernel more would write its rounded terms down
        terms = x.astype(jnp.float32)[:, None] * weight.astype(jnp.float32)
        return jnp.sum(terms, axis=0).astype(x.dtype)
    return x @ weight


def mix(rows: Array, x: Array, start: Array) -> Array:
    """`start` and x [..., K] times a few rows [K, size], with all their digits.

    So few numbers are no product: that would be a kernel of its own, or share one of odd rows.
    """
    return sum((x[..., k, None] * once(row) for k, row in enumerate(rows)), start)


def sums(x: Array, weight: Array) -> Array:
    """x @ weight of a few columns, with all their digits.

    No product either: few columns leave a GPU idle, above all on the way back, and sums take along
    whatever x is made of.
    """
    return jnp.stack([jnp.sum(x * column, axis=-1) for column in weight.T], axis=-1)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": relu,
    "elu": elu,
    "none": lambda x: x,
}
# Kaiming-uniform bounds are gain * sqrt(3 / fan_in); an output layer counts as relu, as in LoCA2.
GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "elu": math.sqrt(2), "none": math.sqrt(2)}


def finish(product: Array, bias: Array, activation: str) -> Array:
    """Bias and activation, in the product's dtype; without an activation, in float32.

    That is an outcome: were it rounded, many equal pixels would all miss by the same.
    """
    found = product.astype(jnp.float32) + bias
    return found if activation == "none" else ACTIVATIONS[activation](found.astype(product.dtype))


def slope_of(activation: str, y: Array) -> Array | float:
    """The slope of an activation, told by its outcome."""
    if activation == "none":
        return 1.0
    if activation == "tanh":
        return 1 - y**2
    return jnp.where(y > 0, 1, y + 1 if activation == "elu" else 0)


def widen(x: Array, *axes: int, to: int = ALIGNED) -> Array:
    """With 0s up to a multiple of `ALIGNED`, or another number, along these axes."""
    margins = [(0, -n % to if axis in axes else 0) for axis, n in enumerate(x.shape)]
    return jnp.pad(x, margins) if any(after for _, after in margins) else x


class Network(Protocol):
    """Anything that turns an input into an output through parameters."""

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]: ...

    def apply(self, params: Tree, x: Array) -> Array: ...


def draw_layer(
    key: Key, shape: Shape, fan_in: int, activation: str, initialisation: str
) -> dict[str, Array]:
    """Draws one layer's weight and bias; the bias has the weight's last axis."""
    key_weight, key_bias = jax.random.split(key)
    if initialisation == "torch":  # PyTorch's default: weight and bias uniform in ±1/sqrt(fan_in)
        bound = 1 / math.sqrt(fan_in)
        bias = jax.random.uniform(key_bias, shape[-1:], minval=-bound, maxval=bound)
    elif initialisation == "glorot":  # Keras' default: a kernel's pixels count in both fans
        bound = math.sqrt(6 / (math.prod(shape[:-2]) * sum(shape[-2:])))
        bias = jnp.zeros(shape[-1:])
    else:
        bound = GAINS[activation] * math.sqrt(3 / fan_in)
        bias = jnp.zeros(shape[-1:])
    return {
        "weight": jax.random.uniform(key_weight, shape, minval=-bound, maxval=bound),
        "bias": bias,
    }


@dataclass(frozen=True)
class MLP:
    """Dense layers, each followed by the activation; no sizes at all is the identity."""

    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    initialisation: Initialisation = "kaiming"

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        if not self.sizes:
            return (), input_shape
        if len(input_shape) != 1:
            raise ValueError(f"an MLP wants a vector, got shape {input_shape}; flatten it first")
        fans = (*input_shape, *self.sizes)
        layers = [
            draw_layer(k, (fan_in, fan_out), fan_in, self.activation, self.initialisation)
            for k, fan_in, fan_out in zip(
                jax.random.split(key, len(self.sizes)), fans[:-1], fans[1:], strict=True
            )
        ]
        return tuple(layers), (self.sizes[-1],)

    def apply(self, params: Tree, x: Array) -> Array:
        for layer in params:
            x = finish(times(x, layer["weight"]), layer["bias"], self.activation)
        return x


def linear(size: int, initialisation: Initialisation = "kaiming") -> MLP:
    """A last layer: no activation."""
    return MLP((size,), "none", initialisation)


@dataclass(frozen=True)
class Rescale:
    """Maps the box [low, high] onto ±1, so that every number of a state counts alike."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        del key
        return (), input_shape

    def apply(self, params: Tree, x: Array) -> Array:
        del params
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        return (2 * x - low - high) / (high - low)


@dataclass(frozen=True)
class Chain:
    """One network after another."""

    parts: tuple[Network, ...] = field(default=())

    def init(self, key: Key, input_shape: Shape) -> tuple[Tree, Shape]:
        all_params = []
        for k, part in zip(jax.random.split(key, len(self.parts) or 1), self.parts, strict=False):
            params, input_shape = part.init(k, input_shape)
            all_params.append(params)
        return tuple(all_params), input_shape

    def apply(self, params: Tree, x: Array) -> Array:
        for part, part_params in zip(self.parts, params, strict=True):
            x = part.apply(part_params, x)
        return x


IDENTITY = Chain()
