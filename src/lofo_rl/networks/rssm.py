"""The recurrent state-space model of PlaNet and DreamerV2.

A step of a GRU carries what is known for certain; a latent drawn beside it is what is not. The
prior guesses the latent from the recurrence alone, the posterior has also seen the picture.

A window is observed in a scan, and a GPU spends it launching kernels. So all that does not wait for
the recurrence is computed before it (the parts of pictures and actions, the noise) or after it (the
prior, the gradients of the weights), for all steps at once. Three products a step remain, and that
with the latent: where it is discrete, rows of the weight are looked up and added.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lofo_rl.networks import watching, watching_back
from lofo_rl.networks.ahead import Departure, depart, imagine_rows, lay_out, split_rows
from lofo_rl.networks.blocks import ACTIVATIONS, Activation, Initialisation, draw_layer, once
from lofo_rl.networks.distributions import Discrete, Latent, Statistics
from lofo_rl.networks.gru import act_on, gate
from lofo_rl.networks.recurrence import Apply, Layers, Walk, apply_layer, in_turn, unroll
from lofo_rl.networks.states import Given, Passed, RSSMState
from lofo_rl.types import Array, Key


@dataclass(frozen=True)
class RSSM:
    """The defaults are DreamerV2's; PlaNet has a Gaussian latent, relu, and no layer norm.

    PlaNet's own GRU cell resets the state before its product and not behind it; here both agents
    share DreamerV2's cell.
    """

    latent: Latent = Discrete(32, 32)  # noqa: RUF009 (frozen)
    deterministic_size: int = 200
    hidden_size: int = 200
    activation: Activation = "elu"
    layer_norm: bool = True  # in the GRU
    initialisation: Initialisation = "glorot"
    own_kernels: bool = True  # of `watching`, on a GPU, where they fit
    own_dreams: bool = True  # of `dreaming` and `blaming`, likewise

    @property
    def feature_size(self) -> int:
        """Numbers that `features` gives."""
        return self.latent.size + self.deterministic_size

    def init(self, key: Key, action_size: int, embedding_size: int) -> Layers:
        """Draws all layers; the rows of a weight are in the order of its inputs' names below."""
        deterministic, hidden = self.deterministic_size, self.hidden_size
        shapes = {
            "input": (self.latent.size + action_size, hidden),
            "gates": (hidden + deterministic, 3 * deterministic),
            "prior": (deterministic, hidden),
            "prior_out": (hidden, self.latent.raw_size),
            "posterior": (deterministic + embedding_size, hidden),
            "posterior_out": (hidden, self.latent.raw_size),
        }
        layers = {
            name: draw_layer(k, shape, shape[0], "none", self.initialisation)
            for k, (name, shape) in zip(
                jax.random.split(key, len(shapes)), shapes.items(), strict=True
            )
        }
        if self.layer_norm:
            size = 3 * deterministic
            layers["norm"] = {"weight": jnp.ones(size), "bias": jnp.zeros(size)}
        return layers

    def apart(self, params: Layers) -> Layers:
        """The layers with what the input layer makes of actions as "action".

        Rows of a latent and an action would begin anywhere in memory, which GPUs do not like. Loops
        take them apart beforehand, for that moves weights.
        """
        if "action" in params:
            return dict(params)
        size, weight = self.latent.size, params["input"]["weight"]
        action = {"weight": weight[size:], "bias": params["input"]["bias"]}
        return params | {"input": {"weight": weight[:size]}, "action": action}

    def reading_features(self, params: Layers) -> Layers:
        """`apart`, given all `features` for the latent: who reads them too shares the product."""
        layers = self.apart(params)
        weight = layers["input"]["weight"]
        margins = (0, self.feature_size - len(weight)), (0, 0)
        return layers | {"input": {"weight": jnp.pad(weight, margins)}}

    def ahead(self, params: Layers) -> Layers:
        """The layers as a plan wants them: see `lofo_rl.networks.ahead`."""
        return lay_out(self, self.apart(params))

    def depart(self, layers: Layers, state: RSSMState) -> Departure:
        """What `imagine_rows` begins with; all actions may begin at one state [size]."""
        return depart(self, layers, *state)

    def begin(self, batch_shape: tuple[int, ...] = ()) -> RSSMState:
        """The state in which nothing has been seen."""
        return RSSMState(
            jnp.zeros((*batch_shape, self.deterministic_size)),
            jnp.zeros((*batch_shape, self.latent.size)),
        )

    def features(self, state: RSSMState) -> Array:
        """What other networks read [..., feature_size]."""
        return jnp.concatenate([state.stochastic, state.deterministic], axis=-1)

    def imagine(
        self, params: Layers, state: RSSMState, action: Array, key: Key
    ) -> tuple[RSSMState, Statistics]:
        """One step ahead by the prior alone, and the prior."""
        noise = self.latent.noise(key, state.deterministic.shape[:-1])
        return self.imagine_by(params, state, action, noise)

    def imagine_by(
        self, params: Layers, state: RSSMState, action: Array, noise: Array
    ) -> tuple[RSSMState, Statistics]:
        """`imagine` for loops, which have drawn their noise ahead."""
        layers = self.apart(params)
        return self.imagine_step(apply_layer, layers, state, (act_on(layers, action), noise))

    def imagine_window(
        self, params: Layers, state: RSSMState, actions: Array, key: Key
    ) -> RSSMState:
        """The states [T, ..., size] that actions [T, ..., action_size] known beforehand lead to.

        All actions may begin at one state [size]. States have the digits that products read.
        """
        if not len(actions):
            return self.begin(actions.shape[:-1])
        layers, noise = self.ahead(params), self.latent.noise(key, actions.shape[:-1])
        rows = self.imagine_rows(layers, self.depart(layers, state), actions, noise)
        return RSSMState(*split_rows(self, layers, rows))

    def imagine_rows(self, layers: Layers, begun: Departure, actions: Array, noise: Array) -> Array:
        """`imagine_window` with all that it draws, as what weights of `read_rows` read.

        Here and in `depart` layers are those of `ahead`.
        """
        return imagine_rows(self, layers, begun, actions, noise)

    def observe(
        self,
        params: Layers,
        state: RSSMState,
        action: Array,
        embedding: Array,
        is_first: Array,
        key: Key,
    ) -> tuple[RSSMState, Statistics, Statistics]:
        """The state after a picture, the posterior, and the prior that had not seen it.

        `action` is the one that led here; it and the state count as 0 where an episode begins.
        """
        layers, is_first = self.apart(params), is_first[..., None]
        read = jnp.where(is_first, 0.0, apply_layer(layers["input"], state.stochastic))
        driven = read + act_on(layers, jnp.where(is_first, 0.0, action))
        before = jnp.where(is_first, 0.0, state.deterministic)
        deterministic = self._advance(apply_layer, layers, before, driven)
        both = jnp.concatenate([deterministic, embedding], axis=-1)
        hidden = self._activate(apply_layer(layers["posterior"], both))
        raw = apply_layer(layers["posterior_out"], hidden)
        posterior: Statistics = self.latent.statistics(raw)
        noise = self.latent.noise(key, deterministic.shape[:-1])
        state = RSSMState(deterministic, self.latent.sample(posterior, noise))
        return state, posterior, self.prior(params, deterministic)

    def observe_window(
        self, params: Layers, actions: Array, embeddings: Array, is_first: Array, key: Key
    ) -> tuple[RSSMState, Statistics, Statistics]:
        """`observe` along windows [B, N, ...], from states in which nothing has been seen."""
        actions, embeddings = jnp.swapaxes(actions, 0, 1), jnp.swapaxes(embeddings, 0, 1)
        layers, given = self._prepare(params, actions, embeddings, is_first.T, key)
        walk = Walk(self._observe_step, self._observe_forth, self._decode, self._observe_back)
        passed, raw = unroll(walk, layers, self._blank(is_first.shape[:1]), given)
        states = RSSMState(passed.deterministic, passed.latent)
        states, raw = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (states, raw))
        return states, self.latent.statistics(raw), self.prior(params, states.deterministic)

    def prior(self, params: Layers, deterministic: Array) -> Statistics:
        """The guess at the latent from the recurrence alone."""
        hidden = self._activate(apply_layer(params["prior"], deterministic))
        return self.latent.statistics(apply_layer(params["prior_out"], hidden))

    def kl(self, posterior: Statistics, prior: Statistics) -> Array:
        """KL(posterior ‖ prior) [...]."""
        return self.latent.kl(posterior, prior)

    def _prepare(
        self, params: Layers, action: Array, embedding: Array, is_first: Array, key: Key
    ) -> tuple[Layers, Given]:
        """The layers of `_observe_step`, and all it is given."""
        layers = self.apart(params)
        action_part = act_on(layers, jnp.where(is_first[..., None], 0.0, action))
        weight = params["posterior"]["weight"]
        seen = {"weight": weight[self.deterministic_size :], "bias": params["posterior"]["bias"]}
        embedding_part = apply_layer(seen, embedding)
        of_input, of_state = jnp.split(layers["gates"]["weight"], [self.hidden_size])
        layers["gates"] = {"weight": of_input, "bias": layers["gates"]["bias"]}
        passed = jnp.concatenate([of_state, weight[: self.deterministic_size]], axis=1)
        layers["passed"] = {"weight": passed}
        for name in ("action", "prior", "prior_out", "posterior"):  # before and behind the loop
            del layers[name]
        noise = self.latent.noise(key, is_first.shape)
        return layers, Given(action_part, embedding_part, is_first, noise)

    def _observe_step(
        self, apply: Apply, layers: Layers, now: Passed, given: Given
    ) -> tuple[Passed, Array]:
        read = apply(layers["input"], now.latent)
        then, raw, posterior = self._see(apply, layers, now, read, given)
        return then._replace(latent=self.latent.sample(posterior, given.noise)), raw

    def _observe_forth(self, layers: Layers, begun: Passed, given: Given) -> Passed:
        """All steps where nothing learns."""
        if watching.suits(self, layers, given):
            return watching.watch(self, layers, begun, given)
        return in_turn(partial(self._observe_in_code, layers), begun, given)

    def _observe_back(
        self, layers: Layers, before: Passed, given: Given, outcomes: list[Array], slopes: Any
    ) -> Passed | None:
        """The slopes of all states, where kernels of our own find them."""
        if not watching.suits(self, layers, given):
            return None
        known = watching_back.know(self, layers, before, given, outcomes)
        return watching_back.watch_back(layers, given, known, *slopes)

    def _observe_in_code(self, layers: Layers, now: Passed, given: Given) -> Passed:
        """`_observe_step` where nothing learns: samples are numbers of rows to look up.

        In half precision these sums keep digits that a product rounds, so what is drawn here is now
        and then another class than a step by itself would draw.
        """
        read = self.latent.look_up(layers["input"]["weight"], now.latent)
        then, _, posterior = self._see(apply_layer, layers, now, read, given)
        return then._replace(latent=self.latent.code(posterior, given.noise))

    def _see(
        self, apply: Apply, layers: Layers, now: Passed, read: Array, given: Given
    ) -> tuple[Passed, Array, Statistics]:
        is_first = given.is_first[..., None]
        # the latent is forgotten behind its product, where nothing need be written for it
        driven = jnp.where(is_first, 0.0, read) + given.action
        before = jnp.where(is_first, 0.0, once(now.deterministic))
        gates = apply(layers["gates"], self._activate(driven))
        gates = gates + jnp.where(is_first, 0.0, now.gates)
        deterministic = gate(layers, gates, before)
        gates, of_posterior = self._pass_on(apply, layers, deterministic)
        raw = apply(layers["posterior_out"], self._activate(of_posterior + given.embedding))
        then = now._replace(deterministic=deterministic, gates=gates)
        return then, raw, self.latent.statistics(raw)

    def _pass_on(self, apply: Apply, layers: Layers, deterministic: Array) -> list[Array]:
        """What a state adds to the next step's gates, and to its own posterior."""
        both = apply(layers["passed"], deterministic)
        return jnp.split(both, [3 * self.deterministic_size], axis=-1)

    def _blank(self, shape: tuple[int, ...]) -> Passed:
        """Nothing seen, as `_observe_in_code` has it."""
        size = self.deterministic_size
        return Passed(
            jnp.zeros((*shape, size)), self.latent.blank(shape), jnp.zeros((*shape, 3 * size))
        )

    def _decode(self, passed: Passed) -> Passed:
        return passed._replace(latent=self.latent.decode(passed.latent))

    def imagine_step(
        self, apply: Apply, layers: Layers, state: RSSMState, given: tuple[Array, Array]
    ) -> tuple[RSSMState, Statistics]:
        """`imagine_by` as loops back take it: given what actions add to the input layer."""
        action_part, noise = given
        driven = apply(layers["input"], state.stochastic) + action_part
        deterministic = self._advance(apply, layers, once(state.deterministic), driven)
        hidden = self._activate(apply(layers["prior"], deterministic))
        prior: Statistics = self.latent.statistics(apply(layers["prior_out"], hidden))
        return RSSMState(deterministic, self.latent.sample(prior, noise)), prior

    def _advance(self, apply: Apply, layers: Layers, deterministic: Array, driven: Array) -> Array:
        """The GRU; `driven` is the input layer's outcome."""
        joined = jnp.concatenate([self._activate(driven), deterministic], axis=-1)
        return gate(layers, apply(layers["gates"], joined), deterministic)

    def _activate(self, x: Array) -> Array:
        return ACTIVATIONS[self.activation](x)
