"""DreamerV2's update with dreams by the compiler's kernels and by our own, beside each other.

    python benchmarks/dreams.py [--runs 1 3] [--small]

Prints milliseconds of each, and how far the gradients of one update are apart, as the means that
Adam keeps of them tell. Both see the same batch and draw from the same keys; a class drawn otherwise,
which rounding may do, changes all that follows in its dream. Without a GPU both are the compiler's.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from recurrent import REPEATS, choose_kernels, update

from lofo_rl.agents import Dreamer
from lofo_rl.experiments import find
from lofo_rl.experiments.paper_reacher import small

ROUNDS = 5
PARTS = "model", "actor", "value"


def compile_both(agent: Dreamer, num: int) -> tuple[Any, Any]:
    """One update, and several in a row; where they begin is an argument."""
    step, begun = update(agent, num)
    keys = jax.random.split(jax.random.key(1), REPEATS)

    def several(carry: Any) -> Any:
        return jax.lax.scan(lambda c, key: (step(c, key), None), carry, keys)[0]

    once = jax.jit(lambda carry: step(carry, keys[0])).lower(begun).compile()
    return once, jax.jit(several).lower(begun).compile()


def milliseconds(several: Any, begun: Any) -> float:
    """Of an update, the best of some rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready(several(begun))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[1:]) / REPEATS


def apart(one: Any, other: Any) -> float:
    """The largest distance between gradients of a run, in lengths of the one."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    rows = [np.stack([x.reshape(len(x), -1) for x in pair]).astype(np.float64) for pair in pairs]
    far = sum(np.sum((x[0] - x[1]) ** 2, axis=-1) for x in rows)
    return float(np.sqrt(far / sum(np.sum(x[0] ** 2, axis=-1) for x in rows)).max())


def main(runs: list[int], is_small: bool) -> None:
    experiment = find("reacher/dreamer/lofo")
    agent: Any = small(experiment).agent if is_small else experiment.agent
    agent = replace(agent, model=replace(agent.model, compute_dtype="bfloat16"))
    agents = [choose_kernels(agent, own_dreams=own) for own in (False, True)]
    print(f"device: {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for num in runs:
        begun = update(agent, num)[1]
        with ThreadPoolExecutor(2) as pool:  # compiling takes much longer than all else
            both = list(pool.map(partial(compile_both, num=num), agents))
        behind = [jax.device_get(once(begun)[0]) for once, _ in both]
        took = [milliseconds(several, begun) for _, several in both]
        print(f"{num} side by side: compiler's {took[0]:.3f} ms, our own {took[1]:.3f} ms")
        for part in PARTS:
            means = [getattr(state, f"{part}_optimiser")[0].mu for state in behind]
            print(f"  gradients of {part}: {apart(*means):.2%} of their length apart", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--small", action="store_true", help="the small agent, for a CPU")
    arguments = parser.parse_args()
    main(arguments.runs, arguments.small)
