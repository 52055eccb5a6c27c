"""The loop of observing on a GPU, where nothing learns: five kernels a step, two of our own.

Rows are few there, and a step is a chain of small kernels that wait for each other. Two of ours
take the place of five of the compiler's: `_gate_kernel` standardises a row and advances it, where
the compiler must add the row up first; `_draw_kernel` activates, multiplies and draws, so that
neither what is activated nor the logits are written down.

Kernels read from arrays of all steps by the step's number: cut out for them, what a step is given
would be a kernel more each.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks import onchip
from lofo_rl.networks.blocks import ACTIVATIONS, times
from lofo_rl.networks.distributions import Discrete
from lofo_rl.networks.gru import NORM_EPSILON, NUM_GATES, advance
from lofo_rl.networks.recurrence import Layer, Layers, in_a_row
from lofo_rl.networks.slides import padded
from lofo_rl.networks.sliding_kernels import dot
from lofo_rl.types import Array

if TYPE_CHECKING:
    from lofo_rl.networks.rssm import RSSM
    from lofo_rl.networks.states import Given, Passed

FEWEST_CLASSES, MOST_CLASSES = 16, 64  # that tensor cores take, and a program well
NUM_ROWS = 16  # that a program draws for, as many as tensor cores take
MOST_ROWS = 256  # beyond which the compiler's own kernels have enough to do
GATE_WARPS, DRAW_WARPS = 4, 4


def suits(model: "RSSM", layers: Layers, given: "Given") -> bool:
    """Whether these kernels are for such a model, on this device."""
    return (
        model.own_kernels
        and is_usual(model, layers)
        and given.is_first.ndim == 2
        and given.is_first.shape[1] <= MOST_ROWS
    )


def is_usual(model: "RSSM", layers: Layers) -> bool:
    """Whether our kernels know such a model and this device, be it to observe or to dream."""
    latent = model.latent
    return (
        isinstance(latent, Discrete)
        and latent.num_classes == padded(latent.num_classes)
        and FEWEST_CLASSES <= latent.num_classes <= MOST_CLASSES
        and "norm" in layers
        and model.hidden_size == model.deterministic_size  # parts of one product
        and layers["gates"]["weight"].dtype == jnp.bfloat16
        and onchip.is_supported()
    )


def watch(
    model: "RSSM", layers: Layers, begun: "Passed", given: "Given", interpret: bool = False
) -> "Passed":
    """What `RSSM._observe_in_code` makes of all steps [T, B, ...] in turn, up to rounding.

    They begin with blank states, which add nothing to the gates.
    """
    num_steps, num_rows = given.is_first.shape
    steps = in_a_row(num_steps)
    dtype = layers["gates"]["weight"].dtype
    activate = ACTIVATIONS[model.activation]
    is_first = given.is_first.astype(jnp.int32)

    def step(now: tuple[Array, ...], turn: Array, k: int) -> tuple[Array, ...]:
        deterministic, code, passed = now
        at, number = turn[None], turn * steps + k
        read = model.latent.look_up(layers["input"]["weight"], code)
        driven = jnp.where(given.is_first[number][:, None], 0.0, read) + given.action[number]
        gates = times(activate(driven).astype(dtype), layers["gates"]["weight"])
        when = partial(_at, steps, k)
        deterministic, rounded = _gate(
            layers, gates, deterministic, passed, is_first, at, when, interpret
        )
        passed = times(rounded, layers["passed"]["weight"])
        code = _draw(
            model,
            layers["posterior_out"],
            passed,
            given.embedding,
            given.noise,
            at,
            when,
            interpret,
        )
        return deterministic, code, passed

    def walk(carry: tuple[Array, Any], _: None) -> tuple[Any, Any]:
        turn, now = carry
        found = []
        for k in range(steps):
            now = step(now, turn, k)
            found.append(now)
        return (turn + 1, now), tuple(jnp.stack(x) for x in zip(*found, strict=True))

    size = layers["passed"]["weight"].shape[1]
    first = begun.deterministic, begun.latent, jnp.zeros((num_rows, size), dtype)
    start = jnp.zeros((), jnp.int32), first  # the turn is carried, or it would be cut out, too
    _, found = jax.lax.scan(walk, start, length=num_steps // steps)
    deterministic, code, passed = (x.reshape(num_steps, *x.shape[2:]) for x in found)
    gates = passed[..., : NUM_GATES * model.deterministic_size].astype(jnp.float32)
    return begun._replace(deterministic=deterministic, latent=code, gates=gates)


def _at(steps: int, k: int, turn: Any) -> Array:
    """The number of a turn's k-th step."""
    return turn[0] * steps + k


