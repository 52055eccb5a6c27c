"""The steps of a dream, where nothing learns: they keep codes of samples, not samples.

On a GPU a kernel of our own standardises a row of the GRU's gates and advances it, where the
compiler must add the row up first: two kernels, and four of several runs side by side.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks import blaming
from lofo_rl.networks.blocks import ACTIVATIONS, times
from lofo_rl.networks.distributions import Statistics
from lofo_rl.networks.gru import NUM_GATES, act_on, advance
from lofo_rl.networks.recurrence import Layers, apply_layer
from lofo_rl.networks.slides import padded
from lofo_rl.networks.states import RSSMState
from lofo_rl.types import Array

if TYPE_CHECKING:
    from lofo_rl.networks.rssm import RSSM

NUM_WARPS = 4


def features_of(model: "RSSM", state: Array, code: Array, dtype: str) -> Array:
    """The features of a state and of its latent's code, rounded as networks read them."""
    whole = RSSMState(state, model.latent.decode(code))
    return model.features(jax.tree.map(lambda x: x.astype(dtype), whole))


def dream_on(
    model: "RSSM", layers: Layers, state: Array, features: Array, given: tuple[Array, Array]
) -> tuple[Array, Array]:
    """The next state and its latent's code, given an action and noise.

    `RSSM.imagine_by`, with layers that are `reading_features`.
    """
    action, noise = given
    if not blaming.suits(model, layers, features[None]):
        then, prior = model.imagine_by(layers, RSSMState(state, features), action, noise)
        return then.deterministic, model.latent.code(prior, noise)
    return dream_by_kernel(model, layers, state, features, given)


def dream_by_kernel(
    model: "RSSM", layers: Layers, state: Array, features: Array, given: tuple[Array, Array],
    interpret: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """The same on a GPU, for rows [M, size]."""
    action, noise = given
    activate, dtype = ACTIVATIONS[model.activation], features.dtype
    driven = apply_layer(layers["input"], features) + act_on(layers, action)
    joined = jnp.concatenate([activate(driven).astype(dtype), state.astype(dtype)], axis=-1)
    state, rounded = _gate(layers, times(joined, layers["gates"]["weight"]), state, interpret)
    hidden = activate(apply_layer(layers["prior"], rounded))
    prior: Statistics = model.latent.statistics(apply_layer(layers["prior_out"], hidden))
    return state, model.latent.code(prior, noise)


def _gate(layers: Layers, gates: Array, before: Array, interpret: bool) -> tuple[Array, Array]:
    """The next state [M, size] by gates without their bias, and as products read it."""
    num_rows, size = before.shape
    norm = layers["norm"]
    given = gates, before, layers["gates"]["bias"], norm["weight"], norm["bias"]
    found = pl.pallas_call(
        partial(_gate_kernel, size),
        grid=(num_rows,),
        out_shape=[jax.ShapeDtypeStruct((before.size,), x.dtype) for x in (before, gates)],
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="gate_dream",
    )(*(x.reshape(-1) for x in given))
    state, rounded = (x.reshape(num_rows, size) for x in found)
    return state, rounded


def _gate_kernel(
    size: int, gates: Any, before: Any, bias: Any, scale: Any, shift: Any, found: Any, rounded: Any
) -> None:
    """One row."""
    row, at = pl.program_id(0), jnp.arange(padded(size))
    load = partial(plt.load, mask=at < size, other=0.0)
    own = [(row * NUM_GATES + k) * size + at for k in range(NUM_GATES)]
    parts = [load(gates.at[here]).astype(jnp.float32) for here in own]
    *_, (reset, candidate, update) = blaming.standardise_row(parts, size, (bias, scale, shift))
    state = advance(reset, candidate, update, load(before.at[row * size + at]))
    plt.store(found.at[row * size + at], state, mask=at < size)
    plt.store(rounded.at[row * size + at], state.astype(rounded.dtype), mask=at < size)
