"""The way back of a dream on a GPU: seven kernels a step, two of our own.

What the layers of all steps gave is made again by four products, for all steps at once. Whatever
slopes are multiplied with follows from it where it is asked for, and is never written down. Kernels
read the arrays of all steps by a step's number, in the order in which products write them: where
several runs lie side by side, nothing is turned round.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks.blocks import ACTIVATIONS, slope_of, times
from lofo_rl.networks.gru import NORM_EPSILON, NUM_GATES, act_on, advance
from lofo_rl.networks.recurrence import Layer, Layers, in_a_row, trace_back
from lofo_rl.networks.slides import padded
from lofo_rl.networks.sliding_kernels import dot
from lofo_rl.networks.states import RSSMState
from lofo_rl.networks.watching import is_usual
from lofo_rl.networks.watching_back import pull_back, together, when_back
from lofo_rl.types import Array

if TYPE_CHECKING:
    from lofo_rl.networks.rssm import RSSM

NUM_ROWS = 64  # that a program takes of a variable
NUM_WARPS = 4


class Seen(NamedTuple):
    """What layers gave in all steps [T, M, ...], as products write it and read it."""

    state: Array  # [T, M, deterministic_size], float32, that a step began with
    driven: Array  # [T, M, hidden_size], activated
    gates: Array  # [T, M, 3 · deterministic_size], without their bias
    hidden: Array  # [T, M, hidden_size], of the prior, activated
    raw: Array  # [T, M, latent.size], without their bias


def suits(model: "RSSM", layers: Layers, features: Array) -> bool:
    """Whether these kernels are for such a model, on this device."""
    return (
        model.own_dreams
        and is_usual(model, layers)
        and features.dtype == jnp.bfloat16
        and features.ndim == 3
    )


def blame(
    model: "RSSM", params: Layers, state: Array, features: Array, given: tuple[Array, Array],
    slopes: Array,
) -> Array:  # fmt: skip
    """The slopes of actions [T, M, size]; the steps of a dream were given them, and noise.

    Steps began with states [T, M, size]; all features [T + 1, M, size] have slopes of their own.
    """
    layers, (actions, noise) = model.apart(params), given
    parts, pull_back = jax.vjp(partial(act_on, layers), actions)
    if suits(model, layers, features):
        return pull_back(trace(model, layers, state, features, parts, slopes))[0]
    both = features[:-1].astype(jnp.float32), slopes[1:].astype(jnp.float32)
    before, own = (RSSMState.of(x, model.latent.size) for x in both)
    before = before._replace(deterministic=state)
    of_parts, _ = trace_back(model.imagine_step, layers, before, (parts, noise), own)
    return pull_back(of_parts)[0]


def trace(
    model: "RSSM", layers: Layers, state: Array, features: Array, parts: Array, slopes: Array,
    interpret: bool = False,
) -> Array:  # fmt: skip
    """The slopes [T, M, hidden_size] of what actions add to the input layer, by these kernels."""
    seen = _see_again(model, layers, state, features, parts)
    num_steps, num_rows, size = state.shape
    steps = in_a_row(num_steps)
    of_input, of_state = jnp.split(layers["gates"]["weight"], [model.hidden_size])
    passed = jnp.concatenate([of_state, layers["prior"]["weight"]], axis=1)

    def pull(weight: Array, parts: Array, outcome: Array) -> Array:
        """The slope by what was activated to an outcome, which a layer was then applied to."""
        first, *rest = pull_back(weight, parts)
        slope = sum(rest, first) * slope_of(model.activation, outcome)
        return slope.astype(features.dtype)

    def step(now: tuple[Array, ...], turn: Array, k: int) -> tuple[Array, ...]:
        state, driven, gates = now
        at, number = turn[None], num_steps - 1 - (turn * steps + k)
        when = partial(when_back, num_steps - 1 - k, steps)
        logits = _latent(model, layers, driven, seen.raw, slopes, at, when, interpret)
        hidden = pull(layers["prior_out"]["weight"], logits, seen.hidden[number])
        both = jnp.concatenate([gates, hidden[None]])
        given = pull_back(passed, both), state
        state, gates = _state(layers, seen, *given, slopes, at, when, interpret)
        return state, pull(of_input, gates, seen.driven[number]), gates

    def walk(carry: tuple[Array, Any], _: None) -> tuple[Any, Any]:
        turn, now = carry
        found = []
        for k in range(steps):
            now = step(now, turn, k)
            found.append(now[1])
        return (turn + 1, now), jnp.stack(found)

    nothing = (
        jnp.zeros((num_rows, size)),
        jnp.zeros((num_rows, model.hidden_size), features.dtype),
        jnp.zeros((NUM_GATES, num_rows, size), features.dtype),
    )
    start = jnp.zeros((), jnp.int32), nothing
    _, found = jax.lax.scan(walk, start, length=num_steps // steps)
    return found.reshape(num_steps, *found.shape[2:])[::-1].astype(jnp.float32)


def _see_again(model: "RSSM", layers: Layers, state: Array, features: Array, parts: Array) -> Seen:
    """The outcomes of all layers of `RSSM.imagine_step`, rounded as there."""
    activate = ACTIVATIONS[model.activation]

    def finish(product: Array, rest: Array) -> Array:
        return activate(product.astype(jnp.float32) + rest).astype(features.dtype)

    latent, after = features[:-1, :, : model.latent.size], features[1:, :, model.latent.size :]
    driven = finish(times(latent, layers["input"]["weight"]), parts)
    joined = jnp.concatenate([driven, state.astype(features.dtype)], axis=-1)
    gates = times(joined, layers["gates"]["weight"])
    hidden = finish(times(after, layers["prior"]["weight"]), layers["prior"]["bias"])
    return Seen(state, driven, gates, hidden, times(hidden, layers["prior_out"]["weight"]))


def _latent(
    model: "RSSM", layers: Layers, driven: Array, raw: Array, slopes: Array, turn: Array,
    when: Any, interpret: bool,
) -> Array:  # fmt: skip
    """The slope of the logits [parts, M, depth], by the next step's input layer and its own."""
    num_rows, size = driven.shape
    latent: Any = model.latent
    depth = together(latent.num_variables, latent.num_classes)
    sizes = num_rows, size, latent.num_classes, raw.shape[-1], slopes.shape[-1], depth
    weight, bias = layers["input"]["weight"], layers["prior_out"]["bias"]
    found: Array = pl.pallas_call(
        partial(_latent_kernel, sizes, when),
        grid=(pl.cdiv(num_rows, NUM_ROWS), latent.num_variables),
        out_shape=jax.ShapeDtypeStruct((num_rows * raw.shape[-1],), driven.dtype),
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="latent_blame",
    )(*(x.reshape(-1) for x in (weight, bias, driven, raw, slopes, turn)))
    return found.reshape(-1, num_rows, depth)


