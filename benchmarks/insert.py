"""What one insert costs inside a scan, against the same insert with a branch around the buffer.

Run as `python benchmarks/insert.py`. Both columns hold the same rows and take the same decisions
(checked); the peer only writes within `lax.cond`, which copies the buffer under `vmap`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers import Fifo, Local, Reservoir
from lofo_rl.functional import Replay, ReplayState, SequenceIndex, TransitionIndex, place
from lofo_rl.types import Transition

CAPACITY, LIVE, EMBEDDING_SIZE, WINDOW = 32_768, 30_000, 16, 50
RADIUS = 0.1
EXAMPLE = Transition(
    observation=np.zeros(2, np.float32),
    action=np.int32(0),
    reward=np.float32(0),
    terminated=np.bool_(False),
    next_observation=np.zeros(2, np.float32),
)
Add = Callable[..., ReplayState]


def add_with_cond(replay: Replay) -> Add:
    """The peer: one branch writes, the other refuses."""

    def add(state: ReplayState, item: Any, embedding: Any, key: Any) -> ReplayState:
        ledger = state.index
        slot, num_near, _ = place(replay.index.rule, ledger, embedding, key)

        def write(state: ReplayState) -> ReplayState:
            ledger, rows = state
            ledger = ledger._replace(
                stamp=ledger.stamp.at[slot].set(ledger.clock),
                embedding=ledger.embedding.at[:, slot].set(embedding),
                size=jnp.maximum(ledger.size, slot + 1),
                evictions=ledger.evictions + (slot < ledger.size),
            )
            return ReplayState(ledger, rows.write(slot, item))

        state = jax.lax.cond(slot < ledger.capacity, write, lambda state: state, state)
        near_low = ledger.near_low + num_near
        return state._replace(index=state.index._replace(clock=ledger.clock + 1, near_low=near_low))

    return add


def late(replay: Replay, seed: int) -> ReplayState:
    """A buffer late in a run: LIVE rows, in no order of age."""
    state = replay.init(EXAMPLE, EMBEDDING_SIZE)
    is_sequence = isinstance(replay.index, SequenceIndex)
    ledger = state.index.ledger if is_sequence else state.index
    rng = np.random.default_rng(seed)
    ledger = ledger._replace(
        stamp=jnp.asarray(rng.permutation(CAPACITY), jnp.int32),
        embedding=jnp.asarray(rng.uniform(size=ledger.embedding.shape), jnp.float32),
        size=jnp.int32(LIVE),
        clock=jnp.int32(CAPACITY + LIVE),  # so that the ring of a Fifo stands at row LIVE
    )
    return state._replace(index=state.index._replace(ledger=ledger) if is_sequence else ledger)


def new_points(embeddings: np.ndarray, num: int, seed: int) -> np.ndarray:
    """Points [num, D]: half of them are near a live row of embeddings [D, C], half near none."""
    rng = np.random.default_rng(seed)
    known = embeddings[:, rng.integers(0, LIVE, num)].T + 0.001
    is_known = rng.uniform(size=(num, 1)) < 0.5
    return np.where(is_known, known, rng.uniform(size=known.shape)).astype(np.float32)


def measure(replay: Replay, add: Add, num_runs: int, num_steps: int) -> tuple[float, np.ndarray]:
    """Seconds an insert (median of repeats), and the stamps left behind."""

    def run(state: ReplayState, embeddings: Any, key: Any) -> ReplayState:
        body = lambda state, x: (add(state, EXAMPLE, *x), None)  # noqa: E731
        return jax.lax.scan(body, state, (embeddings, jax.random.split(key, num_steps)))[0]

    step = jax.jit(jax.vmap(run) if num_runs > 1 else run, donate_argnums=0)
    states = [late(replay, seed) for seed in range(num_runs)]
    state = jax.tree.map(lambda *x: jnp.stack(x), *states) if num_runs > 1 else states[0]
    ledgers = [getattr(s.index, "ledger", s.index) for s in states]
    inputs = [new_points(np.asarray(x.embedding), num_steps, i) for i, x in enumerate(ledgers)]
    embeddings = jnp.asarray(np.stack(inputs) if num_runs > 1 else inputs[0])
    keys = jax.random.split(jax.random.key(0), num_runs)
    keys = keys if num_runs > 1 else keys[0]
    seconds = []
    for _ in range(4):  # the first one compiles
        begin = time.perf_counter()
        state = jax.block_until_ready(step(state, embeddings, keys))
        seconds.append((time.perf_counter() - begin) / num_steps / num_runs)
    return statistics.median(seconds[1:]), jax.tree.leaves(state)[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="inserts in one scan")
    num_steps = parser.parse_args().steps
    print(f"{jax.devices()[0].device_kind}: {LIVE} live rows, embeddings of {EMBEDDING_SIZE}")
    print(f"{'buffer':28}{'runs':>5}{'us/insert':>11}{'with cond':>11}{'ratio':>7}")
    for rule in (Fifo(), Reservoir(), Local(RADIUS, 1)):
        for num_runs in (1, 10):
            name = type(rule).__name__
            replay = Replay(TransitionIndex(rule, CAPACITY))
            ours, left = measure(replay, replay.add, num_runs, num_steps)
            peer, right = measure(replay, add_with_cond(replay), num_runs, num_steps)
            np.testing.assert_array_equal(left, right)
            times = f"{ours * 1e6:11.1f}{peer * 1e6:11.1f}{peer / ours:7.1f}"
            print(f"{name + ', transitions':28}{num_runs:5}{times}")
            windows = Replay(SequenceIndex(rule, CAPACITY, WINDOW, num_slots=2 * CAPACITY))
            ours, _ = measure(windows, windows.add, num_runs, num_steps)
            print(f"{name + f', windows of {WINDOW}':28}{num_runs:5}{ours * 1e6:11.1f}", flush=True)


if __name__ == "__main__":
    main()
