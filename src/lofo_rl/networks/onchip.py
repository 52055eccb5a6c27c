"""Dense networks on a GPU: several gradient steps in one kernel.

Small networks starve a GPU: a gradient step is some forty kernels of a few microseconds, most of it
launching. Here one program takes one network through all its steps, and `vmap` runs many networks
side by side. The arithmetic is that of `jax.grad` and `optax.adam`; products use the tensor cores'
TF32, as XLA's own float32 products on such a GPU do by default.

A network is one vector of words, every layer padded to powers of two: one base address for all of
it, aligned rows, no masks. Padding is 0 and stays 0, for no gradient reaches it.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl import devices
from lofo_rl.networks.slides import padded
from lofo_rl.types import Array

TRAIN_WARPS, APPLY_WARPS = 8, 2  # measured: docs/benchmarks.md
CHUNK = 4096  # words that Adam takes at a time
ALIGNED = 16  # words
DECAY_MEAN, DECAY_SQUARE = 0.9, 0.999  # Adam's, as optax sets them

Layer = dict[str, Array]  # "weight" [fan_in, fan_out] and "bias" [fan_out]


def is_supported() -> bool:
    """Whether the device in use has the tensor cores that the kernels are written for."""
    capability = getattr(devices.in_use(), "compute_capability", "")
    return bool(re.fullmatch(r"\d+\.\d+", str(capability))) and float(capability) >= 8


class Adam(NamedTuple):
    """A network in training: its words, and what Adam remembers of them."""

    num_steps: Array  # [] int32, taken so far
    values: Array  # [words] float32
    mean: Array  # [words]
    square: Array  # [words]


class Lessons(NamedTuple):
    """What each of U steps on B samples learns from."""

    inputs: Array  # [U, B, first fan_in]
    joined: Array | None  # [U, B, J], for networks that something joins
    targets: Array  # [U, B, last fan_out]
    weights: Array  # [U, B, last fan_out] of each error
    is_logit: Array  # [] bool: outputs are logits under cross-entropy, else values under ½ error²


@dataclass(frozen=True)
class Dense:
    """Dense layers with tanh between them, as a kernel sees them."""

    fans: tuple[tuple[int, int], ...]  # (fan_in, fan_out) of each layer
    join: int | None = None  # the layer whose output is joined by further inputs
    interpret: bool = False  # run the kernel's meaning on any device, slowly

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Padded; a layer writes as many columns as the next one reads."""
        rows = [padded(fan_in) for fan_in, _ in self.fans]
        return tuple(zip(rows, [*rows[1:], padded(self.fans[-1][1])], strict=True))

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each layer's weight and bias begin."""
        sizes = [size for rows, columns in self.shapes for size in (rows * columns, columns)]
        ends = np.cumsum([0, *sizes]).tolist()
        return tuple(zip(ends[:-1:2], ends[1:-1:2], strict=True))

    @property
    def num_words(self) -> int:
        """Of the whole network."""
        return self.offsets[-1][1] + self.shapes[-1][1]

    def pack(self, layers: list[Layer]) -> Array:
        """The layers as one vector."""
        parts = []
        for layer, (rows, columns) in zip(layers, self.shapes, strict=True):
            fan_in, fan_out = layer["weight"].shape
            padding = (0, rows - fan_in), (0, columns - fan_out)
            parts.append(jnp.pad(layer["weight"], padding).ravel())
            parts.append(jnp.pad(layer["bias"], padding[1:]))
        return jnp.concatenate(parts)

    def unpack(self, words: Array) -> list[Layer]:
        """The layers of a vector."""
        layers = []
        for fans, shape, (start, middle) in zip(self.fans, self.shapes, self.offsets, strict=True):
            weight = words[start:middle].reshape(shape)[: fans[0], : fans[1]]
            layers.append({"weight": weight, "bias": words[middle : middle + fans[1]]})
        return layers

    def apply(self, words: Array, inputs: Array, joined: Array | None = None) -> Array:
        """The outputs [B, last fan_out] for inputs [B, first fan_in]."""
        data = [inputs] if joined is None else [inputs, joined]
        return pl.pallas_call(
            partial(_apply_kernel, self),
            out_shape=jax.ShapeDtypeStruct((len(inputs), self.fans[-1][1]), jnp.float32),
            name="dense_apply",
            **self._options(APPLY_WARPS),
        )(words, *data)

    def train(
        self, adam: Adam, lessons: Lessons, *, learning_rate: float, epsilon: float
    ) -> tuple[Adam, Array]:
        """Takes U steps of Adam, one after the other, and returns the loss [U] of each."""
        num_steps = len(lessons.inputs)
        counts = adam.num_steps + 1 + jnp.arange(num_steps)
        corrections = 1 / (1 - jnp.stack([DECAY_MEAN**counts, DECAY_SQUARE**counts], -1))
        is_logit = lessons.is_logit.astype(jnp.int32)[None]
        origins = jnp.zeros(num_steps, jnp.int32)
        data = [origins, corrections, is_logit, lessons.inputs, lessons.targets, lessons.weights]
        data += [] if lessons.joined is None else [lessons.joined]
        state = adam[1:]
        *state, losses, _ = pl.pallas_call(
            partial(_train_kernel, self, learning_rate, epsilon),
            out_shape=[
                *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in state),
                jax.ShapeDtypeStruct((num_steps,), jnp.float32),
                jax.ShapeDtypeStruct(adam.values.shape, jnp.float32),  # room for the gradient
            ],
            input_output_aliases={i: i for i in range(len(state))},
            name="dense_train",
            **self._options(TRAIN_WARPS),
        )(*state, *data)
        return Adam(adam.num_steps + num_steps, *state), losses

    def synchronise(self) -> None:
        """Lets no thread of a program go on before all have come so far."""
        if not self.interpret:  # which has one thread
            plt.debug_barrier()

    def _options(self, num_warps: int) -> dict[str, Any]:
        parameters = plt.CompilerParams(num_warps=num_warps, num_stages=1)
        return {"compiler_params": parameters, "interpret": self.interpret}


