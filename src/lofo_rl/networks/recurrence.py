"""A scan whose loops keep states and slopes, and nothing else.

A step of a recurrence is short, and a GPU spends it launching kernels. Differentiated as it stands,
a scan keeps in every step whatever its way back asks for, and adds up the gradients of its weights
step by step: each is one more kernel in every step. Here the loop forth keeps its states alone, or
codes of them, and the loop back the slopes of the states. From these all else follows for all steps
at once: the outputs, what the way back asks for, and the gradients of the weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from lofo_rl import devices
from lofo_rl.networks.blocks import ALIGNED, times
from lofo_rl.types import Array, Tree

Layer: TypeAlias = dict[str, Array]  # "weight", and "bias" where there is one
Layers: TypeAlias = dict[str, Layer]
Apply: TypeAlias = Callable[[Layer, Array], Array]
Step: TypeAlias = Callable[[Apply, Layers, Tree, Tree], tuple[Tree, Tree]]

MOST_IN_A_ROW = 10
DEPTH = 256  # numbers that a product of few rows adds up at a time, at most
FEW_ROWS = 64


class Walk(NamedTuple):
    """A step to be repeated, as gradients see it and as the loop forth takes it.

    step(apply, layers, state, input) gives the next state and an output. It takes any leading axes,
    applies layers by apply(layer, x), and closes over nothing that learns.
    """

    step: Step
    forth: Callable[[Layers, Tree, Tree], Tree]  # (layers, code, inputs) to the codes of all states
    decode: Callable[[Tree], Tree]  # a code's state
    # (layers, states before, inputs, outcomes of layers, slopes) to those of all states, or None
    back: Callable[[Layers, Tree, Tree, list[Array], Any], Tree | None] = lambda *given: None


def in_a_row(num_steps: int, most: int = MOST_IN_A_ROW) -> int:
    """How many steps each turn of a loop takes: a GPU then spends less on the turns."""
    if devices.is_cpu():  # there turns are cheap, and programs long to compile
        return 1
    return max(n for n in range(1, most + 1) if num_steps % n == 0)


def apply_layer(layer: Layer, x: Array) -> Array:
    """A layer's outcome in float32; products are made in the weight's own dtype."""
    weight = layer["weight"]
    x = times(x.astype(weight.dtype), weight).astype(jnp.float32)
    return x + layer["bias"] if "bias" in layer else x


def in_turn(step: Callable[[Tree, Tree], Tree], code: Tree, inputs: Tree) -> Tree:
    """The codes behind each step [T, ...], which makes one of the last and of an input."""

    def take(code: Tree, given: Tree) -> tuple[Tree, Tree]:
        code = step(code, given)
        return code, code

    steps = in_a_row(len(jax.tree.leaves(inputs)[0]))
    return jax.lax.scan(take, code, inputs, unroll=steps)[1]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(walk: Walk, layers: Layers, code: Tree, inputs: Tree) -> tuple[Tree, Tree]:
    """The states after each step and its outputs, [T, ...] like the inputs.

    `code` is that of the first state, to which no slope comes back.
    """
    return _forward(walk, layers, code, inputs)[0]


def _forward(walk: Walk, layers: Layers, code: Tree, inputs: Tree) -> tuple[Any, Any]:
    codes = walk.forth(layers, code, inputs)
    codes = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), code, codes)
    passed = walk.decode(codes)
    before = jax.tree.map(lambda x: x[:-1], passed)
    states = jax.tree.map(lambda x: x[1:], passed)
    _, outputs = walk.step(apply_layer, layers, before, inputs)
    return (states, outputs), (layers, before, inputs)


def _backward(walk: Walk, kept: Any, slopes: Any) -> tuple[Layers, None, Tree]:
    step, (layers, before, inputs) = walk.step, kept

    def whole(layers: Layers, inputs: Tree) -> tuple[Any, list[Array]]:
        return _whole(step, layers, before, inputs)

    def back(slope: Tree, given: Any) -> tuple[Tree, Tree]:
        way_back, (own, output) = given
        slope = jax.tree.map(jnp.add, slope, own)
        return way_back((slope, output))[0], slope

    _, pull_back, outcomes = jax.vjp(whole, layers, inputs, has_aux=True)
    all_slopes = walk.back(layers, before, inputs, outcomes, slopes)
    if all_slopes is None:
        ways_back = jax.vmap(partial(_way_back, step, layers))(before, inputs, outcomes)
        _, all_slopes = _run_back(back, slopes[0], (ways_back, slopes))
    of_layers, of_inputs = pull_back((all_slopes, slopes[1]))
    return of_layers, None, of_inputs


def trace_back(step: Step, layers: Layers, before: Tree, inputs: Tree, slopes: Tree) -> Tree:
    """The slopes of inputs, by those of the states [T, ...] that steps led to from `before`.

    For steps that were taken already, and layers that do not learn.
    """

    def states(*given: Any) -> tuple[Tree, tuple[()]]:
        return step(*given)[0], ()

    def back(slope: Tree, given: Any) -> tuple[Tree, Tree]:
        way_back, own = given
        found: tuple[Tree, Tree] = way_back((jax.tree.map(jnp.add, slope, own), ()))
        return found

    _, outcomes = _whole(step, layers, before, inputs)
    ways_back = jax.vmap(partial(_way_back, states, layers))(before, inputs, outcomes)
    return _run_back(back, slopes, (ways_back, slopes))[1]


def _run_back(back: Any, slopes: Tree, given: Any) -> tuple[Tree, Tree]:
    """A scan from the last step to the first, from behind which no slope comes."""
    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), slopes)
    steps = in_a_row(len(jax.tree.leaves(slopes)[0]))
    found: tuple[Tree, Tree] = jax.lax.scan(back, nothing, given, reverse=True, unroll=steps)
    return found


def _whole(step: Step, layers: Layers, before: Tree, inputs: Tree) -> tuple[Any, list[Array]]:
    """All steps at once, and the outcomes of their layers."""
    outcomes = []

    def apply(layer: Layer, x: Array) -> Array:
        outcomes.append(apply_layer(layer, x))
        return outcomes[-1]

    return step(apply, layers, before, inputs), outcomes


def _way_back(step: Step, layers: Layers, before: Tree, inputs: Tree, outcomes: Any) -> Any:
    """The slopes that pass one step back, as a function with all that is known ahead of them.

    That is a tree of arrays, so `vmap` finds it for all steps, and a loop has only slopes left to
    multiply. Weights are no part of it: every step would have its own.
    """
    known = iter(outcomes)

    def apply(layer: Layer, x: Array) -> Array:
        return _recall(partial(_pull_back, layer["weight"]), x, next(known))

    return jax.vjp(partial(step, apply, layers), before, inputs)[1]


unroll.defvjp(_forward, _backward)


def _pull_back(weight: Array, slope: Array) -> Array:
    """The slope of what a layer was applied to."""
    num_rows, size = slope.size // slope.shape[-1], slope.shape[-1]
    depth = max(n for n in range(1, DEPTH + 1) if size % n == 0)
    if size <= DEPTH or depth % ALIGNED or num_rows > FEW_ROWS:
        like = jax.ShapeDtypeStruct((*slope.shape[:-1], len(weight)), slope.dtype)
        product = partial(apply_layer, {"weight": weight})
        (found,) = jax.linear_transpose(product, like)(slope)
        return found
    # A deep product of few rows fills a GPU in parts only. Compilers make parts of it, too, but
    # fill them up with 0s first, and what adds theirs up is not joined to all that follows.
    wide = slope.astype(weight.dtype).reshape(*slope.shape[:-1], -1, depth)
    parts = weight.reshape(len(weight), -1, depth)
    each = jnp.einsum("...pd,ipd->p...i", wide, parts, preferred_element_type=jnp.float32)
    return sum(each[1:], each[0])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recall(pull_back: Callable[[Array], Array], x: Array, outcome: Array) -> Array:
    """A layer's outcome, known already; slopes pass to x."""
    del pull_back, x
    return outcome


_recall.defvjp(
    lambda pull_back, x, outcome: (outcome, None),
    lambda pull_back, kept, slope: (pull_back(slope), None),
)
