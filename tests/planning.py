"""Value iteration on the true dynamics: the optima that a world's numbers are held against."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments import Car, MiniGrid, MountainCar, Task, World
from lofo_rl.environments.mountaincar import HIGH, LOW

Policy = Callable[[Any, jax.Array], jax.Array]  # (what was planned, code) -> action


class Score(NamedTuple):
    """How the first episode of each rollout went."""

    returns: jax.Array  # [n] discounted
    steps: jax.Array  # [n] until the end
    terminated: jax.Array  # [n] bool, reached T1 or T2


def grid_values(
    world: MiniGrid, task: Task, values: np.ndarray | None = None, sweeps: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """Optimal values [codes] and action values [codes, actions] of MiniGridLoCA, exactly.

    Or what so many sweeps make of the values given.
    """
    codes, actions = jnp.arange(world.num_codes), jnp.arange(3)
    over_actions = jax.vmap(world.advance, in_axes=(None, 0))
    pose, at_t1, at_t2 = jax.vmap(over_actions, in_axes=(0, None))(world.pose(codes), actions)
    successor = np.asarray(world.encode(pose))
    paid = np.asarray(at_t1) * float(task.reward_t1) + np.asarray(at_t2) * float(task.reward_t2)
    goes_on = ~np.asarray(at_t1 | at_t2)
    values = np.zeros(world.num_codes) if values is None else values
    for _ in range(sweeps):  # no shortest way is as long as 200
        action_values = paid + world.discount * goes_on * values[successor]
        values = action_values.max(axis=1)
    return values, action_values


class Lattice(NamedTuple):
    """Values of MountainCarLoCA at the nodes of a grid, read between them bilinearly."""

    values: jax.Array  # [positions, velocities]

    def read(self, car: Car) -> jax.Array:
        """The value of any car."""
        row, row_part = _fraction(car.position, LOW[0], HIGH[0], self.values.shape[0])
        column, column_part = _fraction(car.velocity, LOW[1], HIGH[1], self.values.shape[1])
        low = _mix(self.values[row, column], self.values[row, column + 1], column_part)
        high = _mix(self.values[row + 1, column], self.values[row + 1, column + 1], column_part)
        return _mix(low, high, row_part)


@partial(jax.jit, static_argnums=(0, 2, 3))
def lattice_values(world: MountainCar, task: Task, shape: tuple[int, int], sweeps: int) -> Lattice:
    """Optimal values of MountainCarLoCA; nodes inside T1 or T2 are treated like any other.

    So the values run smoothly into the goals, and reading beside a goal's rim is not off.
    """
    axes = (jnp.linspace(*ends) for ends in zip(LOW, HIGH, shape, strict=True))
    nodes = Car(*jnp.meshgrid(*axes, indexing="ij"))

    def sweep(_: int, lattice: Lattice) -> Lattice:
        return Lattice(_lookahead(world, task, lattice, nodes, 1).max(axis=0))

    return jax.lax.fori_loop(0, sweeps, sweep, Lattice(jnp.zeros(shape)))


def lookahead_policy(world: MountainCar, depth: int) -> Policy:
    """Greedy for a planned (task, lattice), trying all sequences of `depth` actions."""

    def policy(plan: tuple[Task, Lattice], code: jax.Array) -> jax.Array:
        return _lookahead(world, *plan, Car(code[0], code[1]), depth).argmax()

    return policy


@partial(jax.jit, static_argnums=(0, 1))
def play(world: World, policy: Policy, plan: Any, tasks: Task, key: jax.Array) -> Score:
    """Plays one episode of each task, tasks batched [n], in the real, compiled world."""

    def act(carry: tuple, key: jax.Array, task: Task) -> tuple[tuple, tuple]:
        state, code, going = carry
        state, timestep = world.step(task, state, policy(plan, code), key)
        ended = timestep.terminated | timestep.truncated
        shown = going * timestep.reward, going, going & timestep.terminated
        return (state, timestep.observation, going & ~ended), shown

    def episode(task: Task, key: jax.Array) -> Score:
        key_start, key_steps = jax.random.split(key)
        begin = *world.reset(task, key_start), jnp.bool_(True)
        keys = jax.random.split(key_steps, world.spec.time_limit)
        _, shown = jax.lax.scan(lambda carry, key: act(carry, key, task), begin, keys)
        rewards, going, terminated = shown
        discounts = world.spec.discount ** jnp.arange(world.spec.time_limit)
        return Score((rewards * discounts).sum(), going.sum(), terminated.any())

    return jax.vmap(episode)(tasks, jax.random.split(key, len(tasks.reward_t1)))


def _lookahead(world: MountainCar, task: Task, lattice: Lattice, car: Car, depth: int) -> jax.Array:
    """Action values [actions, ...] of one or many cars."""

    def value(action: int) -> jax.Array:
        after, at_t1, at_t2 = world.advance(car, jnp.int32(action))
        paid = jnp.where(at_t1, task.reward_t1, jnp.where(at_t2, task.reward_t2, 0.0))
        deeper = (
            lattice.read(after)
            if depth == 1
            else _lookahead(world, task, lattice, after, depth - 1).max(axis=0)
        )
        return paid + jnp.where(at_t1 | at_t2, 0.0, world.discount * deeper)

    return jnp.stack([value(action) for action in range(3)])


def _fraction(x: jax.Array, low: float, high: float, num: int) -> tuple[jax.Array, jax.Array]:
    """The node below, and how far on the way to the next."""
    place = (x - low) / (high - low) * (num - 1)
    node = jnp.clip(jnp.floor(place), 0, num - 2).astype(jnp.int32)
    return node, place - node


def _mix(low: jax.Array, high: jax.Array, part: jax.Array) -> jax.Array:
    return low + part * (high - low)
