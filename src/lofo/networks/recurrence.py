"""A scan through layers that learn outside the loop.

Differentiated as it stands, a scan adds up the gradients of its weights step by step: a small
product and the sum of two whole matrices for every layer in every step. Here the backward loop only
carries slopes back through the outcomes of the layers; the gradient of a weight is then one product
over all steps.

Nor does a loop keep all that its way back asks for: `lean` keeps the outcomes of products, and what
follows from them is computed again. Every array kept is one more kernel in every step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from lofo.types import Array, Tree

Layers: TypeAlias = dict[str, dict[str, Array]]  # "weight", and "bias" where there is one
Apply: TypeAlias = Callable[[str, Array], Array]
Body: TypeAlias = Callable[[Apply, Tree, Tree], tuple[Tree, Tree]]

lean = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)


def apply_layer(layers: Layers, name: str, x: Array) -> Array:
    """A layer's outcome in float32; a weight that is a vector scales.

    Products are made in the weight's own dtype.
    """
    layer = layers[name]
    weight = layer["weight"]
    x = x * weight if weight.ndim == 1 else (x.astype(weight.dtype) @ weight).astype(jnp.float32)
    return x + layer["bias"] if "bias" in layer else x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(step: Body, layers: Layers, carry: Tree, inputs: Tree) -> tuple[Tree, Tree]:
    """`lax.scan` of step(apply, carry, input), where apply(name, x) is a layer's outcome.

    A step uses each layer once and closes over nothing that learns.
    """
    return jax.lax.scan(partial(step, partial(apply_layer, layers)), carry, inputs)


def _forward(step: Body, layers: Layers, carry: Tree, inputs: Tree) -> tuple[Any, Any]:
    def run(carry: Tree, inputs: Tree, marks: dict[str, Array]) -> tuple[Any, dict[str, Array]]:
        def body(carry: Tree, given: Any) -> tuple[Tree, Any]:
            seen = {}

            def apply(name: str, x: Array) -> Array:
                seen[name] = x
                return _mark(apply_layer(layers, name, x), given[1][name])

            carry, outputs = step(apply, carry, given[0])
            return carry, (outputs, seen)

        carry, (outputs, seen) = jax.lax.scan(lean(body), carry, (inputs, marks))
        return (carry, outputs), seen

    marks = _outcomes(step, layers, carry, inputs)
    results, pull_back, seen = jax.vjp(run, carry, inputs, marks, has_aux=True)
    return results, (layers, seen, pull_back)


def _backward(step: Body, kept: Any, slopes: Any) -> tuple[Layers, Tree, Tree]:
    del step
    layers, seen, pull_back = kept
    carry, inputs, marks = pull_back(slopes)
    learnt = {name: _gradient(layers[name], seen[name], marks[name]) for name in layers}
    return learnt, carry, inputs


unroll.defvjp(_forward, _backward)


@jax.custom_vjp
def _mark(outcome: Array, mark: Array) -> Array:
    """The outcome; the mark is never read, but gets the outcome's slope."""
    del mark
    return outcome


_mark.defvjp(lambda outcome, mark: (outcome, None), lambda _, slope: (slope, slope))


def _outcomes(step: Body, layers: Layers, carry: Tree, inputs: Tree) -> dict[str, Array]:
    """Zeros in the shape of every layer's outcome in every step."""

    def body(carry: Tree, given: Tree) -> tuple[Tree, Any]:
        outcomes = {}

        def apply(name: str, x: Array) -> Array:
            outcomes[name] = apply_layer(layers, name, x)
            return outcomes[name]

        return step(apply, carry, given)[0], outcomes

    shapes = jax.eval_shape(partial(jax.lax.scan, body), carry, inputs)[1]
    return {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}


def _gradient(layer: dict[str, Array], x: Array, slope: Array) -> dict[str, Array]:
    weight = layer["weight"]
    x, slope = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    if weight.ndim == 1:
        learnt = jnp.sum(x * slope, axis=0)
    else:
        learnt = (x.astype(weight.dtype).T @ slope.astype(weight.dtype)).astype(weight.dtype)
    return {"weight": learnt} | ({"bias": jnp.sum(slope, axis=0)} if "bias" in layer else {})
