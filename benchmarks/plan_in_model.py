"""Plans exactly in the model that a MountainCar run has learned: how far would it get without a Q-network?

    python benchmarks/plan_in_model.py RUN_FOLDER [--phase 1] [--seed-number 0]

Value iteration on a fine grid over the model's own predictions, with the reward as predicted and with
the reward counted only as far as the model predicts an end. The plan and the run's Q-network are then
rolled out in the true world from the same starts. A plan worth more than the true optimum is a plan
that the model's errors pay for.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lofo.environments.mountaincar import HIGH, LOW, Car
from lofo.experiments import Pack, checkpoint, find_all, loop
from lofo.experiments.fitting import outline_localities

GRID = (171, 141)  # positions, velocities
SWEEPS_OF_VALUES = 2000  # 0.99 ** 2000 is 2e-9
NUM_EPISODES = 20


def load(folder: Path, seed_number: int):
    """The experiment of a run folder as far as it decides shapes, and one seed's learner."""
    from dataclasses import replace

    settings = checkpoint.read_manifest(folder)["configuration"]
    (experiment,) = find_all(settings[0]["id"])
    if len(settings) > 1:
        raise SystemExit("this folder holds several runs side by side; run one alone")
    phases = zip(experiment.phases, settings[0]["phases"], strict=True)
    experiment = replace(
        experiment,
        seeds=tuple(settings[0]["seeds"]),
        phases=tuple(replace(p, steps=s["steps"]) for p, s in phases),
    )
    pack = Pack((experiment,))
    like = jax.eval_shape(lambda: loop.init(pack, outline_localities(pack)))
    runs = checkpoint.load(folder, like)
    return experiment, jax.tree.map(lambda x: jnp.asarray(x[seed_number]), runs.agents)


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


def look_ahead(agent, learner, states, *, reward_at_end):
    """For each action: predicted reward, chance to go on, successor in the world's units."""
    low, high = np.array(LOW), np.array(HIGH)
    for action in range(agent.num_actions):
        said = agent.predict(learner, jnp.asarray(states), jnp.full(len(states), action))
        reward, end = np.asarray(said.reward), np.asarray(said.termination)
        successor = (np.asarray(said.successor) * (high - low) + low + high) / 2
        yield reward * end if reward_at_end else reward, 1 - end, successor


def plan(agent, learner, lattice, *, reward_at_end):
    ahead = [
        (reward, goes_on, lattice.between(successor))
        for reward, goes_on, successor in look_ahead(
            agent, learner, lattice.points, reward_at_end=reward_at_end
        )
    ]
    values = np.zeros(GRID)
    for _ in range(SWEEPS_OF_VALUES):
        options = [r + agent.discount * on * lattice.read(values, to) for r, on, to in ahead]
        values = np.max(options, axis=0).reshape(GRID)
    return values


def roll_out(environment, task, choose):
    """Mean return from the evaluation's starts, and how the episodes ended."""
    rng = np.random.default_rng(0)
    start = task.start
    states = rng.uniform(start.low, start.high, (NUM_EPISODES, 2)).astype(np.float32)
    advance = jax.jit(jax.vmap(environment.advance))
    returns, ends = np.zeros(NUM_EPISODES), np.array(["neither"] * NUM_EPISODES)
    for time in range(environment.spec.time_limit):
        car, at_t1, at_t2 = advance(Car(states[:, 0], states[:, 1]), jnp.asarray(choose(states)))
        for name, at, reward in (("T1", at_t1, task.reward_t1), ("T2", at_t2, task.reward_t2)):
            now = np.asarray(at) & (ends == "neither")
            returns[now] = environment.spec.discount**time * float(reward)
            ends[now] = name
        states = np.stack([car.position, car.velocity], -1)
    counts = {name: int((ends == name).sum()) for name in ("T1", "T2", "neither")}
    return returns.mean(), ", ".join(f"{name} {n}" for name, n in counts.items() if n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--phase", type=int, default=1)
    parser.add_argument("--seed-number", type=int, default=0)
    arguments = parser.parse_args()
    experiment, learner = load(arguments.folder, arguments.seed_number)
    agent, environment = experiment.agent, experiment.environment
    task = environment.evaluation_task(arguments.phase)
    lattice, middle = Lattice(), np.array([[-0.15, 0.0]], np.float32)
    print(f"optimum {experiment.phases[arguments.phase - 1].optimum}")

    def of_network(states):
        return np.asarray(agent.act(learner, (), jnp.asarray(states), None, explore=False)[0])

    mean, ends = roll_out(environment, task, of_network)
    print(f"{'Q-network':34} {'':22} true return {mean:5.2f} ({ends})")
    for reward_at_end in (False, True):
        values = plan(agent, learner, lattice, reward_at_end=reward_at_end)

        def of_plan(states, values=values, reward_at_end=reward_at_end):
            options = [
                r + agent.discount * on * lattice.read(values, lattice.between(to))
                for r, on, to in look_ahead(agent, learner, states, reward_at_end=reward_at_end)
            ]
            return np.argmax(options, axis=0).astype(np.int32)

        mean, ends = roll_out(environment, task, of_plan)
        promised = lattice.read(values, lattice.between(middle))[0]
        name = f"exact plan, reward {'at the end' if reward_at_end else 'as predicted'}"
        print(f"{name:34} promises {promised:5.2f} at start  true return {mean:5.2f} ({ends})")


if __name__ == "__main__":
    main()
