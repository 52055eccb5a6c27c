"""PlaNet's planner with the true world in place of a learned model: what could its agent reach at best?

    python benchmarks/plan_in_world.py [--phase 1] [--episodes 32] [--horizon 12] [--action-repeat 2] [--believed 2.1 1.9] [--small]

The cross-entropy method plans every action anew, with the true arm and rewards that fade over `--softness`
metres around a goal, as a learned reward does; 0 pays at the goals alone. `--believed` are the rewards
of T1 and T2 that it plans with, where they are not the true ones: those of a model that learnt from stale
samples, or that has forgotten a goal. Evaluation starts of ReacherLoCA; the first 100 actions are
played and the last ten of them carried on to the end.
"""

import argparse
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.agents import PlaNet
from lofo_rl.agents.cem import CEM
from lofo_rl.environments import Reacher
from lofo_rl.environments.arm import fingertip
from lofo_rl.environments.raster import TARGET_DISTANCE
from lofo_rl.environments.reacher import REWARD_RADIUS
from lofo_rl.experiments.paper_reacher import OPTIMA

NUM_PLAYED, NUM_CARRIED = 100, 10


def pay(world, task, before, action, softness):
    """The arm after an action, and its reward, soft or true."""
    arm, at_t1, at_t2 = world.advance(before, action)
    if not softness:
        return arm, world.pay(task, at_t1, at_t2).astype(jnp.float32)
    goal = TARGET_DISTANCE * jnp.stack([jnp.cos(arm.direction), jnp.sin(arm.direction)])
    gaps = jnp.stack([jnp.linalg.norm(fingertip(arm.angles) - side * goal) for side in (1, -1)])
    rewards = jnp.stack([task.reward_t1, task.reward_t2])
    soft = rewards * jax.nn.sigmoid((REWARD_RADIUS - gaps) / softness)
    return arm, world.action_repeat * soft.sum()


def play(world, task, believed, planner, softness, key):
    """The true rewards of the first actions of an episode, planned with those believed."""
    key_start, key_plan = jax.random.split(key)

    def step(arm, key):
        def returns(candidates, _):
            def total(actions):
                follow = lambda a, action: pay(world, believed, a, action, softness)  # noqa: E731
                return jax.lax.scan(follow, arm, actions)[1].sum()

            return jax.vmap(total)(candidates)

        action = planner.plan(returns, 2, key).mean[0]
        return pay(world, task, arm, action, 0.0)

    start = world.draw_start(task.start, key_start)
    return jax.lax.scan(step, start, jax.random.split(key_plan, NUM_PLAYED))[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--horizon", type=int, default=12)
    parser.add_argument("--action-repeat", type=int, default=2)
    parser.add_argument("--softness", type=float, default=0.01)
    parser.add_argument("--small", action="store_true", help="the planner of PlaNet.small")
    parser.add_argument("--believed", type=float, nargs=2, metavar=("T1", "T2"))
    given = parser.parse_args()
    world = Reacher(action_repeat=given.action_repeat)
    task, planner = world.evaluation_task(given.phase), CEM(horizon=given.horizon)
    believed, words = task, ""
    if given.small:
        planner = replace(PlaNet.small().planner, horizon=given.horizon)
        words = ", small planner"
    if given.believed:
        first, second = given.believed
        believed = task._replace(reward_t1=jnp.float32(first), reward_t2=jnp.float32(second))
        words += f", believed {first:g} and {second:g}"
    began = time.perf_counter()
    keys = jax.random.split(jax.random.PRNGKey(0), given.episodes)
    rewards = np.asarray(
        jax.jit(jax.vmap(lambda k: play(world, task, believed, planner, given.softness, k)))(keys)
    )
    left = world.spec.time_limit - NUM_PLAYED
    returns = rewards.sum(1) + left * rewards[:, -NUM_CARRIED:].mean(1)
    spread = returns.std(ddof=1) / len(returns) ** 0.5
    optimum = OPTIMA[given.phase - 1]
    at_end = rewards[:, -1] / world.action_repeat
    ends = {float(r): int((at_end == r).sum()) for r in np.unique(at_end)}
    print(
        f"phase {given.phase}, horizon {given.horizon}, repeat {given.action_repeat}, softness "
        f"{given.softness:g}{words}: {returns.mean():.0f} ± {spread:.0f}, {returns.mean() / optimum:.1%} of "
        f"{optimum:.0f}; reward a step at the end: {ends} ({time.perf_counter() - began:.0f} s)"
    )


if __name__ == "__main__":
    main()