def _latent_kernel(
    sizes: tuple[int, ...], when: Any, weight: Any, bias: Any, driven: Any, raw: Any, slopes: Any,
    turn: Any, found: Any,
) -> None:  # fmt: skip
    """Some rows, one variable."""
    num_rows, size, num_classes, width, feature_size, depth_of_part = sizes
    rows = pl.program_id(0) * NUM_ROWS + jnp.arange(NUM_ROWS)
    depth = jnp.arange(padded(size))
    columns = pl.program_id(1) * num_classes + jnp.arange(num_classes)
    is_row, is_deep = (rows < num_rows)[:, None], depth < size
    at = rows[:, None] * size + depth[None, :]
    slope = plt.load(driven.at[at], mask=is_row & is_deep[None, :], other=0.0)
    at = columns[None, :] * size + depth[:, None]
    product = dot(slope, plt.load(weight.at[at], mask=is_deep[:, None], other=0.0))
    in_all = (when(turn) * num_rows + rows)[:, None]
    load = partial(plt.load, mask=is_row, other=0.0)
    logits = load(raw.at[in_all * width + columns[None, :]]).astype(jnp.float32)
    logits += bias[columns][None, :]
    shares = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
    shares = shares / jnp.sum(shares, axis=1)[:, None]
    own = load(slopes.at[(in_all + num_rows) * feature_size + columns[None, :]])  # behind the step
    pulls = shares * (product + own.astype(jnp.float32))
    pulls = pulls - shares * jnp.sum(pulls, axis=1)[:, None]
    part, column = jax.lax.div(columns, depth_of_part), jax.lax.rem(columns, depth_of_part)
    at = (part[None, :] * num_rows + rows[:, None]) * depth_of_part + column[None, :]
    plt.store(found.at[at], pulls.astype(found.dtype), mask=is_row)


