"""Deep Dyna-Q with its gradient steps in hand-written kernels: the same updates, many times faster.

The learner's state enters the form the kernels want before a stretch of training and leaves it
afterwards, so records, checkpoints and evaluation know nothing of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.agents.base import Appetite
from lofo_rl.agents.dyna_q import DynaQ, DynaQState
from lofo_rl.networks import MLP
from lofo_rl.networks.onchip import Adam, Dense, Layer, Lessons
from lofo_rl.types import Array, Batch, Key, Metrics, Transition, Tree

WIDEST = 128  # units of a layer, and samples of a batch, that one program can hold
PARTS = 3  # dynamics, reward, termination


class Boarded(NamedTuple):
    """`DynaQState` as the kernels want it."""

    model: Adam  # leaves [3, ...]
    value: Adam
    target: Array  # [words]
    num_updates: Array  # [] int32


@dataclass(frozen=True)
class DynaQOnChip:
    """Acts and learns as its agent does."""

    agent: DynaQ
    interpret: bool = False

    @staticmethod
    def fits(agent: DynaQ) -> bool:
        """Whether the kernels know the agent's networks: small vectors, tanh, parts that stack."""
        parts = agent.encoder, agent.head, agent.value
        if not all(isinstance(p, MLP) and p.sizes and p.activation == "tanh" for p in parts):
            return False
        if len(agent.observation_shape) != 1 or not agent.stack_model:
            return False
        chip = DynaQOnChip(agent)
        sizes = [
            size for net in (chip._model, chip._value) for shape in net.shapes for size in shape
        ]
        return max(*sizes, agent.batch_size) <= WIDEST

    @property
    def appetite(self) -> Appetite:
        return self.agent.appetite

    def begin(self) -> Tree:
        return self.agent.begin()

    def enter(self, state: DynaQState) -> Boarded:
        """The state in the kernels' form."""
        model = jax.vmap(lambda part: self._model.pack(_layers(part)))
        value = lambda params: self._value.pack(_layers(params))  # noqa: E731
        of_model, of_value = state.model_optimiser[0], state.value_optimiser[0]
        num_steps = jnp.broadcast_to(of_model.count, (PARTS,))
        return Boarded(
            model=Adam(num_steps, *map(model, (state.model, of_model.mu, of_model.nu))),
            value=Adam(of_value.count, *map(value, (state.value, of_value.mu, of_value.nu))),
            target=value(state.target),
            num_updates=state.num_updates,
        )

    def leave(self, boarded: Boarded) -> DynaQState:
        """The state as records and evaluation know it."""
        like = jax.eval_shape(self.agent.init, jax.random.PRNGKey(0))

        def model(words: Array) -> Tree:
            return _refill(like.model, jax.vmap(self._model.unpack)(words))

        def value(words: Array) -> Tree:
            return _refill(like.value, self._value.unpack(words))

        def optimiser(
            old: Tree, adam: Adam, num_steps: Array, unpack: Callable[[Array], Tree]
        ) -> Tree:
            mean, square = unpack(adam.mean), unpack(adam.square)
            return (old[0]._replace(count=num_steps, mu=mean, nu=square), *old[1:])

        steps = boarded.model.num_steps[0]  # the three parts keep step
        return DynaQState(
            model=model(boarded.model.values),
            value=value(boarded.value.values),
            target=value(boarded.target),
            model_optimiser=optimiser(like.model_optimiser, boarded.model, steps, model),
            value_optimiser=optimiser(
                like.value_optimiser, boarded.value, boarded.value.num_steps, value
            ),
            num_updates=boarded.num_updates,
        )

    def act(
        self, state: Boarded, memory: Tree, observation: Array, key: Key, *, explore: bool
    ) -> tuple[Array, Tree]:
        scaled = self.agent.scale(observation)
        values = self._value.apply(state.value.values, scaled[None])[0]
        return self.agent.choose(values, key, explore=explore), memory

    def update(self, state: Boarded, batches: Batch, key: Key) -> tuple[Boarded, Metrics]:
        agent = self.agent
        items: Transition = batches.items
        split = agent.num_model_updates
        x = agent.scale(items.observation)
        lessons = self._model_lessons(jax.tree.map(lambda b: b[:split], batches), x[:split])
        model, losses = jax.vmap(
            lambda adam, *own: self._model.train(
                adam,
                lessons._replace(targets=own[0], weights=own[1], is_logit=own[2]),
                learning_rate=agent.model_learning_rate,
                epsilon=agent.adam_epsilon,
            )
        )(state.model, lessons.targets, lessons.weights, lessons.is_logit)
        planned, value_losses = self._plan(state, model, x[split:], key)
        if agent.planning_delay:
            is_ready = state.num_updates >= agent.planning_delay
            planned = jax.tree.map(lambda n, o: jnp.where(is_ready, n, o), planned, state.value)
        num_updates = state.num_updates + 1
        due = num_updates % agent.target_period == 0
        target = jnp.where(due, planned.values, state.target)
        names = "dynamics_loss", "reward_loss", "termination_loss"
        metrics = dict(zip(names, losses.mean(-1), strict=True))
        metrics |= {"value_loss": value_losses.mean()}
        return Boarded(model, planned, target, num_updates), metrics

    def errors(self, state: Boarded, batches: Batch) -> Array:
        """The model's loss on each sample alone, for samplers that ask what it has wrong."""
        lessons = self._model_lessons(batches, self.agent.scale(batches.items.observation))
        outputs = self._predict(
            state.model, lessons.inputs, self.agent.embed_action(batches.items.action)
        )
        is_logit = lessons.is_logit[:, None, None, None]
        halves = 0.5 * (outputs - lessons.targets) ** 2
        logits = jax.nn.softplus(outputs) - lessons.targets * outputs
        return (jnp.where(is_logit, logits, halves) * lessons.weights).sum((0, -1))

    def _predict(self, model: Adam, x: Array, actions: Array) -> Array:
        """What the three parts say [3, U, B, D] of scaled observations and embedded actions."""
        apply = jax.vmap(jax.vmap(self._model.apply, (None, 0, 0)), (0, None, None))
        return apply(model.values, x, actions)

    def _model_lessons(self, batches: Batch, x: Array) -> Lessons:
        """For the three parts: leaves [3, U, B, ...] where they differ."""
        agent, items = self.agent, batches.items
        successor = agent.scale(items.next_observation)
        first = jnp.arange(x.shape[-1]) == 0  # reward and termination read this output alone
        spread = lambda values: jnp.where(first, values[..., None], 0.0)  # noqa: E731
        one = jnp.ones_like(items.reward)
        goes_on = jnp.broadcast_to(~items.terminated[..., None], x.shape)
        targets = [
            successor if agent.direct_dynamics else successor - x,
            spread(items.reward),
            spread(items.terminated.astype(jnp.float32)),
        ]
        weights = [
            goes_on.astype(jnp.float32),
            spread(batches.reward_known.astype(jnp.float32)),
            spread(one),
        ]
        return Lessons(
            inputs=x,
            joined=agent.embed_action(items.action),
            targets=jnp.stack(targets),
            weights=jnp.stack(weights),
            is_logit=jnp.array([False, False, True]),
        )

    def _plan(self, state: Boarded, model: Adam, x: Array, key: Key) -> tuple[Adam, Array]:
        agent = self.agent
        actions = agent.any_action(jax.random.uniform(key, x.shape[:2]))
        change, reward, logit = self._predict(model, x, agent.embed_action(actions))
        successor = change if agent.direct_dynamics else x + change
        next_values = jax.vmap(self._value.apply, (None, 0))(state.target, successor)
        termination = jax.nn.sigmoid(logit[..., 0])
        target = agent.planning_target(reward[..., 0], termination, next_values)
        lessons = Lessons(
            inputs=x,
            joined=None,
            targets=jnp.broadcast_to(target[..., None], next_values.shape),
            weights=jax.nn.one_hot(actions, agent.num_actions),
            is_logit=jnp.zeros((), bool),
        )
        return self._value.train(
            state.value,
            lessons,
            learning_rate=agent.value_learning_rate,
            epsilon=agent.adam_epsilon,
        )

    @property
    def _model(self) -> Dense:
        agent = self.agent
        assert isinstance(agent.encoder, MLP) and isinstance(agent.head, MLP)
        (num_inputs,) = agent.observation_shape
        encoder = (num_inputs, *agent.encoder.sizes)
        head = (encoder[-1] + agent.action_size, *agent.head.sizes, num_inputs)
        join = len(agent.encoder.sizes) - 1
        return Dense(_fans(encoder) + _fans(head), join, self.interpret)

    @property
    def _value(self) -> Dense:
        agent = self.agent
        assert isinstance(agent.value, MLP)
        sizes = (*agent.observation_shape, *agent.value.sizes, agent.num_actions)
        return Dense(_fans(sizes), None, self.interpret)


def _fans(sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(sizes))


def _layers(params: Tree) -> list[Layer]:
    """The layers of nested chains, in order."""
    if isinstance(params, dict):
        return [params]
    return [layer for part in params for layer in _layers(part)]


def _refill(like: Tree, layers: list[Layer]) -> Tree:
    """The layers in the structure of nested chains."""
    leaves = [leaf for layer in layers for leaf in jax.tree.leaves(layer)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