def _apply_kernel(net: Dense, words: Any, inputs: Any, *rest: Any) -> None:
    extra = None if net.join is None else _read_joined(net, rest[0])
    outputs, _ = _forward(net, words, _read_data(inputs), extra, 0)
    num_rows, num_columns = rest[-1].shape
    rows, columns = _grid(outputs.shape)
    inside = (rows < num_rows) & (columns < num_columns)
    plt.store(rest[-1].at[rows, columns], outputs, mask=inside)


def _train_kernel(
    net: Dense, learning_rate: float, epsilon: float,
    _values: Any, _mean: Any, _square: Any, origins: Any, corrections: Any, is_logit: Any,
    inputs: Any, targets: Any, weights: Any, *rest: Any,
) -> None:  # fmt: skip
    values, mean, square, losses, gradient = rest[-5:]  # the first three begin as the inputs
    num_steps, batch_size, _ = inputs.shape
    logit = is_logit[0] > 0

    def take_step(number: Array, carry: None) -> None:
        # Always 0, but only memory knows: else the compiler works out the hundred addresses of a
        # step ahead of the loop, and has no registers left to keep them in.
        origin = origins[number] * ALIGNED
        extra = None if net.join is None else _read_joined(net, rest[0], number)
        outputs, given = _forward(net, values, _read_data(inputs, number), extra, origin)
        target, weight = _read_data(targets, number), _read_data(weights, number) / batch_size
        error = jnp.where(logit, 1 / (1 + jnp.exp(-outputs)), outputs) - target
        softplus = jnp.maximum(outputs, 0.0) + jnp.log(1 + jnp.exp(-jnp.abs(outputs)))
        loss = jnp.where(logit, softplus - target * outputs, 0.5 * error * error)
        losses[number] = jnp.sum(jnp.sum(loss * weight, axis=1), axis=0)
        slope = error * weight
        ahead = _read(values, origin + net.offsets[-1][0], net.shapes[-1])
        for k in reversed(range(len(net.fans))):
            # Weights are asked for one layer ahead, so that they travel while products are made.
            weights_above = ahead
            weight_at, bias_at = (origin + offset for offset in net.offsets[k])
            if k > 1:
                ahead = _read(values, origin + net.offsets[k - 1][0], net.shapes[k - 1])
            gradient[_places(bias_at, slope.shape[1:])] = jnp.sum(slope, axis=0)
            gradient[_places(weight_at, net.shapes[k])] = _dot(given[k], slope, trans_a=True)
            if k:
                below = _dot(slope, weights_above, trans_b=True)
                slope = below * (1 - given[k] * given[k])
                if k - 1 == net.join:  # what joined came from outside: no layer learns from it
                    _, columns = _grid(slope.shape)
                    slope = jnp.where(columns < net.fans[k - 1][1], slope, 0.0)
        net.synchronise()
        scales = corrections[number, 0], corrections[number, 1]
        for start, size in _pieces(net.num_words):
            places = origin + start + jnp.arange(size)
            old = values[places], mean[places], square[places]
            new = descend(old, gradient[places], scales, learning_rate, epsilon)
            for ref, array in zip((values, mean, square), new, strict=True):
                ref[places] = array
        net.synchronise()  # the next step reads what other threads wrote

    jax.lax.fori_loop(0, num_steps, take_step, None)