def _gate(
    layers: Layers, gates: Array, before: Array, passed: Array, is_first: Array, turn: Array,
    when: Any, interpret: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """The next state, in float32 and as the next product reads it."""
    num_rows, size = before.shape
    given = gates, before, passed, is_first, turn, layers["gates"]["bias"], *_norm(layers["norm"])
    found = pl.pallas_call(
        partial(_gate_kernel, size, num_rows, passed.shape[1], when),
        grid=(num_rows,),
        out_shape=[jax.ShapeDtypeStruct((before.size,), x.dtype) for x in (before, gates)],
        compiler_params=plt.CompilerParams(num_warps=GATE_WARPS, num_stages=1),
        interpret=interpret,
        name="gate",
    )(*(x.reshape(-1) for x in given))
    deterministic, rounded = (x.reshape(num_rows, size) for x in found)
    return deterministic, rounded


def _norm(layer: Layer) -> tuple[Array, Array]:
    return layer["weight"], layer["bias"]


def _gate_kernel(
    size: int, num_rows: int, width: int, when: Any, gates: Any, before: Any, passed: Any,
    is_first: Any, turn: Any, bias: Any, scale: Any, shift: Any, found: Any, rounded: Any,
) -> None:  # fmt: skip
    """One row: its gates side by side are `size` numbers each, and as many of its `passed`."""
    row = pl.program_id(0)
    at = jnp.arange(padded(size))
    inside = at < size
    load = partial(plt.load, mask=inside, other=0.0)
    begins = is_first[when(turn) * num_rows + row] > 0
    parts = []
    for k in range(NUM_GATES):
        own = load(gates.at[(row * NUM_GATES + k) * size + at]).astype(jnp.float32)
        own += load(bias.at[k * size + at])
        from_state = load(passed.at[row * width + k * size + at]).astype(jnp.float32)
        parts.append(own + jnp.where(begins, 0.0, from_state))
    first, second, third = parts
    mean = jnp.sum(first + second + third) / (NUM_GATES * size)
    square = jnp.sum(first * first + second * second + third * third) / (NUM_GATES * size)
    factor = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + NORM_EPSILON)
    reset, candidate, update = (
        (x - mean) * factor * load(scale.at[k * size + at]) + load(shift.at[k * size + at])
        for k, x in enumerate(parts)
    )
    state = jnp.where(begins, 0.0, load(before.at[row * size + at]))
    state = advance(reset, candidate, update, state)
    plt.store(found.at[row * size + at], state, mask=inside)
    plt.store(rounded.at[row * size + at], state.astype(rounded.dtype), mask=inside)


def _draw(
    model: "RSSM", layer: Layer, passed: Array, embedding: Array, noise: Array, turn: Array,
    when: Any, interpret: bool,
) -> Array:  # fmt: skip
    """The classes [B, variables] drawn from the posterior."""
    num_rows, (num_variables, num_classes) = len(passed), noise.shape[2:]
    sizes = num_rows, model.hidden_size, passed.shape[1], num_variables, num_classes
    found: Array = pl.pallas_call(
        partial(_draw_kernel, sizes, model.activation, when),
        grid=(pl.cdiv(num_rows, NUM_ROWS), num_variables),
        out_shape=jax.ShapeDtypeStruct((num_rows * num_variables,), jnp.int32),
        compiler_params=plt.CompilerParams(num_warps=DRAW_WARPS, num_stages=1),
        interpret=interpret,
        name="draw",
    )(*(x.reshape(-1) for x in (passed, embedding, noise, turn, layer["weight"], layer["bias"])))
    return found.reshape(num_rows, num_variables)


def _draw_kernel(
    sizes: tuple[int, ...], activation: str, when: Any, passed: Any, embedding: Any, noise: Any,
    turn: Any, weight: Any, bias: Any, found: Any,
) -> None:  # fmt: skip
    """Some rows, one variable; the last `hidden_size` numbers of `passed` are the posterior's."""
    num_rows, hidden_size, width, num_variables, num_classes = sizes
    variable = pl.program_id(1)
    rows = pl.program_id(0) * NUM_ROWS + jnp.arange(NUM_ROWS)
    depth, classes = jnp.arange(padded(hidden_size)), jnp.arange(num_classes)
    is_row, is_deep = (rows < num_rows)[:, None], depth < hidden_size
    all_rows = when(turn) * num_rows + rows
    load = partial(plt.load, mask=is_row & is_deep[None, :], other=0.0)
    hidden = load(passed.at[rows[:, None] * width + width - hidden_size + depth[None, :]])
    seen = load(embedding.at[all_rows[:, None] * hidden_size + depth[None, :]])
    hidden = _activate(activation, hidden.astype(jnp.float32) + seen).astype(weight.dtype)
    columns = variable * num_classes + classes
    size = num_variables * num_classes
    at = depth[:, None] * size + columns[None, :]
    own = plt.load(weight.at[at], mask=is_deep[:, None], other=0.0)
    product = dot(hidden, own).astype(weight.dtype).astype(jnp.float32)  # rounded as elsewhere
    at = all_rows[:, None] * size + columns[None, :]
    lots = plt.load(noise.at[at], mask=is_row, other=0.0)
    drawn = jnp.argmax(product + bias[columns][None, :] + lots, axis=1)
    plt.store(found.at[rows * num_variables + variable], drawn.astype(jnp.int32), mask=is_row[:, 0])


def _activate(activation: str, x: Array) -> Array:
    """As `ACTIVATIONS`, in what Triton knows."""
    if activation != "elu":
        return ACTIVATIONS[activation](x)
    return jnp.where(x > 0, x, jnp.exp(x) - 1)
