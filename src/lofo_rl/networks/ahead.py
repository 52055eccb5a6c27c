"""Steps of the recurrent model by actions known beforehand, where nothing learns: a plan's.

A step is four small products in turn, and a GPU spends it launching kernels. So a product's kernel
does whatever it can: products are not rounded before a bias and an activation follow them, and
actions are numbers beside the latent. What all sequences share of their first step is made once.
A step then launches six kernels: the products, the GRU's gates, and the sample.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.networks.blocks import ACTIVATIONS, ALIGNED, MLP, widen
from lofo_rl.networks.distributions import Statistics
from lofo_rl.networks.gru import act_on, gate
from lofo_rl.networks.recurrence import Layer, Layers, apply_layer, in_a_row
from lofo_rl.types import Array

if TYPE_CHECKING:
    from lofo_rl.networks.rssm import RSSM

MOST_AHEAD = 12  # steps in a row where there is no way back: all of a plan
NUM_PARTS = 3  # of an action's number: of 8 digits each, they have all of float32
DEPTH = 64  # numbers that a turn of a product's loop takes, or fewer that divide them


class Departure(NamedTuple):
    """A first state [size], or many [..., size], and what it adds to the step behind it."""

    deterministic: Array  # [..., deterministic_size]
    driven: Array  # [..., hidden_size], to the input layer
    gates: Array  # [..., 3 · deterministic_size], to the GRU's gates


def lay_out(model: "RSSM", layers: Layers) -> Layers:
    """Layers that are `apart`, as `imagine_rows` wants them: few large products, of aligned rows.

    What a state adds to the gates of the next step and to the prior is one, "carried".
    """
    of_input, of_state = jnp.split(layers["gates"]["weight"], [model.hidden_size])
    action, prior, out = layers["action"], layers["prior"], layers["prior_out"]
    given = jnp.concatenate([layers["input"]["weight"], *[action["weight"]] * NUM_PARTS])
    carried = jnp.concatenate([of_state, prior["weight"]], axis=1)
    nothing = jnp.zeros_like(layers["gates"]["bias"])  # the gates' bias is no state's
    return layers | {
        "action": deepen(action, 1),
        "input": deepen({"weight": given, "bias": action["bias"]}, 0, 1),
        "gates": deepen({"weight": of_input, "bias": layers["gates"]["bias"]}, 0),
        "carried": {"weight": carried, "bias": jnp.concatenate([nothing, prior["bias"]])},
        "prior_out": {"weight": widen(out["weight"], 1), "bias": widen(out["bias"], 0)},
    }


def deepen(layer: Layer, *axes: int) -> Layer:
    """A layer with 0s: products of its inputs (0) or outcomes (1) take whole turns of their loops.

    A loop that ends within a turn masks what lies beyond, by ways that are longer than the rest.
    """
    bias = widen(layer["bias"], 0, to=DEPTH) if 1 in axes else layer["bias"]
    return {"weight": widen(layer["weight"], *axes, to=DEPTH), "bias": bias}


def read_rows(model: "RSSM", layers: Layers, weight: Array) -> Array:
    """A weight that reads features, as one that reads the rows of `imagine_rows`."""
    of_latent, of_state = jnp.split(weight, [model.latent.size])
    margin = _begin_of_state(model, layers) - model.latent.size  # the next action, not to be read
    return jnp.concatenate([jnp.pad(of_latent, ((0, margin), (0, 0))), of_state])


def split_rows(model: "RSSM", layers: Layers, rows: Array) -> tuple[Array, Array]:
    """The deterministic part and the latent of rows, in float32."""
    rows, begin = rows.astype(jnp.float32), _begin_of_state(model, layers)
    return rows[..., begin:][..., : model.deterministic_size], rows[..., : model.latent.size]


def _begin_of_state(model: "RSSM", layers: Layers) -> int:
    """Where in a row the deterministic part begins."""
    size = model.latent.size + NUM_PARTS * len(layers["action"]["weight"])
    return size + -size % ALIGNED


def depart(model: "RSSM", layers: Layers, deterministic: Array, stochastic: Array) -> Departure:
    """What steps from a state begin with."""
    latent = {"weight": layers["input"]["weight"][: model.latent.size]}
    gates, _ = _carry_on(model, layers, deterministic)
    return Departure(deterministic, apply_layer(latent, stochastic), gates)


def imagine_rows(
    model: "RSSM", layers: Layers, begun: Departure, actions: Array, noise: Array
) -> Array:
    """The states [T, ..., size] that actions [T, ..., action_size] lead to, as rows for products.

    A row is the latent, numbers that no one should read, and the deterministic part.
    """
    activate = ACTIVATIONS[model.activation]

    def advance(deterministic: Array, driven: Array, of_gates: Array) -> Array:
        gates = apply_layer(layers["gates"], activate(driven)) + of_gates
        return gate(layers, gates, deterministic)

    def join(latent: Array, deterministic: Array) -> Array:
        own = latent[..., : _begin_of_state(model, layers)]
        joined = jnp.concatenate([own, deterministic.astype(latent.dtype)], axis=-1)
        return widen(joined, joined.ndim - 1, to=DEPTH)

    def step(deterministic: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        next_action, noise = given
        of_gates, of_prior = _carry_on(model, layers, deterministic)
        latent = _draw(model, layers, activate(of_prior), noise, next_action)
        driven = _multiply(layers["input"], latent)
        return advance(deterministic, driven, of_gates), join(latent, deterministic)

    shape = *actions.shape[1:-1], model.deterministic_size
    start = jnp.broadcast_to(begun.deterministic, shape)
    first = advance(start, begun.driven + act_on(layers, actions[0]), begun.gates)
    num_more = len(actions) - 1
    steps = in_a_row(num_more, MOST_AHEAD) if num_more else 1
    last, rows = jax.lax.scan(step, first, (actions[1:], noise[:-1]), unroll=steps)
    # not by `_carry_on`, which would make gates, too, that no step follows
    hidden = activate(_multiply(layers["prior"], last))
    latent = _draw(model, layers, hidden, noise[-1], jnp.zeros_like(actions[0]))
    return jnp.concatenate([rows, join(latent, last)[None]])


def read(network: MLP, params: Sequence[Layer], x: Array) -> Array:
    """`network.apply` up to rounding, by products of one kernel with its bias and activation."""
    for layer in params:
        x = _multiply(layer, x).astype(layer["weight"].dtype)
        x = ACTIVATIONS[network.activation](x)
    return x


def parts(x: Array) -> Array:
    """Numbers [..., n] as `NUM_PARTS` · n of few digits, which products add up to all of theirs."""
    found = []
    for _ in range(NUM_PARTS):
        # not by a cast and another back, which compilers leave out
        found.append(jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7))
        x = x - found[-1]
    return jnp.concatenate(found, axis=-1)


def _carry_on(model: "RSSM", layers: Layers, deterministic: Array) -> tuple[Array, Array]:
    """What a state adds to the next step's gates, and to what the prior activates."""
    carried = layers["carried"]
    both = _multiply(carried, deterministic).astype(carried["weight"].dtype)
    of_gates, of_prior = jnp.split(both, [3 * model.deterministic_size], axis=-1)
    return of_gates.astype(jnp.float32), of_prior


def _draw(model: "RSSM", layers: Layers, hidden: Array, noise: Array, next_action: Array) -> Array:
    """A sample of the prior, with the next action as the input layer reads them."""
    raw = _multiply(layers["prior_out"], hidden)[..., : model.latent.raw_size]
    prior: Statistics = model.latent.statistics(raw)
    sample = model.latent.sample(prior, noise)
    both = jnp.concatenate([sample, parts(next_action)], axis=-1)
    return widen(both, both.ndim - 1, to=DEPTH).astype(layers["input"]["weight"].dtype)


def _multiply(layer: Layer, x: Array) -> Array:
    """`apply_layer`, but for the rounding of the product, which would part it from what follows."""
    weight = layer["weight"]
    product = jnp.matmul(x.astype(weight.dtype), weight, preferred_element_type=jnp.float32)
    return product + layer["bias"]
