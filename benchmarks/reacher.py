"""Frames a second of Reacher: physics, wall, reward and picture, for some arms side by side.

A frame is one action: two physics steps and one picture of 64×64 pixels. The yardstick is MuJoCo
with its own renderer in the same run, one arm, the renderer kept open, the median of 1 000 frames;
where there is no `mujoco` or no renderer, the line says so. On a CPU both are kept to one core,
unless told otherwise.

    MUJOCO_GL=egl python benchmarks/reacher.py [--arms 1 256 4096] [--cores 1]
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPEATS = 5
MUJOCO_FRAMES = 1000


def measure(world, num_arms: int, num_steps: int, pixels: bool) -> float:
    """Frames a second of a compiled loop that keeps the latest picture of every arm."""
    import jax
    import jax.numpy as jnp

    task = world.train_task(1)

    def act(carry, key):
        state, _ = carry
        keys = jax.random.split(key, num_arms)
        actions = jax.vmap(world.random_action)(keys)
        state, answer = jax.vmap(world.step, (None, 0, 0, 0))(task, state, actions, keys)
        return (state, world.decode(answer.observation) if pixels else answer.observation), None

    @jax.jit
    def run(carry, key):
        return jax.lax.scan(act, carry, jax.random.split(key, num_steps))[0]

    state, code = jax.vmap(world.reset, (None, 0))(
        task, jax.random.split(jax.random.key(0), num_arms)
    )
    carry = state, jnp.array(world.decode(code) if pixels else code)
    seconds = timed(lambda: jax.block_until_ready(run(carry, jax.random.key(1))), REPEATS)
    return num_arms * num_steps / seconds


def timed(work: Callable[[], object], repeats: int) -> float:
    """The median seconds of some work, after one round of it."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_mujoco() -> tuple[float, str]:
    """Frames a second of MuJoCo's physics and renderer, and what drew them."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
    import mujoco
    import numpy as np
    from make_reacher_frames import Studio

    studio = Studio(green_t2=False)
    rng = np.random.default_rng(0)

    def frame() -> np.ndarray:
        studio.data.ctrl[:] = rng.uniform(-1.0, 1.0, 2)
        for _ in range(2):
            mujoco.mj_step(studio.model, studio.data)
        studio.renderer.update_scene(studio.data, camera="above")
        return studio.renderer.render()

    seconds = timed(frame, MUJOCO_FRAMES)
    return 1.0 / seconds, f"MuJoCo {mujoco.__version__}, {os.environ.get('MUJOCO_GL', 'default')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", type=int, nargs="+", default=[1, 256, 4096])
    parser.add_argument("--cores", type=int, default=1, help="of the CPU, for both")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before anything counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    import jax

    from lofo_rl.environments import RandomizedReacher, Reacher

    peers = [measure_peer()]  # before and after, because other work may slow either
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    cores = f", {arguments.cores} core(s)" if on_cpu else ""
    print(f"device: {device.device_kind}{cores}, jax {jax.__version__}")
    print(f"{'world':>20} {'arms':>6} {'frames/s':>14} {'physics alone':>14}")
    rates = {}
    for world in (Reacher(), RandomizedReacher()):
        for num_arms in arguments.arms:
            num_steps = max(4, min(2_000, (20_000 if on_cpu else 2_000_000) // num_arms))
            frames = measure(world, num_arms, num_steps, pixels=True)
            steps = measure(world, num_arms, num_steps, pixels=False)
            rates[num_arms] = min(frames, rates.get(num_arms, frames))
            print(f"{world.spec.name:>20} {num_arms:6} {frames:14,.0f} {steps:14,.0f}", flush=True)
    if peers[0]:
        peers.append(measure_peer())
        for num_arms, rate in rates.items():
            print(f"{num_arms} arm(s): {rate / max(peers):,.0f} times the faster of MuJoCo's two")


def measure_peer() -> float:
    """MuJoCo's frames a second, or 0 where it cannot draw."""
    try:
        rate, name = measure_mujoco()
    except Exception as error:  # whatever a missing library or screen makes of itself
        print(f"MuJoCo not measured: {type(error).__name__}: {error}")
        return 0.0
    print(f"{name}: {rate:,.0f} frames/s", flush=True)
    return rate


if __name__ == "__main__":
    main()
