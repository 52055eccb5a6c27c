"""Milliseconds of what the recurrent agents do: updates, a plan, a step of fitting the locality.

    python benchmarks/recurrent.py [--runs 1 3] [--only dreamer planet plan locality] [--dtype float32] [--small] [--profile 30]

Each piece is repeated inside one compiled program, on noise in place of pictures. The peer of several
runs side by side is one run at a time: the last column is how much faster than that they are.
`--profile N` lists the N kinds of kernels that take most of each piece's time, on a GPU.
`--plain` leaves out our own kernels for observing and for dreams. `--dtype` is that of the agents' products, bfloat16 as the named runs have it if nothing is said; `--small`
takes the small agents, for a CPU.
"""

import argparse
import dataclasses
import gzip
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.agents import Dreamer, PlaNet
from lofo_rl.experiments import find
from lofo_rl.experiments.paper_reacher import small
from lofo_rl.locality import Pairs
from lofo_rl.types import Array, Batch, Step, Tree

REPEATS = 10
NUM_PAIRS = 20_000
Piece = tuple[Callable[[Tree, Array], Tree], Tree]  # (carry, key) to carry, and where it begins


def update(agent: Dreamer | PlaNet, num: int) -> Piece:
    """One update of so many runs, each from a batch of its own."""
    rng = np.random.default_rng(0)
    shape = num, 1, agent.batch_size, agent.window
    pictures = rng.integers(0, 256, (*shape, 64, 64, 3), dtype=np.uint8)
    actions = rng.uniform(-1, 1, (*shape, 2)).astype(np.float32)
    rewards = rng.integers(0, 5, shape).astype(np.float32)
    no = np.zeros(shape, bool)
    items = Step(pictures, actions, rewards, no, rng.random(shape) < 0.01, no)
    batches = jax.tree.map(
        jnp.asarray, Batch(items, rng.random(shape) < 0.7, np.zeros(shape[:3], np.int32))
    )
    states = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(0), num))
    learn = jax.vmap(lambda state, batch, key: agent.update(state, batch, key)[0])

    def step(carry: Tree, key: Array) -> Tree:
        states, batches = carry  # pictures held as constants would be folded into the program
        return learn(states, batches, jax.random.split(key, num)), batches

    return step, (states, batches)


def plan(agent: PlaNet, num: int) -> Piece:
    """One plan of so many runs; the outcome is added up, so that no plan is left out."""
    states = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(0), num))
    seen = jax.tree.map(lambda x: jnp.zeros((num, *x.shape), x.dtype), agent.begin().state)
    make = jax.vmap(agent.plan)
    return (
        lambda total, key: total + make(states, seen, jax.random.split(key, num)).sum(),
        jnp.float32(0),
    )


def fit(experiment: Any, num: int) -> Piece:
    """One gradient step of the locality for so many seeds, pictures drawn from codes."""
    locality, see = experiment.buffer.locality, experiment.environment.decode
    codes = np.random.default_rng(0).uniform(-2.7, 2.7, (2 * NUM_PAIRS, 5)).astype(np.float32)
    count = jnp.arange(NUM_PAIRS, dtype=jnp.int32)
    pairs = Pairs(jnp.asarray(codes), count, count + NUM_PAIRS)
    params = jax.vmap(locality.init)(jax.random.split(jax.random.key(0), num))
    begun = jax.vmap(lambda own: locality.begin(own, pairs, see))(params)

    def learn(carry: Tree, key: Array) -> Tree:
        batch = jax.random.randint(key, (locality.batch_size,), 0, NUM_PAIRS)
        return locality._learn(carry, pairs, see, batch, key)[0]

    return lambda carry, key: jax.vmap(learn, (0, None))(carry, key), begun


def measure(piece: Piece, num_kinds: int) -> tuple[float, float]:
    """Milliseconds of one repetition, the best of three, and seconds to compile.

    Prints kinds of kernels, as many as asked for.
    """
    step, begun = piece
    keys = jax.random.split(jax.random.key(1), REPEATS)

    @jax.jit
    def run(carry: Tree) -> Tree:
        return jax.lax.scan(lambda c, key: (step(c, key), None), carry, keys)[0]

    began = time.perf_counter()
    compiled = run.lower(begun).compile()
    seconds = time.perf_counter() - began
    jax.block_until_ready(compiled(begun))
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(compiled(begun))
        best = min(best, time.perf_counter() - began)
    if num_kinds:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready(compiled(begun))
            print_kinds(Path(folder), num_kinds)
    return 1e3 * best / REPEATS, seconds


def print_kinds(folder: Path, num: int) -> None:
    """Milliseconds, launches and microseconds each, by the kernels' names without their numbers."""
    events = []
    for path in folder.rglob("*.trace.json.gz"):
        with gzip.open(path, "rt") as file:
            events += json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    streams = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and "Stream" in e["args"]["name"]
    }
    took: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in events:
        if "GPU" not in names.get(event.get("pid"), "") or "dur" not in event:
            continue
        if (event["pid"], event["tid"]) in streams:
            kind = re.sub(r"[_.]?\d+", "", event["name"])[:60]
            took[kind] += event["dur"] / 1e3 / REPEATS
            launches[kind] += 1
    if not took:
        print("  no kernels of a GPU in the profile")
        return
    total = sum(took.values())
    print(f"  {total:.3f} ms in {sum(launches.values()) / REPEATS:.0f} kernels")
    for kind, spent in took.most_common(num):
        count = launches[kind] / REPEATS
        print(f"  {spent:8.3f} ms {count:8.1f} x {1e3 * spent / count:7.1f} us  {kind}")


def choose_kernels(agent: Dreamer, **own: bool) -> Dreamer:
    rssm = dataclasses.replace(agent.model.rssm, **own)
    return dataclasses.replace(agent, model=dataclasses.replace(agent.model, rssm=rssm))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--only", nargs="+", default=["dreamer", "planet", "plan", "locality"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--small", action="store_true", help="the small agents, for a CPU")
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--plain", action="store_true", help="no kernels of ours in loops")
    arguments = parser.parse_args()
    experiment = find("reacher/dreamer/lofo")
    dreamer, planet = Dreamer(), PlaNet()
    if arguments.small:
        experiment = small(experiment)
        dreamer, planet = experiment.agent, PlaNet.small(batch_size=8, window=20)
    dreamer, planet = (
        dataclasses.replace(a, model=dataclasses.replace(a.model, compute_dtype=arguments.dtype))
        for a in (dreamer, planet)
    )
    dreamer = choose_kernels(
        dreamer, own_kernels=not arguments.plain, own_dreams=not arguments.plain
    )
    pieces: dict[str, Callable[[int], Piece]] = {
        "dreamer": partial(update, dreamer),
        "planet": partial(update, planet),
        "plan": partial(plan, planet),
        "locality": partial(fit, experiment),
    }
    print(f"device: {jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(f"{'piece':>10} {'runs':>5} {'ms':>9} {'compile s':>10} {'against one at a time':>22}")
    for name in arguments.only:
        alone = None
        for num in arguments.runs:
            took, seconds = measure(pieces[name](num), arguments.profile)
            alone = took if num == 1 else alone
            gain = f"{num * alone / took:.2f}x" if alone else "-"
            print(f"{name:>10} {num:5} {took:9.3f} {seconds:10.1f} {gain:>22}", flush=True)


if __name__ == "__main__":
    main()
