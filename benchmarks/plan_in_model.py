"""Plans exactly in the models that MountainCar runs have learned: how far would they get without a Q-network?

    python benchmarks/plan_in_model.py RUN_FOLDER [--phase 2]

For every run and seed of the folder's checkpoint, which was saved in that phase. Value iteration on a fine grid over the model's own predictions, with the reward as predicted and with
the reward counted only as far as the model predicts an end. The plan and the run's Q-network are then
rolled out in the true world from the same starts. A plan worth more than the true optimum is a plan
that the model's errors pay for.
"""

import argparse
import itertools
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.mountaincar import HIGH, LOW, Car
from lofo_rl.experiments import checkpoint, find

GRID = (171, 141)  # positions, velocities
SWEEPS_OF_VALUES = 2000  # 0.99 ** 2000 is 2e-9
NUM_EPISODES = 20
NOTHING = dict.fromkeys(("target", "model_optimiser", "value_optimiser", "num_updates"), ())


def load(folder: Path):
    """Every run of the folder: its experiment, its seed and its learner, as far as it predicts and acts."""
    with np.load(folder / checkpoint.CHECKPOINT, allow_pickle=False) as file:
        settings = json.loads(bytes(file[checkpoint.MANIFEST]))["configuration"]
        experiments = [find(s["id"]) for s in settings]
        outline = jax.eval_shape(experiments[0].agent.init, jax.random.PRNGKey(0))
        parts = {name: read(file, name, getattr(outline, name)) for name in ("model", "value")}
    seeds = settings[0]["seeds"]
    for k, experiment in enumerate(experiments):
        for i, seed in enumerate(seeds):
            run = k * len(seeds) + i
            own = jax.tree.map(lambda x, run=run: jnp.asarray(x[run]), parts)
            yield experiment, seed, outline._replace(**own, **NOTHING)


def read(file, name, like):
    """A part of all agents, leaves [R, ...]."""
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    words = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    return jax.tree.unflatten(tree, [file[f"agents/{name}/{word}"] for word in words])


class Lattice:
    """Values at the points of a grid, and between them."""

    def __init__(self) -> None:
        axes = [
            np.linspace(*ends, n) for ends, n in zip(zip(LOW, HIGH, strict=True), GRID, strict=True)
        ]
        self.points = (
            np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2).astype(np.float32)
        )

    def between(self, states):
        """Corner indices and weights of bilinear interpolation."""
        low, high, size = np.array(LOW), np.array(HIGH), np.array(GRID)
        at = (np.clip(states, low, high) - low) / (high - low) * (size - 1)
        corner = np.minimum(at.astype(int), size - 2)
        return corner, at - corner

    def read(self, values, where):
        corner, rest = where
        total = 0.0
        for dx in (0, 1):
            for dv in (0, 1):
                weight = np.abs(1 - dx - rest[:, 0]) * np.abs(1 - dv - rest[:, 1])
                total = total + weight * values[corner[:, 0] + dx, corner[:, 1] + dv]
        return total


@partial(jax.jit, static_argnums=0)
def _predict(agent, learner, states, actions):
    return agent.predict(learner, states, actions)


@partial(jax.jit, static_argnums=0)
def _act(agent, learner, states):
    return agent.act(learner, (), states, None, explore=False)[0]


def look_ahead(agent, learner, states, *, reward_at_end):
    """For each action: predicted reward, chance to go on, successor in the world's units."""
    low, high = np.array(LOW), np.array(HIGH)
    for action in range(agent.num_actions):
        said = _predict(agent, learner, jnp.asarray(states), jnp.full(len(states), action))
        reward, end = np.asarray(said.reward), np.asarray(said.termination)
        successor = (np.asarray(said.successor) * (high - low) + low + high) / 2
        yield reward * end if reward_at_end else reward, 1 - end, successor


def plan(agent, learner, lattice, *, reward_at_end):
    """The values of the best plan in the model, by value iteration."""
    ahead = look_ahead(agent, learner, lattice.points, reward_at_end=reward_at_end)
    rewards, goes_on, successors = (np.stack(part) for part in zip(*ahead, strict=True))
    corner, rest = lattice.between(successors)
    steps = list(itertools.product((0, 1), repeat=2))
    weights = np.stack([np.abs(1 - np.array(d) - rest).prod(-1) for d in steps])
    places = np.stack([(corner + np.array(d)) @ np.array([GRID[1], 1]) for d in steps])
    return np.asarray(_iterate(rewards, agent.discount * goes_on, weights, places)).reshape(GRID)


@jax.jit
def _iterate(rewards, discounts, weights, places):
    def sweep(_, values):
        return (rewards + discounts * (weights * values[places]).sum(0)).max(0)

    return jax.lax.fori_loop(0, SWEEPS_OF_VALUES, sweep, jnp.zeros(rewards.shape[1]))


def roll_out(environment, task, choose):
    """Mean return from the evaluation's starts."""
    rng = np.random.default_rng(0)
    start = task.start
    states = rng.uniform(start.low, start.high, (NUM_EPISODES, 2)).astype(np.float32)
    advance = jax.jit(jax.vmap(environment.advance))
    returns, goes_on = np.zeros(NUM_EPISODES), np.ones(NUM_EPISODES, bool)
    for time in range(environment.spec.time_limit):
        car, at_t1, at_t2 = advance(Car(states[:, 0], states[:, 1]), jnp.asarray(choose(states)))
        for at, reward in ((at_t1, task.reward_t1), (at_t2, task.reward_t2)):
            now = np.asarray(at) & goes_on
            returns[now] = environment.spec.discount**time * float(reward)
            goes_on &= ~now
        states = np.stack([car.position, car.velocity], -1)
    return float(returns.mean())


def judge(experiment, learner, lattice, phase: int) -> list[float]:
    """The Q-network's true return; then of both plans what they promise at the start, and what is true."""
    agent, environment = experiment.agent, experiment.environment
    task = environment.evaluation_task(phase)
    middle = np.array([[-0.15, 0.0]], np.float32)

    def of_network(states):
        return np.asarray(_act(agent, learner, jnp.asarray(states)))

    told = [roll_out(environment, task, of_network)]
    for reward_at_end in (False, True):
        values = plan(agent, learner, lattice, reward_at_end=reward_at_end)

        def of_plan(states, values=values, reward_at_end=reward_at_end):
            options = [
                r + agent.discount * on * lattice.read(values, lattice.between(to))
                for r, on, to in look_ahead(agent, learner, states, reward_at_end=reward_at_end)
            ]
            return np.argmax(options, axis=0).astype(np.int32)

        promised = lattice.read(values, lattice.between(middle))[0]
        told += [float(promised), roll_out(environment, task, of_plan)]
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--phase", type=int, default=2)
    arguments = parser.parse_args()
    lattice, found = Lattice(), {}
    print("Q-network | exact plan: promised, true | exact plan, reward at the end: promised, true")
    line = "{:6.2f} | {:6.2f} {:6.2f} | {:6.2f} {:6.2f}   {}"
    for experiment, seed, learner in load(arguments.folder):
        told = judge(experiment, learner, lattice, arguments.phase)
        found.setdefault(experiment.id, []).append(told)
        print(line.format(*told, f"{experiment.id}, seed {seed}"), flush=True)
    for name, told in found.items():
        print(line.format(*np.mean(told, axis=0), f"mean of {name}"))


if __name__ == "__main__":
    main()