def _pieces(num_words: int) -> list[tuple[int, int]]:
    """Start and size of the pieces Adam takes: powers of two, the largest first."""
    sizes = [CHUNK] * (num_words // CHUNK)
    rest = num_words % CHUNK
    sizes += [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]
    return list(zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True))


def descend(
    old: tuple[Array, Array, Array],
    gradient: Array,
    scales: tuple[Array, Array],
    learning_rate: float | Array,
    epsilon: float | Array,
) -> tuple[Array, Array, Array]:
    """One step of Adam on some words, their mean and their square."""
    value, mean, square = old
    mean = DECAY_MEAN * mean + (1 - DECAY_MEAN) * gradient
    square = DECAY_SQUARE * square + (1 - DECAY_SQUARE) * gradient * gradient
    change = mean * scales[0] / (jnp.sqrt(square * scales[1]) + epsilon)
    return value - learning_rate * change, mean, square


def _forward(
    net: Dense, words: Any, x: Array, extra: Array | None, origin: Array | int
) -> tuple[Array, list[Array]]:
    """The outputs, and what each layer was given."""
    places = list(zip(net.shapes, net.offsets, strict=True))
    biases = [_read(words, origin + bias_at, shape[1:]) for shape, (_, bias_at) in places]
    read = lambda k: _read(words, origin + net.offsets[k][0], net.shapes[k])  # noqa: E731
    given = []
    ahead = read(0)
    for k, bias in enumerate(biases):
        given.append(x)
        weight = ahead
        if k < len(biases) - 1:
            ahead = read(k + 1)
        x = _dot(x, weight) + bias[None, :]
        if k < len(biases) - 1:
            x = _tanh(x)
            x = x + extra if k == net.join and extra is not None else x
    return x, given


def _read(words: Any, offset: Array | int, shape: tuple[int, ...]) -> Array:
    """An array of the network."""
    return words[_places(offset, shape)]


def _places(offset: Array | int, shape: tuple[int, ...]) -> Array:
    if len(shape) == 1:
        return offset + jnp.arange(shape[0])
    rows, columns = _grid(shape)
    return offset + rows * shape[1] + columns


def _read_data(ref: Any, *first: Array) -> Array:
    """The array at the first indices, with zeros up to powers of two."""
    num_rows, num_columns = ref.shape[len(first) :]
    rows, columns = _grid((padded(num_rows), padded(num_columns)))
    inside = (rows < num_rows) & (columns < num_columns)
    return plt.load(ref.at[(*first, rows, columns)], mask=inside, other=0.0)


def _read_joined(net: Dense, ref: Any, *first: Array) -> Array:
    """What joins a layer's output, in the columns after it."""
    assert net.join is not None
    num_rows, num_columns = ref.shape[len(first) :]
    rows = jnp.arange(padded(num_rows))
    _, columns = _grid((1, net.shapes[net.join][1]))
    extra = jnp.zeros((1, net.shapes[net.join][1]), jnp.float32)
    for j in range(num_columns):
        column = plt.load(ref.at[(*first, rows, j)], mask=rows < num_rows, other=0.0)
        extra = jnp.where(columns == net.fans[net.join][1] + j, column[:, None], extra)
    return extra


def _grid(shape: tuple[int, ...]) -> tuple[Array, Array]:
    return jnp.arange(shape[0])[:, None], jnp.arange(shape[1])[None, :]


def _dot(a: Array, b: Array, *, trans_a: bool = False, trans_b: bool = False) -> Array:
    contracted = ((0 if trans_a else 1,), (1 if trans_b else 0,))
    return jax.lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _tanh(x: Array) -> Array:
    """Without the branches of the library's: within 1e-7 of it."""
    decay = jnp.exp(-2 * jnp.abs(x))
    return jnp.where(x < 0, -1.0, 1.0) * (1 - decay) / (1 + decay)
