"""The way back of `watching`: seven kernels a step, two of our own.

All that slopes are multiplied with is known ahead of the loop. What is left of a step is a chain of
three products, and two sums over a row or a few of its numbers that the products wait for: those
over a variable's classes (`_latent_kernel`, with the product ahead of it), and those over a state
(`_state_kernel`).
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks.blocks import ACTIVATIONS
from lofo_rl.networks.distributions import Statistics
from lofo_rl.networks.gru import NUM_GATES, Kept, keep
from lofo_rl.networks.recurrence import DEPTH, Layers, in_a_row
from lofo_rl.networks.slides import padded
from lofo_rl.networks.sliding_kernels import dot
from lofo_rl.types import Array

if TYPE_CHECKING:
    from lofo_rl.networks.rssm import RSSM
    from lofo_rl.networks.states import Given, Passed

NUM_ROWS = 16  # that a program takes of a variable, as many as tensor cores take
NUM_WARPS = 4


class Known(NamedTuple):
    """What the slopes of all steps [T, B, ...] are multiplied with."""

    by_driven: Array  # [T, B, hidden_size]
    gate: Kept  # [T, B, ...]
    by_hidden: Array  # [T, B, hidden_size], of the posterior
    shares: Array  # [T, B, variables, classes]


def know(
    model: "RSSM", layers: Layers, before: "Passed", given: "Given", outcomes: list[Array]
) -> Known:
    """By the outcomes of the layers of `RSSM._observe_step`, in its order."""
    read, gates, passed, raw = outcomes
    is_first = given.is_first[..., None]
    _, by_driven = _activate(model, read + given.action)  # where an episode begins, times 0 later
    gates = gates + jnp.where(is_first, 0.0, before.gates)
    state = jnp.where(is_first, 0.0, before.deterministic)
    logits: Statistics = model.latent.statistics(raw)
    of_posterior = passed[..., NUM_GATES * model.deterministic_size :]
    _, by_hidden = _activate(model, of_posterior + given.embedding)
    known = keep(gates, layers["norm"], state)[1]
    return Known(by_driven, known, by_hidden, jax.nn.softmax(logits))


def _activate(model: "RSSM", x: Array) -> tuple[Array, Array]:
    """The outcome, and its slope by x."""
    return jax.jvp(ACTIVATIONS[model.activation], (x,), (jnp.ones_like(x),))


def watch_back(
    layers: Layers, given: "Given", known: Known, own: "Passed", of_raw: Array,
    interpret: bool = False,
) -> "Passed":  # fmt: skip
    """The slopes of the states behind all steps, by those of their own and of the logits.

    Nobody else reads what states pass on to gates, so it has no slope of its own.
    """
    num_steps, num_rows = given.is_first.shape
    steps = in_a_row(num_steps)
    dtype = layers["gates"]["weight"].dtype
    is_first = given.is_first.astype(jnp.int32)

    def step(now: tuple[Array, ...], turn: Array, k: int) -> tuple[Any, Any]:
        state, driven, gates = now
        at, number = turn[None], num_steps - 1 - (turn * steps + k)
        when = partial(when_back, num_steps - 1 - k, steps)
        latent, logits = _latent(
            layers["input"]["weight"], driven, known.shares, own.latent, of_raw, at, when, interpret
        )
        parts = pull_back(layers["posterior_out"]["weight"], logits)
        hidden = (known.by_hidden[number] * sum(parts[1:], parts[0])).astype(dtype)
        parts = pull_back(layers["passed"]["weight"], jnp.concatenate([gates, hidden[None]]))
        found = _state(
            parts, state, own.deterministic, known.gate, is_first, at, dtype, when, interpret
        )
        parts = pull_back(layers["gates"]["weight"], found[1])
        driven = (known.by_driven[number] * sum(parts[1:], parts[0])).astype(dtype)
        return (found[0], driven, found[1]), (state, latent, gates)

    def walk(carry: tuple[Array, Any], _: None) -> tuple[Any, Any]:
        turn, now = carry
        found = []
        for k in range(steps):
            now, slopes = step(now, turn, k)
            found.append(slopes)
        return (turn + 1, now), tuple(jnp.stack(x) for x in zip(*found, strict=True))

    nothing = (
        jnp.zeros((num_rows, own.deterministic.shape[-1])),
        jnp.zeros((num_rows, known.by_driven.shape[-1]), dtype),
        jnp.zeros((NUM_GATES, num_rows, own.deterministic.shape[-1]), dtype),
    )
    start = jnp.zeros((), jnp.int32), nothing
    _, found = jax.lax.scan(walk, start, length=num_steps // steps)
    found = (x.reshape(num_steps, *x.shape[2:])[::-1].astype(jnp.float32) for x in found)
    deterministic, latent, gates = found
    gates = jnp.moveaxis(gates, 1, 2).reshape(own.gates.shape)
    return own._replace(
        deterministic=deterministic + own.deterministic, latent=latent + own.latent, gates=gates
    )


def pull_back(weight: Array, parts: Array) -> Array:
    """Summands [parts, B, inputs] of the slope by what a layer was applied to.

    The slope of its outcome comes in parts [parts, B, depth], too, which kernels of our own write
    in this order: several runs side by side would else be turned round for it.
    """
    weight = weight.reshape(len(weight), len(parts), -1)
    return jnp.einsum("pbd,ipd->pbi", parts, weight, preferred_element_type=jnp.float32)


def when_back(last: int, steps: int, turn: Any) -> Array:
    """The number of a step, of which there are `steps` a turn, from the last to the first."""
    return last - turn[0] * steps


def together(num_variables: int, num_classes: int) -> int:
    """Classes of as many variables as make one part of a product."""
    some = range(1, num_variables + 1)
    return num_classes * max(n for n in some if num_variables % n == 0 and n * num_classes <= DEPTH)


def _latent(
    weight: Array, driven: Array, shares: Array, own: Array, of_raw: Array, turn: Array,
    when: Any, interpret: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """What the next step's input layer adds to the latent's slope, and the slope of the logits."""
    (num_rows, size), (num_variables, num_classes) = driven.shape, shares.shape[2:]
    sizes = num_rows, size, num_variables, num_classes, together(num_variables, num_classes)
    like = jax.ShapeDtypeStruct((num_rows * num_variables * num_classes,), driven.dtype)
    found = pl.pallas_call(
        partial(_latent_kernel, sizes, when),
        grid=(pl.cdiv(num_rows, NUM_ROWS), num_variables),
        out_shape=[like, like],
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="latent_back",
    )(*(x.reshape(-1) for x in (weight, driven, shares, own, of_raw, turn)))
    return found[0].reshape(num_rows, -1), found[1].reshape(-1, num_rows, sizes[-1])


def _latent_kernel(
    sizes: tuple[int, ...], when: Any, weight: Any, driven: Any, shares: Any, own: Any, of_raw: Any,
    turn: Any, found: Any, logits: Any,
) -> None:  # fmt: skip
    """Some rows, one variable."""
    num_rows, size, num_variables, num_classes, depth_of_part = sizes
    rows = pl.program_id(0) * NUM_ROWS + jnp.arange(NUM_ROWS)
    depth = jnp.arange(padded(size))
    columns = pl.program_id(1) * num_classes + jnp.arange(num_classes)
    is_row, is_deep, width = (rows < num_rows)[:, None], depth < size, num_variables * num_classes
    at = rows[:, None] * size + depth[None, :]
    slopes = plt.load(driven.at[at], mask=is_row & is_deep[None, :], other=0.0)
    at = columns[None, :] * size + depth[:, None]
    product = dot(slopes, plt.load(weight.at[at], mask=is_deep[:, None], other=0.0))
    product = product.astype(found.dtype)
    at = (when(turn) * num_rows + rows)[:, None] * width + columns[None, :]
    load = partial(plt.load, mask=is_row, other=0.0)
    share = load(shares.at[at])
    pulls = share * (product.astype(jnp.float32) + load(own.at[at]))
    slope = pulls - share * jnp.sum(pulls, axis=1)[:, None] + load(of_raw.at[at])
    at = rows[:, None] * width + columns[None, :]
    plt.store(found.at[at], product, mask=is_row)
    part, column = jax.lax.div(columns, depth_of_part), jax.lax.rem(columns, depth_of_part)
    at = (part[None, :] * num_rows + rows[:, None]) * depth_of_part + column[None, :]
    plt.store(logits.at[at], slope.astype(logits.dtype), mask=is_row)


def _state(
    parts: Array, state: Array, own: Array, gate: Kept, is_first: Array, turn: Array, dtype: Any,
    when: Any, interpret: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """The slopes of the state and of the gates that a step began with."""
    num_rows, size = state.shape
    kept = gate.by_gates, gate.normed, *gate.means, gate.share
    given = parts, state, own, is_first, turn, *kept
    shapes = (state.size, state.dtype), (NUM_GATES * state.size, dtype)
    found = pl.pallas_call(
        partial(_state_kernel, len(parts), num_rows, size, when),
        grid=(num_rows,),
        out_shape=[jax.ShapeDtypeStruct((num,), kind) for num, kind in shapes],
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="state_back",
    )(*(x.reshape(-1) for x in given))
    return found[0].reshape(num_rows, size), found[1].reshape(NUM_GATES, num_rows, size)


def _state_kernel(
    num_parts: int, num_rows: int, size: int, when: Any, parts: Any, state: Any, own: Any,
    is_first: Any, turn: Any, by_gates: Any, normed: Any, by_mean: Any, by_along: Any, share: Any,
    found: Any, gates: Any,
) -> None:  # fmt: skip
    """One row."""
    row = pl.program_id(0)
    in_all = when(turn) * num_rows + row
    at = jnp.arange(padded(size))
    load = partial(plt.load, mask=at < size, other=0.0)
    slope = load(state.at[row * size + at]) + load(own.at[in_all * size + at])
    for k in range(num_parts):
        slope += load(parts.at[(k * num_rows + row) * size + at])
    mean, along = (jnp.sum(slope * load(by.at[in_all * size + at])) for by in (by_mean, by_along))
    goes_on = is_first[in_all] == 0
    before = jnp.where(goes_on, slope * load(share.at[in_all * size + at]), 0.0)
    plt.store(found.at[row * size + at], before, mask=at < size)
    for k in range(NUM_GATES):
        here = (in_all * NUM_GATES + k) * size + at
        each = slope * load(by_gates.at[here]) - mean - load(normed.at[here]) * along
        each = jnp.where(goes_on, each, 0.0).astype(gates.dtype)
        plt.store(gates.at[(k * num_rows + row) * size + at], each, mask=at < size)
