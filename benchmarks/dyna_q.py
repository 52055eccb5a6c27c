"""Environment steps a second of deep Dyna-Q with the paper's MountainCar settings.

Every step acts, inserts into a LoFo buffer of capacity 40 000 that holds at least 2.4e4 rows, and
makes 5 model and 5 planning updates of batch 32. The yardstick is `benchmarks/eager.py`: the same
algorithm as a plain loop, one operation at a time.

    python benchmarks/dyna_q.py [--runs 1 10] [--steps 500] [--eager]
    python benchmarks/dyna_q.py --rules lofo lofo-handcrafted fifo-4.5e6 fifo-3e5 reservoir-3e4 --runs 10

With `--rules`, each rule has so many runs and all are one program; their buffers are filled by random steps.
A rule with slashes is a whole id: `--rules minigrid/dyna_q/lofo --runs 3` times the paper's agent from pixels.
On a GPU `--plain` times the same program without the hand-written kernels, as the peer.
"""

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp

from lofo_rl.experiments import Pack, find, loop
from lofo_rl.experiments import pack as packs
from lofo_rl.types import Transition

STORED = 24_000


def prepare(num_runs: int, stack_model: bool) -> tuple[Pack, loop.Runs]:
    """Runs whose buffers hold STORED transitions from states all over the world."""
    experiment = find("mountaincar/dyna_q/lofo")
    agent = dataclasses.replace(experiment.agent, stack_model=stack_model)
    pack = Pack((dataclasses.replace(experiment, agent=agent, seeds=tuple(range(num_runs))),))
    runs = loop.init(pack, loop.outline_localities(pack))
    key_fit, key_fill = jax.random.split(jax.random.PRNGKey(0))
    locality = experiment.buffer.locality
    params = jax.vmap(locality.init)(jax.random.split(key_fit, num_runs))
    fill = jax.vmap(lambda p, s, k: fill_buffer(pack, p, s, k))
    replay = fill(params, runs.replays[0], jax.random.split(key_fill, num_runs))
    runs = runs._replace(localities=(params,), replays=(replay,))
    return pack, jax.tree.map(jnp.copy, runs)  # one buffer a leaf, so that all can be donated


def fill_buffer(pack, params, replay, key):
    environment, buffer = pack.lead.environment, pack.lead.buffer
    task = environment.train_task(1)
    key_reset, key_act, key_step = jax.random.split(key, 3)
    keys = jax.random.split(key_reset, STORED)
    states, codes = jax.vmap(environment.reset, (None, 0))(task, keys)
    actions = jax.random.randint(key_act, (STORED,), 0, 3, jnp.int32)
    _, answer = jax.vmap(environment.step, (None, 0, 0, None))(task, states, actions, key_step)
    items = Transition(codes, actions, answer.reward, answer.terminated, answer.successor)
    put = lambda rows, new: rows.at[:STORED].set(new)  # noqa: E731  # one line, used twice
    points = replay.index.embedding  # [D, C]
    ledger = replay.index._replace(
        stamp=put(replay.index.stamp, jnp.arange(STORED)),
        embedding=points.at[:, :STORED].set(buffer.locality.embed(params, codes).T),
        size=jnp.int32(STORED),
        clock=jnp.int32(STORED),
    )
    write = lambda rows, new: (rows.write(*new), None)  # noqa: E731
    rows, _ = jax.lax.scan(write, replay.rows, (jnp.arange(STORED), items))
    return replay._replace(index=ledger, rows=rows)


def prepare_rules(rules: list[str], num_seeds: int) -> tuple[Pack, loop.Runs]:
    """Several rules in one program, after random steps."""
    named = (find(rule if "/" in rule else f"mountaincar/dyna_q/{rule}") for rule in rules)
    pack = Pack(tuple(dataclasses.replace(e, seeds=tuple(range(num_seeds))) for e in named))
    keys = jax.random.split(jax.random.PRNGKey(0), num_seeds)
    localities = tuple(
        jax.vmap(b.locality.init)(keys) if b.embedding_size else () for b in pack.buffers
    )
    runs = jax.tree.map(jnp.copy, loop.init(pack, localities))
    task = pack.lead.environment.train_task(1)
    return pack, loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(STORED), True)[0]


def measure(pack: Pack, runs: loop.Runs, num_steps: int) -> tuple[float, float, int]:
    """Steps a second of each run, seconds to compile, rows stored."""
    task = pack.lead.environment.train_task(1)
    began = time.perf_counter()
    runs, _ = jax.block_until_ready(
        loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(2), False)
    )
    compiled = time.perf_counter() - began
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        runs, _ = loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(num_steps), False)
        jax.block_until_ready(runs)
        best = min(best, time.perf_counter() - began)
    return num_steps / best, compiled, int(runs.replays[0].index.size[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--eager", action="store_true", help="time the plain loop too")
    parser.add_argument("--unstacked", action="store_true", help="the three model nets apart too")
    parser.add_argument("--rules", nargs="+", help="names after mountaincar/dyna_q/, side by side")
    parser.add_argument("--plain", action="store_true", help="without the hand-written kernels")
    arguments = parser.parse_args()
    if arguments.plain:
        packs.on_chip = lambda agent: None
    print(f"device: {jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(
        f"{'runs':>5} {'stacked':>8} {'env steps/s':>12} {'run-steps/s':>12} {'compile s':>10} {'rows':>7}"
    )
    rates = {}
    for num_runs in arguments.runs:
        for stacked in (True, False) if arguments.unstacked else (True,):
            pack, runs = (
                prepare_rules(arguments.rules, num_runs)
                if arguments.rules
                else prepare(num_runs, stacked)
            )
            rate, compiled, stored = measure(pack, runs, arguments.steps)
            rates[num_runs] = max(rate, rates.get(num_runs, 0.0))
            total = num_runs * len(pack.experiments)
            print(
                f"{total:5} {stacked!s:>8} {rate:12,.0f} {rate * total:12,.0f} "
                f"{compiled:10.1f} {stored:7,}",
                flush=True,
            )
    if arguments.eager:
        import eager

        rate = eager.measure(prepare)
        print(f"plain eager loop: {rate:.1f} env steps/s; one run is {rates[1] / rate:.0f}x that")


if __name__ == "__main__":
    main()
