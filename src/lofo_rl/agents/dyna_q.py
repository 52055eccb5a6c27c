"""Deep Dyna-Q: a model of the world, and a Q-network that learns from the model alone.

One update is `num_model_updates` gradient steps on the model, then `num_planning_updates` on the
Q-network, whose targets come from the model only: real rewards never reach the Q-network.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.agents.base import Appetite
from lofo_rl.agents.descent import descend, follow, remember
from lofo_rl.agents.losses import (
    dynamics_loss,
    planning_target,
    reward_loss,
    termination_loss,
    value_loss,
)
from lofo_rl.agents.picture_model import PictureModel
from lofo_rl.agents.steps import in_turn
from lofo_rl.networks import (
    IDENTITY,
    MLP,
    Chain,
    Initialisation,
    Network,
    Pictures,
    TransposedCNN,
    check_shape,
    linear,
    pixels_of,
    reads_pictures,
    see_through,
)
from lofo_rl.types import Array, Batch, Key, Metrics, Transition, Tree


class DynaQState(NamedTuple):
    """All that learning changes."""

    model: Tree
    value: Tree
    target: Tree  # the Q-network that planning bootstraps from
    model_optimiser: Tree
    value_optimiser: Tree
    num_updates: Array  # [] int32


class Prediction(NamedTuple):
    """What the model says of (s, a)."""

    successor: Array  # [..., *observation_shape], in the units the networks see
    reward: Array  # [...]
    termination: Array  # [...] probability


@dataclass(frozen=True)
class DynaQ:
    """The deep Dyna-Q of the paper; the defaults are its MountainCar table.

    With a decoder the observations are pictures, and the dynamics draw the next one.
    """

    traits: ClassVar = ("reward_at_end",)

    observation_shape: tuple[int, ...]
    num_actions: int
    scaling: Network = IDENTITY  # applied to observations before any network
    encoder: Network = MLP((64, 64, 63))  # of each model part, before the action joins
    head: Network = MLP((64, 64))  # of each model part, after the action has joined
    value: Network = MLP((64, 64, 64, 64))
    model_learning_rate: float = 5e-5
    value_learning_rate: float = 5e-6
    adam_epsilon: float = 1e-8  # larger, Adam's steps shrink with the gradient: less noise late
    exploration: float = 0.5  # epsilon
    discount: float = 0.99
    target_period: int = 500  # updates between copies into the target network
    num_model_updates: int = 5
    num_planning_updates: int = 5
    planning_delay: int = 0  # updates of the model alone, before the Q-network trusts it
    batch_size: int = 32
    output_init: Initialisation = "kaiming"  # of the last layers; "torch" starts nearer to 0
    raw_inputs: bool = False  # reading: feed observations as they are
    one_hot_action: bool = False  # reading: three inputs instead of one scalar
    direct_dynamics: bool = False  # reading: predict the successor itself, not the change
    reward_at_end: bool = False  # variant: plan with rewards only as far as an end is predicted
    stack_model: bool = True  # one batched product for the three parts: fewer kernels on a GPU
    decoder: TransposedCNN | None = None  # of the dynamics, in place of the head

    def __post_init__(self) -> None:
        updates = ("target_period", "num_model_updates", "num_planning_updates")
        for name in ("num_actions", "batch_size", *updates):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("exploration", "discount"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        if self.decoder:
            self.decoder.check_draws(self.observation_shape)

    @property
    def takes_rows(self) -> bool:
        """Whether it learns of pictures that are told by their rows, `Picked`."""
        return bool(self.decoder) and reads_pictures(self.encoder) and reads_pictures(self.value)

    @property
    def appetite(self) -> Appetite:
        num_batches = self.num_model_updates + self.num_planning_updates
        return Appetite(num_batches, self.batch_size, num_chosen=self.num_model_updates)

    def init(self, key: Key) -> DynaQState:
        key_dynamics, key_reward, key_termination, key_value = jax.random.split(key, 4)
        model = self._init_model((key_dynamics, key_reward, key_termination))
        value, _ = self._value.init(key_value, self.observation_shape)
        return DynaQState(
            model=model,
            value=value,
            target=jax.tree.map(jnp.copy, value),
            model_optimiser=remember(model),
            value_optimiser=remember(value),
            num_updates=jnp.zeros((), jnp.int32),
        )

    def begin(self) -> Tree:
        """Dyna-Q remembers nothing within an episode."""
        return ()

    def act(
        self, state: DynaQState, memory: Tree, observation: Array, key: Key, *, explore: bool
    ) -> tuple[Array, Tree]:
        return self.choose(self.values(state, observation), key, explore=explore), memory

    def values(self, state: DynaQState, observation: Array) -> Array:
        """What the Q-network gives for each action."""
        return self._value.apply(state.value, self.scale(observation))

    def choose(self, values: Array, key: Key, *, explore: bool) -> Array:
        """The greedy action, or now and then any."""
        greedy = jnp.argmax(values, axis=-1).astype(jnp.int32)
        if not explore:
            return greedy
        coin, lot = jax.random.uniform(key, (2, *greedy.shape))  # one draw: fewer kernels a step
        return jnp.where(coin < self.exploration, self.any_action(lot), greedy)

    def update(self, state: DynaQState, batches: Batch, key: Key) -> tuple[DynaQState, Metrics]:
        items = self._scale_items(batches.items)
        split = self.num_model_updates
        for_model = jax.tree.map(lambda x: x[:split], (items, batches.reward_known))
        state, model_metrics = in_turn(self._learn_model, state, for_model)
        observations = items.observation[split:]
        actions = self.any_action(jax.random.uniform(key, observations.shape[:2]))
        # Model and target network rest while the Q-network learns, so all targets are made at once.
        targets = self._targets(state, observations, actions)
        planned, plan_metrics = in_turn(self._plan, state, (observations, actions, targets))
        if self.planning_delay:
            is_ready = state.num_updates >= self.planning_delay
            planned = jax.tree.map(lambda new, old: jnp.where(is_ready, new, old), planned, state)
        num_updates = planned.num_updates + 1
        due = num_updates % self.target_period == 0
        target = follow(planned.value, planned.target, due)
        metrics = jax.tree.map(jnp.mean, model_metrics | plan_metrics)
        return planned._replace(target=target, num_updates=num_updates), metrics

    def predict(self, state: DynaQState, observation: Array, action: Array) -> Prediction:
        """What the model expects of an action, for maps and model errors."""
        successor, reward, logit = self._model(state.model, self.scale(observation), action)
        return Prediction(successor, reward, jax.nn.sigmoid(logit))

    def errors(self, state: DynaQState, batches: Batch) -> Array:
        """The model's loss on each sample alone, for samplers that ask what it has wrong."""
        loss = jax.vmap(jax.vmap(lambda *sample: self.model_loss(state.model, *sample)[0]))
        return loss(self._scale_items(batches.items), batches.reward_known)

    def scale(self, observation: Pictures) -> Pictures:
        """Observations in the units the networks see."""
        check_shape(observation, self.observation_shape, "agent", self.decoder)
        return see_through(IDENTITY if self.raw_inputs else self.scaling, observation)

    def _scale_items(self, items: Transition) -> Transition:
        before, after = self.scale(items.observation), self.scale(items.next_observation)
        return items._replace(observation=before, next_observation=after)

    def _learn_model(
        self, state: DynaQState, batch: tuple[Transition, Array]
    ) -> tuple[DynaQState, Metrics]:
        (_, metrics), gradient = jax.value_and_grad(self.model_loss, has_aux=True)(
            state.model, *batch
        )
        rates = self.model_learning_rate, self.adam_epsilon
        model, optimiser = descend(state.model, gradient, state.model_optimiser, *rates)
        return state._replace(model=model, model_optimiser=optimiser), metrics

    def model_loss(self, model: Tree, items: Transition, known: Array) -> tuple[Array, Metrics]:
        """The sum of the three losses; observations already scaled."""
        before, after = items.observation, items.next_observation
        pictures = None if self.direct_dynamics else self._pictures
        if pictures and pictures.decoder.compares(before, after):
            action = self.embed_action(items.action)
            missed, reward, logit = pictures.miss(model, before, after, action, items.terminated)
        else:
            successor, reward, logit = self._model(model, before, items.action)
            missed = dynamics_loss(successor, pixels_of(after), items.terminated)
        losses = {
            "dynamics_loss": missed,
            "reward_loss": reward_loss(reward, items.reward, known),
            "termination_loss": termination_loss(logit, items.terminated),
        }
        return sum(losses.values(), start=jnp.zeros(())), losses

    def _targets(self, state: DynaQState, observation: Array, action: Array) -> Array:
        successor, reward, logit = self._model(state.model, observation, action)
        next_values = self._value.apply(state.target, successor)
        return self.planning_target(reward, jax.nn.sigmoid(logit), next_values)

    def planning_target(self, reward: Array, termination: Array, next_values: Array) -> Array:
        """What planning teaches the Q-network.

        A smooth reward network pays a little all around a goal, where the sharper termination
        network sees no end: the best plan in such a model circles the goal for ever. Where only
        ends pay, `reward_at_end` closes that gap.
        """
        reward = jnp.where(self.reward_at_end, reward * termination, reward)
        return planning_target(reward, termination, next_values, self.discount)

    def _plan(
        self, state: DynaQState, batch: tuple[Array, Array, Array]
    ) -> tuple[DynaQState, Metrics]:
        observation, action, target = batch
        loss, gradient = jax.value_and_grad(
            lambda value: value_loss(self._value.apply(value, observation), action, target)
        )(state.value)
        rates = self.value_learning_rate, self.adam_epsilon
        value, optimiser = descend(state.value, gradient, state.value_optimiser, *rates)
        return state._replace(value=value, value_optimiser=optimiser), {"value_loss": loss}

    def _model(self, model: Tree, x: Array, action: Array) -> tuple[Array, Array, Array]:
        """Successor, reward and termination logit of scaled observations."""
        if self._pictures:
            change, reward, logit = self._pictures.apply(model, x, self.embed_action(action))
            return change if self.direct_dynamics else pixels_of(x) + change, reward, logit
        if self.stack_model:
            change, reward, logit = jax.vmap(self._apply_part, (0, None, None))(model, x, action)
        else:
            change, reward, logit = (self._apply_part(part, x, action) for part in model)
        change = change.reshape(x.shape)
        return change if self.direct_dynamics else x + change, reward[..., 0], logit[..., 0]

    def _init_model(self, keys: tuple[Key, Key, Key]) -> Tree:
        if self._pictures:
            return self._pictures.init(keys, self.observation_shape, self.action_size)
        parts = [self._init_part(key) for key in keys]
        return jax.tree.map(lambda *p: jnp.stack(p), *parts) if self.stack_model else tuple(parts)

    def _init_part(self, key: Key) -> Tree:
        key_encoder, key_head = jax.random.split(key)
        encoder, (encoded_size,) = self.encoder.init(key_encoder, self.observation_shape)
        head, _ = self._head.init(key_head, (encoded_size + self.action_size,))
        return encoder, head

    def _apply_part(self, part: Tree, x: Array, action: Array) -> Array:
        joined = [self.encoder.apply(part[0], x), self.embed_action(action)]
        return self._head.apply(part[1], jnp.concatenate(joined, axis=-1))

    def any_action(self, lot: Array) -> Array:
        """A uniform action from a lot in [0, 1)."""
        return (lot * self.num_actions).astype(jnp.int32)

    def embed_action(self, action: Array) -> Array:
        """The action as the model's networks see it."""
        if self.one_hot_action:
            return jax.nn.one_hot(action, self.num_actions)
        return (2 * action[..., None] / max(self.num_actions - 1, 1) - 1).astype(jnp.float32)

    @property
    def action_size(self) -> int:
        """Numbers that `embed_action` gives."""
        return self.num_actions if self.one_hot_action else 1

    @property
    def _head(self) -> Network:
        # The three parts share one width so that they stack; reward and termination read entry 0.
        return Chain((self.head, linear(prod(self.observation_shape), self.output_init)))

    @property
    def _pictures(self) -> PictureModel | None:
        if self.decoder is None:
            return None
        parts = self.encoder, self.decoder, self.head
        return PictureModel(*parts, self.output_init, self.stack_model)

    @property
    def _value(self) -> Network:
        return Chain((self.value, linear(self.num_actions, self.output_init)))
