"""What every LoCA world shares: the task as data, rewards, time limit and auto-reset.

Invariant: a phase changes only the `Task`, never the dynamics; whoever switches the phase
passes other data into the same compiled code.
A *physical* state is what the dynamics need (a pytree of arrays), a *code* is the small array
that a world emits and a buffer stores, an *observation* is what an agent sees of a code.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.types import Array, Key, TimeStep, Tree

TASK_REWARDS = ((4.0, 2.0), (1.0, 2.0))  # (T1, T2) in phase 1 (task A) and phase 2 (task B)


class Task(NamedTuple):
    """What a phase may change: the two rewards and the start distribution."""

    reward_t1: Array  # [] float32
    reward_t2: Array  # [] float32
    start: Tree  # describes the start distribution in the world's own terms


class State(NamedTuple):
    """A running episode."""

    physical: Tree  # what the dynamics need
    time: Array  # [] int32, steps so far in the episode


class Chart(NamedTuple):
    """A map of the world: cells, row by row, and what to ask of a model in each of them."""

    shape: tuple[int, int]
    extent: tuple[float, float, float, float]  # left, right, bottom, top of the drawing
    axes: tuple[str, str]  # what runs across, what runs up
    states: Tree  # physical, leaves [cells * looks]
    actions: Array  # [cells * looks] int32, or [cells * looks, action_size] float32
    weight: float  # of each look in the cell's sum
    blank: Array  # [cells] bool, terminal cells, where nothing can be asked


@dataclass(frozen=True)
class Spec:
    """What buffers and agents must know of a world to be built for it."""

    name: str
    code_shape: tuple[int, ...]  # what the world emits and buffers store
    code_dtype: np.dtype[Any]
    observation_shape: tuple[int, ...]  # what agents see
    observation_dtype: np.dtype[Any]
    observation_low: tuple[float, ...] | None  # for scaling to ±1; None: needs no scaling
    observation_high: tuple[float, ...] | None
    num_actions: int  # 0: actions are not listed but vectors
    time_limit: int
    discount: float
    action_size: int = 0  # of an action vector, each number in [-1, 1]; 0: actions are listed


class Environment(Protocol):
    """A LoCA world as experiments and agents' tests use it."""

    @property
    def pure(self) -> bool:
        """Whether `reset` and `step` may be traced by jit, scan and vmap."""

    @property
    def ends_at_goals(self) -> bool:
        """Whether reaching T1 or T2 terminates an episode."""

    @property
    def spec(self) -> Spec: ...

    def reset(self, task: Task, key: Key) -> tuple[State, Array]: ...

    def step(self, task: Task, state: State, action: Array, key: Key) -> tuple[State, TimeStep]: ...

    def proceed(
        self, task: Task, state: State, action: Array, key: Key
    ) -> tuple[State, TimeStep]: ...

    def train_task(self, phase: int) -> Task: ...

    def evaluation_task(self, phase: int) -> Task: ...

    def starts(self, task: Task) -> Task | None: ...

    def advance(self, physical: Tree, action: Array) -> tuple[Tree, Array, Array]: ...

    def pay(self, task: Task, at_t1: Array, at_t2: Array) -> Array: ...

    def most_at_t1(self) -> tuple[Array, Array]: ...

    def random_action(self, key: Key) -> Array: ...

    def probe_actions(self) -> Array: ...

    def in_t1_zone(self, physical: Tree) -> Array: ...

    def encode(self, physical: Tree) -> Array: ...

    def decode(self, code: Array) -> Array: ...

    def probe_states(self) -> Tree: ...

    def codes(self) -> Array | None: ...

    def chart(self) -> Chart: ...

    def cell(self, code: Array) -> Array: ...


