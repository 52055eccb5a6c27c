"""PlaNet: a world model, and a planner that acts by searching for the best actions inside it.

There is no policy and no value: every step is planned anew from what has been seen so far.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from lofo_rl.agents.base import Appetite
from lofo_rl.agents.cem import CEM
from lofo_rl.agents.descent import descend, remember
from lofo_rl.agents.losses import HingedKL
from lofo_rl.agents.world_model import Memory, WorldModel, WorldModelParams
from lofo_rl.networks import CNN, MLP, RSSM, Gaussian, RSSMState, TransposedCNN
from lofo_rl.networks.ahead import Departure, read
from lofo_rl.types import Array, Batch, Key, Metrics, Tree

PLANET_MODEL = WorldModel(
    encoder=CNN((32, 64, 128, 256), (4,) * 4, (2,) * 4, "relu", "glorot"),
    decoder=TransposedCNN((128, 64, 32, 3), (5, 5, 6, 6), (2,) * 4, "relu", "glorot"),
    canvas_size=1024,
    rssm=RSSM(Gaussian(30, min_std=0.1), activation="relu", layer_norm=False),
    reward_head=MLP((300,) * 3, "relu", "glorot"),
    divergence=HingedKL(free=3.0),
    reward_weight=10.0,
    num_bits=5,
)


class PlaNetState(NamedTuple):
    """All that learning changes."""

    model: WorldModelParams
    optimiser: Tree
    num_updates: Array  # [] int32


@dataclass(frozen=True)
class PlaNet:
    """PlaNet as the paper runs it: its authors' settings, with the learning rate LoFo found."""

    model: WorldModel = PLANET_MODEL
    planner: CEM = CEM()  # noqa: RUF009 (frozen)
    learning_rate: float = 3e-4
    adam_epsilon: float = 1e-4
    gradient_clip: float = 1000.0  # of the global norm
    exploration: float = 0.3  # standard deviation of the noise on training actions
    batch_size: int = 50
    window: int = 50
    num_rest_steps: int = 5  # pictures in a row that a probe of the rewards begins with

    def __post_init__(self) -> None:
        for name in ("batch_size", "window", "num_rest_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if isinstance(self.exploration, int | float) and self.exploration < 0:
            raise ValueError(f"exploration must not be negative, got {self.exploration}")

    @classmethod
    def small(
        cls, observation_shape: tuple[int, ...] = (64, 64, 3), action_size: int = 2, **changes: Any
    ) -> Self:
        """Networks and plans for a CPU; pictures of another side want other kernels."""
        model = replace(
            PLANET_MODEL,
            observation_shape=observation_shape,
            action_size=action_size,
            encoder=CNN((8, 16, 32, 64), (4,) * 4, (2,) * 4, "relu", "glorot"),
            decoder=TransposedCNN(
                (32, 16, 8, observation_shape[-1]), (5, 5, 6, 6), (2,) * 4, "relu", "glorot"
            ),
            canvas_size=256,
            rssm=replace(PLANET_MODEL.rssm, deterministic_size=64, hidden_size=64),
            reward_head=MLP((64, 64), "relu", "glorot"),
        )
        planner = CEM(num_iterations=5, num_candidates=200, num_elites=20)
        return replace(cls(model, planner, learning_rate=1e-3, batch_size=16), **changes)

    @property
    def appetite(self) -> Appetite:
        return Appetite(1, self.batch_size, self.window)

    def init(self, key: Key) -> PlaNetState:
        model = self.model.init(key)
        return PlaNetState(model, remember(model), jnp.zeros((), jnp.int32))

    def begin(self) -> Memory:
        """Nothing seen, nothing done."""
        return self.model.begin()

    def ready(self, state: PlaNetState) -> PlaNetState:
        """What acts as the state does, its weights cast once for many steps."""
        return state._replace(model=self.model.ready(state.model))

    def act(
        self, state: PlaNetState, memory: Memory, observation: Array, key: Key, *, explore: bool
    ) -> tuple[Array, Memory]:
        key_observe, key_plan, key_noise = jax.random.split(key, 3)
        seen = self.model.observe(
            state.model, memory.state, memory.action, observation, memory.is_first, key_observe
        )
        action = self.plan(state, seen, key_plan)
        if explore:
            noise = jax.random.normal(key_noise, action.shape)
            action = jnp.clip(action + self.exploration * noise, -1, 1)
        return action, Memory(seen, action, jnp.zeros((), bool))

    def plan(self, state: PlaNetState, seen: RSSMState, key: Key) -> Array:
        """The first of the actions that the model believes to earn most."""
        # here once, or every iteration would lay out all weights again
        ready = self.model.ahead(state.model)
        begun = self.model.rssm.depart(ready.rssm, seen)
        shape = self.planner.horizon, self.planner.num_candidates
        found = self.planner.plan(
            partial(self._promised, ready, begun),
            self.model.action_size,
            key,
            lambda key: self.model.rssm.latent.noise(key, shape),
        )
        return found.mean[0]

    def imagined_returns(
        self, state: PlaNetState, seen: RSSMState, actions: Array, key: Key
    ) -> Array:
        """The sums [K] of the rewards expected of sequences of actions [K, H, A]."""
        ready = self.model.ahead(state.model)
        begun = self.model.rssm.depart(ready.rssm, seen)
        noise = self.model.rssm.latent.noise(key, actions.shape[1::-1])
        return self._promised(ready, begun, actions, noise)

    def _promised(
        self, ready: WorldModelParams, begun: Departure, actions: Array, noise: Array
    ) -> Array:
        in_turn = jnp.moveaxis(actions, 1, 0)
        rows = self.model.rssm.imagine_rows(ready.rssm, begun, in_turn, noise)
        # rewards do not feed back, so the head sees all steps at once: few, large products
        hidden = read(self.model.reward_head, ready.reward, rows).astype(jnp.float32)
        (out,) = ready.reward_out
        return jnp.sum(hidden * out["weight"][:, 0], axis=(0, 2)) + len(rows) * out["bias"]

    def update(self, state: PlaNetState, batches: Batch, key: Key) -> tuple[PlaNetState, Metrics]:
        items, known = jax.tree.map(lambda x: x[0], (batches.items, batches.reward_known))
        self.model.check_actions(items)
        learn = jax.grad(self.model.loss, has_aux=True)
        gradient, (_, metrics) = learn(state.model, items, known, key)
        rates = self.learning_rate, self.adam_epsilon, self.gradient_clip
        model, optimiser = descend(state.model, gradient, state.optimiser, *rates)
        return PlaNetState(model, optimiser, state.num_updates + 1), metrics

    def predict_reward(
        self, state: PlaNetState, observations: Array, actions: Array, key: Key
    ) -> Array:
        """The rewards [M] expected of actions [M, A] after resting before pictures [M, ...]."""
        key_rest, key_imagine = jax.random.split(key)
        seen = self.model.rest(state.model, observations, self.num_rest_steps, key_rest)
        arrived = self.model.imagine(state.model, seen, actions, key_imagine)
        return self.model.reward(state.model, self.model.features(arrived))
