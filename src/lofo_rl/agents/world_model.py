"""The world model that DreamerV2 and PlaNet share: it sees pictures and foresees rewards.

Buffers keep a reward with the state and action that earned it; the model reads it off the state
that is then arrived at. `arrive` makes that shift, for rewards, masks and actions together.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.agents.losses import BalancedKL, HingedKL, reward_loss
from lofo_rl.networks import (
    CNN,
    MLP,
    RSSM,
    Network,
    RSSMState,
    TransposedCNN,
    check_shape,
    dense,
    linear,
)
from lofo_rl.networks.ahead import deepen, read_rows
from lofo_rl.networks.distributions import unit_gaussian_log_density
from lofo_rl.types import Array, Key, LofoError, Metrics, Step, Tree


class WorldModelParams(NamedTuple):
    """All that the model learns."""

    encoder: Tree
    rssm: Tree
    canvas: Tree  # the dense layer before the decoder
    decoder: Tree
    reward: Tree
    reward_out: Tree


class Arrived(NamedTuple):
    """What each row of a window [B, N] was arrived at with."""

    action: Array  # [B, N, action_size]
    reward: Array  # [B, N]
    reward_known: Array  # [B, N] bool
    is_first: Array  # [B, N] bool, nothing led here


class Memory(NamedTuple):
    """What an agent with a world model carries through an episode."""

    state: RSSMState
    action: Array  # [action_size], the previous one
    is_first: Array  # [] bool


def arrive(items: Step, reward_known: Array) -> Arrived:
    """Moves action, reward and mask from where they were given to the row they led to.

    Nothing led to the first row of an episode, and nothing known to the first one of a window.
    """
    is_first = items.is_first.at[:, 0].set(True)

    def later(x: Array) -> Array:
        mask = is_first.reshape(is_first.shape + (1,) * (x.ndim - 2))
        return jnp.where(mask, jnp.zeros((), x.dtype), jnp.roll(x, 1, axis=1))

    return Arrived(later(items.action), later(items.reward), later(reward_known), is_first)


@dataclass(frozen=True)
class WorldModel:
    """Encoder, recurrent state-space model, decoder and reward head; defaults are DreamerV2's."""

    observation_shape: tuple[int, ...] = (64, 64, 3)
    action_size: int = 2
    encoder: CNN = CNN((48, 96, 192, 384), (4,) * 4, (2,) * 4, "elu", "glorot")  # noqa: RUF009
    decoder: TransposedCNN = TransposedCNN(  # noqa: RUF009 (frozen, as all networks)
        (192, 96, 48, 3), (5, 5, 6, 6), (2,) * 4, "elu", "glorot"
    )
    canvas_size: int = 1536  # outputs of the dense layer before the decoder
    rssm: RSSM = RSSM()  # noqa: RUF009
    reward_head: MLP = MLP((400,) * 4, "elu", "glorot")
    divergence: BalancedKL | HingedKL = BalancedKL()  # noqa: RUF009
    reward_weight: float = 1.0
    num_bits: int | None = None  # of a pixel's value: PlaNet keeps 5, and fills up with noise
    compute_dtype: Literal["float32", "bfloat16"] = "float32"  # of products inside the networks

    def __post_init__(self) -> None:
        self.decoder.check_draws(self.observation_shape)
        if self.action_size < 1:
            raise LofoError(
                f"a world model wants actions that are vectors, but action_size is "
                f"{self.action_size}: choose a world with continuous actions"
            )

    def check_actions(self, items: Step) -> None:
        """Whether windows hold the actions that the model was made for."""
        shape, dtype = items.action.shape[2:], items.action.dtype
        if shape != (self.action_size,) or not jnp.issubdtype(dtype, jnp.floating):
            raise LofoError(
                f"the world model follows vectors of {self.action_size} numbers, but the actions "
                f"are {dtype} of shape {shape}: choose a world with continuous actions, or set "
                "model.action_size"
            )

    def init(self, key: Key) -> WorldModelParams:
        """Draws the parameters."""
        keys = jax.random.split(key, 6)
        encoder, (embedding_size,) = self.encoder.init(keys[0], self.observation_shape)
        canvas, canvas_shape = self._canvas.init(keys[2], (self.rssm.feature_size,))
        reward, reward_shape = self.reward_head.init(keys[4], (self.rssm.feature_size,))
        return WorldModelParams(
            encoder=encoder,
            rssm=self.rssm.init(keys[1], self.action_size, embedding_size),
            canvas=canvas,
            decoder=self.decoder.init(keys[3], canvas_shape)[0],
            reward=reward,
            reward_out=self._reward_out.init(keys[5], reward_shape)[0],
        )

    def begin(self) -> Memory:
        """The memory an episode starts with."""
        return Memory(self.rssm.begin(), jnp.zeros(self.action_size), jnp.ones((), bool))

    def loss(
        self, params: WorldModelParams, items: Step, reward_known: Array, key: Key
    ) -> tuple[Array, tuple[RSSMState, Metrics]]:
        """The loss on windows [B, N], with the posterior states and what the loss is made of."""
        key_see, key_observe = jax.random.split(key)
        arrived = arrive(items, reward_known)
        pictures = self.see(items.observation, key_see)
        states, posterior, prior = self.rssm.observe_window(
            self.recurrent(params),
            arrived.action,
            self.apply(self.encoder, params.encoder, pictures),
            arrived.is_first,
            key_observe,
        )
        features = self.rssm.features(states)
        density = unit_gaussian_log_density(pictures, self._draw(params, features))
        image_loss = -jnp.sum(density) / reward_known.size
        rewards = self.reward(params, features)
        rewards_loss = reward_loss(rewards, arrived.reward, arrived.reward_known)
        kl_loss, kl = self.divergence.loss(self.rssm.latent, posterior, prior)
        loss = image_loss + self.reward_weight * rewards_loss + kl_loss
        parts = {"image_loss": image_loss, "reward_loss": rewards_loss, "kl": kl}
        return loss, (states, parts | {"model_loss": loss})

    def observe(
        self,
        params: WorldModelParams,
        state: RSSMState,
        previous_action: Array,
        observation: Array,
        is_first: Array,
        key: Key,
    ) -> RSSMState:
        """The state after one more picture."""
        key_see, key_observe = jax.random.split(key)
        embedding = self.apply(self.encoder, params.encoder, self.see(observation, key_see))
        given = previous_action, embedding, is_first, key_observe
        return self.rssm.observe(self.recurrent(params), state, *given)[0]

    def imagine(
        self, params: WorldModelParams, state: RSSMState, action: Array, key: Key
    ) -> RSSMState:
        """The state that an action is expected to lead to."""
        return self.rssm.imagine(self.recurrent(params), state, action, key)[0]

    def imagine_by(
        self, params: WorldModelParams, state: RSSMState, action: Array, noise: Array
    ) -> RSSMState:
        """`imagine` for loops, which have drawn their noise ahead."""
        return self.rssm.imagine_by(self.recurrent(params), state, action, noise)[0]

    def imagine_window(
        self, params: WorldModelParams, state: RSSMState, actions: Array, key: Key
    ) -> RSSMState:
        """The states [T, ..., size] that actions [T, ..., action_size] are expected to lead to."""
        return self.rssm.imagine_window(self.recurrent(params), state, actions, key)

    def ready(self, params: WorldModelParams) -> WorldModelParams:
        """Cast and taken apart once, ahead of many steps of an episode."""
        return params._replace(
            encoder=self.cast(params.encoder),
            rssm=self.rssm.apart(self.recurrent(params)),
            reward=self.cast(params.reward),
        )

    def ahead(self, params: WorldModelParams) -> WorldModelParams:
        """Cast and laid out, once, ahead of a search; the reward head reads `imagine_rows`."""
        layers = self.rssm.ahead(self.recurrent(params))
        head = [*params.reward, *params.reward_out]
        head[0] = head[0] | {"weight": read_rows(self.rssm, layers, head[0]["weight"])}
        hidden = [deepen(layer, 0, 1) for layer in self.cast(head[:-1])]
        return params._replace(rssm=layers, reward=hidden, reward_out=(deepen(head[-1], 0),))

    def rest(
        self, params: WorldModelParams, observations: Array, num_steps: int, key: Key
    ) -> RSSMState:
        """The states [M, size] after seeing each picture [M, ...] for some steps without acting."""
        key_see, key_observe = jax.random.split(key)
        seen = self.apply(self.encoder, params.encoder, self.see(observations, key_see))
        shape = len(observations), num_steps
        states, *_ = self.rssm.observe_window(
            self.recurrent(params),
            jnp.zeros((*shape, self.action_size)),
            jnp.broadcast_to(seen[:, None], (*shape, seen.shape[-1])),
            jnp.broadcast_to(jnp.arange(num_steps) == 0, shape),
            key_observe,
        )
        return jax.tree.map(lambda x: x[:, -1], states)

    def foresee(
        self, params: WorldModelParams, observations: Array, actions: Array, num_seen: int, key: Key
    ) -> Array:
        """Pictures [T, ...] in [0, 1] of an episode's beginning, acted in by actions [T, A].

        The first ones are drawn from states that have seen theirs; the rest is imagined.
        """
        key_see, key_observe, key_imagine = jax.random.split(key, 3)
        pictures = self.see(observations[:num_seen], key_see)
        states, *_ = self.rssm.observe_window(
            self.recurrent(params),
            jnp.roll(actions[:num_seen], 1, axis=0)[None],  # the action that led to each
            self.apply(self.encoder, params.encoder, pictures)[None],
            jnp.arange(num_seen)[None] == 0,
            key_observe,
        )
        seen = jax.tree.map(lambda x: x[0], states)
        last = jax.tree.map(lambda x: x[-1], seen)
        imagined = self.imagine_window(params, last, actions[num_seen - 1 : -1], key_imagine)
        together = jax.tree.map(lambda *x: jnp.concatenate(x), seen, imagined)
        return jnp.clip(self.picture(params, self.features(together)), 0.0, 1.0)

    def reward(self, params: WorldModelParams, features: Array) -> Array:
        """The reward [...] expected on arriving at features [..., feature_size]."""
        return self.tell(params, self.apply(self.reward_head, params.reward, features))

    def tell(self, params: WorldModelParams, hidden: Array) -> Array:
        """The reward that the head's last layer reads off what it has made of features."""
        return self._reward_out.apply(params.reward_out, hidden)[..., 0]

    def picture(self, params: WorldModelParams, features: Array) -> Array:
        """What the model draws, in [0, 1] as far as it has learnt to stay there."""
        return self._draw(params, features) + 0.5

    def features(self, state: RSSMState) -> Array:
        """What reward head, decoder, actor and critic read."""
        return self.rssm.features(state)

    def see(self, observation: Array, key: Key) -> Array:
        """uint8 pictures in the units of the networks, within ±0.5."""
        check_shape(observation, self.observation_shape, "model", self.decoder)
        if self.num_bits is None:
            return observation.astype(jnp.float32) / 255 - 0.5
        shades = 2**self.num_bits
        noise = jax.random.uniform(key, observation.shape)  # else the model would count the shades
        return (jnp.floor(observation / (256 // shades)) + noise) / shades - 0.5

    def apply(self, network: Network, params: Tree, x: Array) -> Array:
        """A network's outcome in float32, its products made in the compute dtype."""
        if isinstance(network, CNN | TransposedCNN):  # they know what is large
            return replace(network, dtype=self.compute_dtype).apply(params, x)
        if isinstance(network, MLP):
            return self.apply_all([(network, params)], x)[0]
        return network.apply(self.cast(params), x.astype(self.compute_dtype)).astype(jnp.float32)

    def apply_all(self, heads: list[tuple[MLP, Tree]], x: Array) -> list[Array]:
        """`apply` for networks that read the same, so that its slope is found at once."""
        rows, activations = x.astype(self.compute_dtype), {head.activation for head, _ in heads}
        if rows.dtype == jnp.float32 or rows.ndim == 1 or len(activations) > 1:
            found = [head.apply(self.cast(params), rows) for head, params in heads]
        else:
            found = [*dense.read([params for _, params in heads], rows, *activations)]
        return [y.astype(jnp.float32) for y in found]

    def _draw(self, params: WorldModelParams, features: Array) -> Array:
        canvas = self.apply(self._canvas, params.canvas, features)
        return self.apply(self.decoder, params.decoder, canvas)

    def cast(self, params: Tree) -> Tree:
        """Matrices in the compute dtype; what is added, and its gradients, stays in float32."""
        return jax.tree.map(lambda x: x.astype(self.compute_dtype) if x.ndim > 1 else x, params)

    def recurrent(self, params: WorldModelParams) -> Tree:
        """The recurrence's layers, `cast`."""
        return self.cast(params.rssm)

    @property
    def _canvas(self) -> MLP:
        return linear(self.canvas_size, "glorot")

    @property
    def _reward_out(self) -> MLP:
        return linear(1, "glorot")
