"""DreamerV2 for continuous actions: an actor and a critic that learn in a world model's dreams.

One update is a gradient step on the world model, then one each on actor and critic, along rollouts
imagined from every state of the batch. The reward of a dream's step is read off the state arrived
at, as in the world model.

The actor sees features but sends no gradient through them, so the return reaches it through its
actions alone. So the loop that dreams has no way back of its own: rewards, values and their slopes
are computed for all steps at once, then one loop back finds the slope of the return by each action,
and the actor's own gradient follows for all steps at once again.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.agents.base import Appetite
from lofo_rl.agents.descent import descend, follow, remember
from lofo_rl.agents.returns import lambda_returns
from lofo_rl.agents.world_model import Memory, WorldModel, WorldModelParams
from lofo_rl.networks import CNN, MLP, RSSM, Discrete, RSSMState, TransposedCNN, linear
from lofo_rl.networks.blaming import blame
from lofo_rl.networks.blocks import sums
from lofo_rl.networks.distributions import (
    TruncatedNormal,
    truncated_normal,
    unit_gaussian_log_density,
)
from lofo_rl.networks.dreaming import dream_on, features_of
from lofo_rl.networks.recurrence import in_a_row
from lofo_rl.types import Array, Batch, Key, Metrics, Tree


class DreamerState(NamedTuple):
    """All that learning changes."""

    model: WorldModelParams
    actor: Tree
    value: Tree  # the critic
    target: Tree  # the slow critic that returns bootstrap from
    model_optimiser: Tree
    actor_optimiser: Tree
    value_optimiser: Tree
    num_updates: Array  # [] int32


class Dream(NamedTuple):
    """A rollout of H steps from each of M states."""

    features: Array  # [H + 1, M, feature_size]
    rewards: Array  # [H, M], of the states acted in
    returns: Array  # [H, M]
    promise: Array  # [], what the actor wants more of
    slope: Array  # [H, M, action_size], of the promise by each action


@dataclass(frozen=True)
class Dreamer:
    """The DreamerV2 of the paper: no entropy bonus, but noise on the actions it trains with."""

    model: WorldModel = WorldModel()  # noqa: RUF009 (frozen)
    actor: MLP = MLP((400,) * 4, "elu", "glorot")
    value: MLP = MLP((400,) * 4, "elu", "glorot")
    model_learning_rate: float = 3e-4
    actor_learning_rate: float = 8e-5
    value_learning_rate: float = 8e-5
    adam_epsilon: float = 1e-5
    gradient_clip: float = 100.0  # of the global norm
    weight_decay: float = 1e-6  # of each update, whatever the learning rate
    discount: float = 0.99
    trace: float = 0.95  # lambda
    horizon: int = 15
    target_period: int = 100  # updates between copies into the slow critic
    entropy_scale: float = 0.0
    exploration: float = 0.3  # standard deviation of the noise on training actions
    num_rest_steps: int = 5  # pictures in a row that a probe of the rewards begins with
    batch_size: int = 16
    window: int = 50

    def __post_init__(self) -> None:
        for name in ("target_period", "num_rest_steps", "batch_size", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.horizon < 2:
            raise ValueError(f"the actor learns from a horizon of at least 2, got {self.horizon}")

    @classmethod
    def small(
        cls, observation_shape: tuple[int, ...] = (64, 64, 3), action_size: int = 2, **changes: Any
    ) -> Self:
        """Networks that train on a CPU; pictures of another side want other kernels."""
        model = WorldModel(
            observation_shape,
            action_size,
            encoder=CNN((8, 16, 32, 64), (4,) * 4, (2,) * 4, "elu", "glorot"),
            decoder=TransposedCNN(
                (32, 16, 8, observation_shape[-1]), (5, 5, 6, 6), (2,) * 4, "elu", "glorot"
            ),
            canvas_size=256,
            rssm=RSSM(Discrete(8, 8), deterministic_size=64, hidden_size=64),
            reward_head=MLP((64, 64), "elu", "glorot"),
        )
        behaviour = MLP((64, 64), "elu", "glorot")
        return replace(cls(model, behaviour, behaviour), **changes)

    @property
    def appetite(self) -> Appetite:
        return Appetite(1, self.batch_size, self.window)

    def init(self, key: Key) -> DreamerState:
        key_model, key_actor, key_value = jax.random.split(key, 3)
        shape = (self.model.rssm.feature_size,)
        model = self.model.init(key_model)
        actor = _init_head(key_actor, self.actor, shape, 2 * self.model.action_size)
        value = _init_head(key_value, self.value, shape, 1)
        return DreamerState(
            model=model,
            actor=actor,
            value=value,
            target=jax.tree.map(jnp.copy, value),
            model_optimiser=remember(model),
            actor_optimiser=remember(actor),
            value_optimiser=remember(value),
            num_updates=jnp.zeros((), jnp.int32),
        )

    def begin(self) -> Memory:
        """Nothing seen and nothing done."""
        return self.model.begin()

    def ready(self, state: DreamerState) -> DreamerState:
        """What acts as the state does, its weights cast once for many steps."""
        actor = self.model.cast(state.actor[0]), state.actor[1]
        return state._replace(model=self.model.ready(state.model), actor=actor)

    def act(
        self, state: DreamerState, memory: Memory, observation: Array, key: Key, *, explore: bool
    ) -> tuple[Array, Memory]:
        key_observe, key_sample, key_noise = jax.random.split(key, 3)
        seen = self.model.observe(
            state.model, memory.state, memory.action, observation, memory.is_first, key_observe
        )
        policy = self._policy(state.actor, self.model.features(seen))
        action = policy.mean
        if explore:
            action = policy.sample(jax.random.uniform(key_sample, action.shape))
            noise = self.exploration * jax.random.normal(key_noise, action.shape)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return action, Memory(seen, action, jnp.zeros_like(memory.is_first))

    def update(self, state: DreamerState, batches: Batch, key: Key) -> tuple[DreamerState, Metrics]:
        key_model, key_dream = jax.random.split(key)
        items, known = jax.tree.map(lambda x: x[0], (batches.items, batches.reward_known))
        self.model.check_actions(items)
        learn = jax.grad(self.model.loss, has_aux=True)
        slope, (starts, model_metrics) = learn(state.model, items, known, key_model)
        model, model_optimiser = self._descend(
            state.model, slope, state.model_optimiser, self.model_learning_rate
        )
        state = state._replace(model=model, model_optimiser=model_optimiser)
        starts = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), starts)
        state, metrics = self._behave(state, starts, key_dream)
        num_updates = state.num_updates + 1
        due = num_updates % self.target_period == 0
        target = follow(state.value, state.target, due)
        state = state._replace(target=target, num_updates=num_updates)
        return state, model_metrics | metrics

    def predict_reward(
        self, state: DreamerState, observations: Array, actions: Array, key: Key
    ) -> Array:
        """The rewards [M] expected of actions [M, A] after resting before pictures [M, ...]."""
        key_rest, key_imagine = jax.random.split(key)
        now = self.model.rest(state.model, observations, self.num_rest_steps, key_rest)
        then = self.model.imagine(state.model, now, actions, key_imagine)
        return self.model.reward(state.model, self.model.features(then))

    def predict_value(self, state: DreamerState, observations: Array, key: Key) -> Array:
        """What the critic expects [M] after resting before pictures [M, ...]."""
        now = self.model.rest(state.model, observations, self.num_rest_steps, key)
        return self._value(state.value, self.model.features(now))

    def _behave(
        self, state: DreamerState, starts: RSSMState, key: Key
    ) -> tuple[DreamerState, Metrics]:
        """A step of the actor and one of the critic, on one dream."""
        key_latent, key_lots = jax.random.split(key)
        shape = self.horizon, len(starts.deterministic)
        noise = self.model.rssm.latent.noise(key_latent, shape)
        lots = jax.random.uniform(key_lots, (*shape, self.model.action_size))

        dream = self._dream(state, starts, noise, lots)
        actor_slope, entropy = jax.grad(self._actor_loss, has_aux=True)(
            state.actor, dream.features, lots, dream.slope
        )
        value_loss, value_slope = jax.value_and_grad(self._value_loss)(
            state.value, dream.features, dream.returns
        )
        actor, actor_optimiser = self._descend(
            state.actor, actor_slope, state.actor_optimiser, self.actor_learning_rate
        )
        value, value_optimiser = self._descend(
            state.value, value_slope, state.value_optimiser, self.value_learning_rate
        )
        metrics = {
            "actor_loss": -dream.promise - self.entropy_scale * entropy,
            "value_loss": value_loss,
            "actor_entropy": entropy,
            "dream_reward": jnp.mean(dream.rewards),
            "dream_return": jnp.mean(dream.returns),
        }
        state = state._replace(actor=actor, actor_optimiser=actor_optimiser)
        return state._replace(value=value, value_optimiser=value_optimiser), metrics

    def _dream(self, state: DreamerState, starts: RSSMState, noise: Array, lots: Array) -> Dream:
        """Follows the actor."""
        # here once, or every step would take apart and, in half precision, cast all weights again
        actor = self.model.cast(state.actor[0]), state.actor[1]
        rssm, dtype = self.model.rssm, self.model.compute_dtype
        layers = rssm.apart(self.model.recurrent(state.model))
        reading = rssm.reading_features(layers)

        def step(now: tuple[Array, Array], given: tuple[Array, Array]) -> tuple[Any, Any]:
            noise, lot = given
            features = features_of(rssm, *now, dtype)
            action = self._policy(actor, features).sample(lot)
            return dream_on(rssm, reading, now[0], features, (action, noise)), (*now, action)

        def promise(features: Array) -> tuple[Array, tuple[Array, Array]]:
            heads = (self.model.reward_head, state.model.reward), (self.value, state.target[0])
            of_reward, of_value = self.model.apply_all([*heads], features)
            rewards = self.model.tell(state.model, of_reward)[:-1]
            values = self._judge(state.target, of_value)
            returns = lambda_returns(rewards, values, self.discount, self.trace)
            return jnp.mean(self._weights[:-1] * returns[1:]), (rewards, returns)

        begun = starts.deterministic, rssm.latent.encode(starts.stochastic)
        last, (*states, actions) = jax.lax.scan(
            step, begun, (noise, lots), unroll=in_a_row(self.horizon)
        )
        every, code = (jnp.concatenate([x, y[None]]) for x, y in zip(states, last, strict=True))
        features = features_of(rssm, every, code, dtype)
        (promised, (rewards, returns)), slope = jax.value_and_grad(promise, has_aux=True)(features)
        by_action = blame(rssm, layers, states[0], features, (actions, noise), slope)
        return Dream(features, rewards, returns, promised, by_action)

    def _actor_loss(
        self, actor: Tree, features: Array, lots: Array, slope: Array
    ) -> tuple[Array, Array]:
        """Has the gradient of the promised return; its value says nothing."""
        policy = jax.tree.map(lambda x: x[:-1], self._policy(actor, features))
        entropy = jnp.mean(self._weights[:-1] * policy.entropy()[:-1])
        return -jnp.sum(slope * policy.sample(lots)) - self.entropy_scale * entropy, entropy

    def _value_loss(self, value: Tree, features: Array, returns: Array) -> Array:
        density = unit_gaussian_log_density(returns, self._value(value, features)[:-1])
        return -jnp.mean(self._weights * density)

    def _policy(self, actor: Tree, features: Array) -> TruncatedNormal:
        body, (last,) = actor
        hidden = self.model.apply(self.actor, body, features)
        return truncated_normal(sums(hidden, last["weight"]) + last["bias"])

    def _value(self, value: Tree, features: Array) -> Array:
        return self._judge(value, self.model.apply(self.value, value[0], features))

    def _judge(self, value: Tree, hidden: Array) -> Array:
        """The value that the critic's last layer reads off what it has made of features."""
        return linear(1).apply(value[1], hidden)[..., 0]

    @property
    def _weights(self) -> Array:
        """How much each step acted in counts [H, 1]."""
        return jnp.asarray(self.discount ** np.arange(self.horizon), jnp.float32)[:, None]

    def _descend(
        self, params: Tree, slope: Tree, memory: Tree, learning_rate: float
    ) -> tuple[Tree, Tree]:
        limits = self.gradient_clip, self.weight_decay
        return descend(params, slope, memory, learning_rate, self.adam_epsilon, *limits)


def _init_head(key: Key, body: MLP, input_shape: tuple[int, ...], size: int) -> Tree:
    """A network that reads features, and its last layer."""
    key_body, key_out = jax.random.split(key)
    params, shape = body.init(key_body, input_shape)
    return params, linear(size, "glorot").init(key_out, shape)[0]
