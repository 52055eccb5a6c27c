"""What radii of a fitted locality keep and let go while scripted arms play through both phases.

    python benchmarks/radius_in_play.py randomized_reacher/dreamer/lofo --localities FOLDER \\
        --radii 0.01 0.015 0.02 [--limit 2] [--episodes 50 250 700] [--roam]

Episodes of random actions, then of arms on their way to T1 in phase 1 and in phase 2, each with the
action noise of the agents and a resting place of its own, are seen through the run's locality, and
their states go through the rule of local forgetting. No agent learns, so this takes minutes where a
run takes hours, and compares radii rather than foretells a run. With `--roam` arms do not rest, but
go about in T1, all over which an agent is paid alike: closer to what agents do. Fields
of the run's world and locality can be overridden, such as `--buffer.locality.num-epochs 5`.

Printed for each radius, at the end of both phases: the states held; of the rewards that T2 has paid
how many are still known; the states outside the T1-zone; and of the known rewards at T1 how many
are old, from before the change: nobody has come back near enough to let go of them.
"""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scripted_arms import as_it_lies, draw_places, follow

from lofo_rl.buffers.neighbors import Automatic, oldest_near
from lofo_rl.environments import Reacher
from lofo_rl.environments.arm import fingertip
from lofo_rl.experiments import find
from lofo_rl.experiments.fitting import fit_localities, shelf_name
from lofo_rl.experiments.overrides import override
from lofo_rl.experiments.pack import Pack

ASIDE = 0.25  # rad, at most: where an arm rests beside T1, at 0.15 m from the shoulder
CHUNK = 500  # pictures that are embedded at a time


@partial(jax.jit, static_argnums=(0, 2, 3, 4, 5))
def play(world: Reacher, key, num: int, phase: int, is_random: bool, roams: bool = False):
    """Codes [num, steps, 5], and whether T1 and T2 paid [num, steps]."""
    task = world.train_task(phase)

    def episode(key):
        key_start, key_pilot, key_aside, key_steps = jax.random.split(key, 4)
        aside = jax.random.uniform(key_aside, (), jnp.float32, -ASIDE, ASIDE)
        state, _ = world.reset(task, key_start)
        pilot = as_it_lies(state, key_pilot)
        keys = jax.random.split(key_steps, world.spec.time_limit)
        places = draw_places(key_aside, len(keys)) if roams else None
        played = follow(world, task, state, pilot, keys, is_random, aside, places)
        return played.code, played.at_t1 > 0, played.at_t2 > 0

    return jax.vmap(episode)(jax.random.split(key, num))


def spread(fingers: np.ndarray) -> float:
    """Over how many cells of the chart, 12.5 mm wide, they are: the exponential of the entropy."""
    counts, *_ = np.histogram2d(*fingers.T, bins=40, range=[[-0.25, 0.25]] * 2)
    shares = counts[counts > 0] / len(fingers)
    return float(np.exp(-np.sum(shares * np.log(shares))))


def forget(points: np.ndarray, radius: float, limit: int, num_first: int) -> list[np.ndarray]:
    """The steps that are held after the first so many, and after all."""
    index, stamps, held = (
        Automatic(len(points), points.shape[1], radius),
        np.zeros(len(points), int),
        [],
    )
    for now, point in enumerate(points):
        oldest, num_near = oldest_near(index, stamps, point)
        row = oldest if num_near >= limit else index.size
        index.put(row, point)
        stamps[row] = now
        if now + 1 in (num_first, len(points)):
            held.append(stamps[: index.size].copy())
    return held


def main(run: str, localities: Path, radii: list[float], overrides: list[str], **options) -> None:
    seed, episodes = options["seed"], options["episodes"]
    experiment = override(replace(find(run), seeds=(seed,)), overrides)
    world, buffer = experiment.environment, experiment.buffer
    limit = options["limit"] or buffer.rule.limit
    pack = Pack((experiment,))
    if not (localities / shelf_name(pack, buffer, seed)).exists():
        raise SystemExit(f"{localities} has no locality of {run}, seed {seed}: `lofo fit` it first")
    (fitted,), _ = fit_localities(pack, print, localities)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), fitted)
    plays = zip(
        jax.random.split(jax.random.key(seed), 3),
        episodes,
        (1, 1, 2),
        (True, False, False),
        strict=True,
    )
    parts = [play(world, *own, options["roam"]) for own in plays]
    codes, at_t1, at_t2 = (
        np.concatenate([x.reshape(-1, *x.shape[2:]) for x in own])
        for own in zip(*parts, strict=True)
    )
    began = time.perf_counter()
    embed = jax.jit(lambda code: buffer.locality.embed(params, world.decode(code)))
    points = np.concatenate([embed(codes[i : i + CHUNK]) for i in range(0, len(codes), CHUNK)])
    in_zone = np.asarray(jax.vmap(lambda code: world.in_t1_zone(world.arm(code)))(codes))
    num_first = sum(episodes[:2]) * world.spec.time_limit
    fingers = np.asarray(jax.vmap(lambda code: fingertip(world.arm(code).angles))(codes))
    print(
        f"{run}, seed {seed}, limit {limit}: {episodes[0]} random episodes, {episodes[1]} to T1 in "
        f"phase 1, {episodes[2]} in phase 2; {len(points)} pictures in "
        f"{time.perf_counter() - began:.0f} s; the fingers of phase 2 spread over {spread(fingers[num_first:]):.0f} cells",
        flush=True,
    )
    for radius in radii:
        for phase, held in enumerate(forget(points, radius, limit, num_first), start=1):
            known = held[at_t1[held] & in_zone[held]]
            old = f", {np.mean(known < num_first):.1%} of them old" if phase == 2 else ""
            print(
                f"radius {radius:g}, end of phase {phase}: {len(held)} states; of {at_t2.sum()} rewards "
                f"of T2 {at_t2[held].sum()} known; {np.sum(~in_zone[held])} states outside the zone; "
                f"{len(known)} rewards of T1 known{old}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="fields of the run's world and locality, too: --buffer.locality.num-epochs 5",
        allow_abbrev=False,
    )
    parser.add_argument("run", help="a LoFo run of a Reacher world, from `lofo list`")
    parser.add_argument("--localities", type=Path, required=True, help="where `lofo fit` kept it")
    parser.add_argument("--radii", type=float, nargs="+", required=True)
    parser.add_argument("--limit", type=int, help="the run's own, if not said")
    parser.add_argument(
        "--episodes", type=int, nargs=3, default=(50, 250, 700), help="random, phase 1, phase 2"
    )
    parser.add_argument("--roam", action="store_true", help="arms go about in T1, and do not rest")
    parser.add_argument("--seed", type=int, default=0)
    given, overrides = parser.parse_known_args()
    main(**vars(given), overrides=overrides)