def _state(
    layers: Layers, seen: Seen, passed: Array, state: Array, slopes: Array, turn: Array, when: Any,
    interpret: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """The slopes of the state and of the gates that a step began with."""
    num_rows, size = state.shape
    biases = layers["gates"]["bias"], *_norm(layers["norm"])
    given = passed, state, seen.state, seen.gates, slopes, turn, *biases
    shapes = (state.size, state.dtype), (NUM_GATES * state.size, seen.gates.dtype)
    found = pl.pallas_call(
        partial(_state_kernel, len(passed), num_rows, size, slopes.shape[-1], when),
        grid=(num_rows,),
        out_shape=[jax.ShapeDtypeStruct((num,), kind) for num, kind in shapes],
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="state_blame",
    )(*(x.reshape(-1) for x in given))
    return found[0].reshape(num_rows, size), found[1].reshape(NUM_GATES, num_rows, size)


def _norm(layer: Layer) -> tuple[Array, Array]:
    return layer["weight"], layer["bias"]


def _state_kernel(
    num_parts: int, num_rows: int, size: int, feature_size: int, when: Any, passed: Any, state: Any,
    before: Any, gates: Any, slopes: Any, turn: Any, bias: Any, scale: Any, shift: Any, found: Any,
    of_gates: Any,
) -> None:  # fmt: skip
    """One row: `gru.keep` and its way back."""
    row = pl.program_id(0)
    in_all = when(turn) * num_rows + row
    at = jnp.arange(padded(size))
    load = partial(plt.load, mask=at < size, other=0.0)
    own = load(slopes.at[(in_all + num_rows + 1) * feature_size - size + at])  # the last numbers
    slope = load(state.at[row * size + at]) + own.astype(jnp.float32)
    for k in range(num_parts):
        slope += load(passed.at[(k * num_rows + row) * size + at])
    each = range(NUM_GATES)
    parts = [load(gates.at[(in_all * NUM_GATES + k) * size + at]).astype(jnp.float32) for k in each]
    factors, normed, given = standardise_row(parts, size, (bias, scale, shift))
    _, pull_back = jax.vjp(advance, *given, load(before.at[in_all * size + at]))
    *by_given, share = pull_back(slope)
    by_gates = [x * factor for x, factor in zip(by_given, factors, strict=True)]
    mean = sum(jnp.sum(x) for x in by_gates) / (NUM_GATES * size)
    along = [jnp.sum(x * y) for x, y in zip(by_gates, normed, strict=True)]
    plt.store(found.at[row * size + at], share, mask=at < size)
    for k in each:
        part = by_gates[k] - mean - normed[k] * (sum(along) / (NUM_GATES * size))
        here = of_gates.at[(k * num_rows + row) * size + at]
        plt.store(here, part.astype(of_gates.dtype), mask=at < size)


def standardise_row(
    parts: list[Array], size: int, learnt: tuple[Any, ...]
) -> tuple[list[Array], list[Array], list[Array]]:
    """A row's gates behind bias and norm: their slopes by the gates, standardised, and scaled.

    Numbers are 0 where a part, filled up to a power of two, has none.
    """
    at = jnp.arange(padded(size))
    load = partial(plt.load, mask=at < size, other=0.0)
    bias, scale, shift = ([load(x.at[k * size + at]) for k in range(NUM_GATES)] for x in learnt)
    parts = [part + own for part, own in zip(parts, bias, strict=True)]
    first, second, third = parts
    mean = jnp.sum(first + second + third) / (NUM_GATES * size)
    square = jnp.sum(first * first + second * second + third * third) / (NUM_GATES * size)
    factor = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + NORM_EPSILON)
    normed = [(part - mean) * factor for part in parts]
    given = [x * own + rest for x, own, rest in zip(normed, scale, shift, strict=True)]
    return [own * factor for own in scale], normed, given