class World(ABC):
    """Makes an environment of pure dynamics; rewards, time limit and auto-reset live here, once."""

    pure: ClassVar[bool] = True
    ends_at_goals: ClassVar[bool] = True

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """What buffers and agents must know."""

    @abstractmethod
    def train_start(self, phase: int) -> Tree:
        """The start distribution of training: broad in phase 1, the T1-zone in phase 2."""

    @abstractmethod
    def evaluation_start(self) -> Tree:
        """The start distribution of evaluation, the same in both phases."""

    @abstractmethod
    def draw_start(self, start: Tree, key: Key) -> Tree:
        """Draws a non-terminal physical state from a start distribution."""

    @abstractmethod
    def advance(self, physical: Tree, action: Array) -> tuple[Tree, Array, Array]:
        """The dynamics alone: (next physical state, reached T1, reached T2).

        Reached or not is a bool; a world whose action lasts several inner steps gives the number
        of them spent there, and `pay` says what they are worth.
        """

    @abstractmethod
    def in_t1_zone(self, physical: Tree) -> Array:
        """Whether a state lies in the zone around T1 that can be entered but not left."""

    @abstractmethod
    def encode(self, physical: Tree) -> Array:
        """The code of a physical state, over any leading axes."""

    @abstractmethod
    def decode(self, code: Array) -> Array:
        """The observation of a code, over any leading axes."""

    @abstractmethod
    def probe_states(self) -> Tree:
        """Non-terminal physical states [P] that cover the world, to check learned models on."""

    @abstractmethod
    def chart(self) -> Chart:
        """The map on which coverage and predicted rewards are drawn."""

    @abstractmethod
    def cell(self, code: Array) -> Array:
        """The chart's cell of a code, over any leading axes."""

    def pay(self, task: Task, at_t1: Array, at_t2: Array) -> Array:
        """The reward of a step that reached T1 or T2 or neither."""
        return jnp.where(at_t1, task.reward_t1, jnp.where(at_t2, task.reward_t2, 0.0))

    def most_at_t1(self) -> tuple[Array, Array]:
        """What `advance` says of an action that reached T1 as much as one can, for `pay`."""
        return jnp.ones((), bool), jnp.zeros((), bool)

    def random_action(self, key: Key) -> Array:
        """A uniformly random action."""
        spec = self.spec
        if spec.action_size:
            return jax.random.uniform(key, (spec.action_size,), jnp.float32, -1.0, 1.0)
        return jax.random.randint(key, (), 0, spec.num_actions, jnp.int32)

    def probe_actions(self) -> Array:
        """Actions [A, ...] to check dynamics and models under: all that are listed, or corners."""
        spec = self.spec
        if not spec.action_size:
            return jnp.arange(spec.num_actions)
        axes = [jnp.array([-1.0, 0.0, 1.0], jnp.float32)] * spec.action_size
        return jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, spec.action_size)

    def codes(self) -> Array | None:
        """Every code in order, where a code is its own row number; None if there are too many."""
        return None

    def disturb(self, action: Array, key: Key) -> Array:
        """The action that reaches the dynamics; a noisy world overrides this."""
        del key
        return action

    def starts(self, task: Task) -> Task | None:
        """One task per possible start, batched [n], or None where the starts cannot be listed."""
        del task
        return None

    def train_task(self, phase: int) -> Task:
        """The task trained on in a phase."""
        return _task(phase, self.train_start(check_phase(phase)))

    def evaluation_task(self, phase: int) -> Task:
        """The task evaluated on in a phase."""
        return _task(phase, self.evaluation_start())

    def reset(self, task: Task, key: Key) -> tuple[State, Array]:
        """Begins an episode: its state and the code to act on first."""
        state = State(self.draw_start(task.start, key), jnp.zeros((), jnp.int32))
        return state, self.encode(state.physical)

    def proceed(self, task: Task, state: State, action: Array, key: Key) -> tuple[State, TimeStep]:
        """Acts once and leaves an ended episode where it ended."""
        physical, at_t1, at_t2 = self.advance(state.physical, self.disturb(action, key))
        going = State(physical, state.time + 1)
        terminated = at_t1 | at_t2 if self.ends_at_goals else jnp.zeros((), bool)
        truncated = (going.time >= self.spec.time_limit) & ~terminated
        reward = self.pay(task, at_t1, at_t2)
        code = self.encode(physical)
        return going, TimeStep(code, code, reward, terminated, truncated)

    def step(self, task: Task, state: State, action: Array, key: Key) -> tuple[State, TimeStep]:
        """Acts once; where the episode ends, the returned state is already a fresh start."""
        key_act, key_start = jax.random.split(key)
        going, answer = self.proceed(task, state, action, key_act)
        fresh, code = self.reset(task, key_start)
        ended = answer.terminated | answer.truncated
        # a select, not a cond: under vmap both sides run anyway
        following, observation = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), (fresh, code), (going, answer.successor)
        )
        return following, answer._replace(observation=observation)


def check_phase(phase: int) -> int:
    """The phase itself, if there is such a one."""
    if phase not in (1, 2):
        raise ValueError(f"phase must be 1 or 2, got {phase!r}")
    return phase


def check_horizon(time_limit: int, discount: float) -> None:
    """Refuses a time limit or discount under which no episode makes sense."""
    if time_limit < 1:
        raise ValueError(f"time_limit must be at least 1, got {time_limit}")
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"discount must lie in (0, 1], got {discount}")


def _task(phase: int, start: Tree) -> Task:
    reward_t1, reward_t2 = TASK_REWARDS[check_phase(phase) - 1]
    return Task(jnp.float32(reward_t1), jnp.float32(reward_t2), start)
