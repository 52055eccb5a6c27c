"""Insert millions of samples into buffers of every kind, and check them on the way.

Every 1,000 inserts one decision is compared with brute force over all rows. Every 100,000 inserts
all invariants are checked, and answers of the index against a scan. Every 300,000 the buffer is
saved and goes on as the loaded one. At the end memory must be what it was after the first third.
"""

import argparse
import copy
import dataclasses
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "buffers"))
from soundness import bytes_of, check_sound, image, item_at, scan

from lofo_rl import Fifo, Local, LofoWarning, Prioritized, ReplayBuffer, Reservoir
from lofo_rl.buffers import neighbors, serialization

BLOCK = 1000  # inserts between two compared decisions
FULL = 100  # blocks between two full checks


@dataclasses.dataclass(frozen=True)
class Lane:
    """One buffer, and its share of all inserts."""

    name: str
    share: float
    rule: object
    capacity: int
    options: dict = dataclasses.field(default_factory=dict)
    has_numba: bool = True


WINDOWS = {"window": 8, "num_streams": 3}
LANES = [
    Lane("local", 0.4, Local(0.25, 1), 30_000),
    Lane("local, groups", 0.2, Local(0.5, 3), 20_000, {"group_by": "group"}),
    Lane("local, windows", 0.1, Local(1.0, 8), 5000, WINDOWS | {"sampler": Prioritized()}),
    Lane("local, windows, groups", 0.1, Local(0.8, 1), 5000, WINDOWS | {"group_by": "group"}),
    Lane("local, NumPy alone", 0.05, Local(0.8, 2), 5000, {"group_by": "group"}, has_numba=False),
    Lane("fifo, prioritized", 0.05, Fifo(), 10_000, {"sampler": Prioritized(beta=1.0)}),
    Lane("fifo, windows", 0.05, Fifo(), 5000, WINDOWS),
    Lane("reservoir, windows", 0.05, Reservoir(), 5000, WINDOWS),
]


class World:
    """Walkers on a 3-D sheet in 16 dimensions, which bends slowly; now and then one jumps."""

    def __init__(self, seed, num_streams):
        self.rng = np.random.default_rng(seed)
        self.inner = self.rng.normal(0, 1, (3, 32))
        self.outer = self.rng.normal(0, 0.3, (32, 16))
        self.phase = self.rng.uniform(0, 6, 32)
        self.latent = self.rng.uniform(-1, 1, (num_streams, 3))
        self.last = np.full(num_streams, -1)
        self.number = 0

    def block(self):
        """The next steps: items [n, ...], streams [n], and which are closing rows [n]."""
        rng, num_streams = self.rng, len(self.latent)
        streams = rng.integers(0, num_streams, BLOCK)
        jumps = rng.random(BLOCK) < 0.02
        latents = np.empty((BLOCK, 3))
        before = np.empty(BLOCK, np.int64)
        for i, stream in enumerate(streams.tolist()):
            moved = self.latent[stream] + rng.normal(0, 0.15, 3)
            self.latent[stream] = rng.uniform(-1, 1, 3) if jumps[i] else moved.clip(-1, 1)
            latents[i], before[i] = self.latent[stream], self.last[stream]
            self.last[stream] = self.number + i
        self.phase += rng.normal(0, 2e-3, 32)
        places = (np.sin(latents @ self.inner + self.phase) @ self.outer).astype(np.float32)
        ids = np.arange(self.number, self.number + BLOCK)
        self.number += BLOCK
        one = item_at(0, places[0])
        items = {name: np.repeat(x[None], BLOCK, 0) for name, x in one.items()}
        items |= {"id": ids, "before": before, "place": places}
        items |= {"group": rng.integers(0, 4, BLOCK).astype(np.int32)}
        items |= {"stream": streams.astype(np.uint8)}
        items["deep"] += ids[:, None, None]
        return items, streams, rng.random(BLOCK) < 0.01


def expected_row(buffer, place, group):
    """The row that a new sample must take, by brute force; the capacity if it is refused."""
    ledger, rule = buffer._ledger, buffer._rule
    size, stamp = ledger.size, ledger.stamp[: ledger.size]
    if isinstance(rule, Fifo):
        return ledger.clock % ledger.capacity
    if size < ledger.capacity:
        fresh = size
    elif isinstance(rule, Reservoir):
        return min(int(copy.deepcopy(buffer._rng).integers(ledger.clock + 1)), ledger.capacity)
    else:
        fresh = int(stamp.argmin())
    if isinstance(rule, Local) and size:
        near = scan(ledger.index, place, group)
        if len(near) >= rule.limit:
            return int(near[stamp[near].argmin()])
    return fresh


def add_checked(buffer, item, stream, is_last):
    """Add one sample, and compare the row that it took with brute force."""
    expected = expected_row(buffer, item["place"], int(item["group"]))
    before = buffer._ledger.clock
    buffer.add(item, embedding=item["place"], stream=stream, is_last=is_last)
    if not is_last:
        rows = np.flatnonzero(buffer._ledger.stamp[: len(buffer)] == before)
        found = int(rows[0]) if len(rows) else buffer._capacity
        assert found == expected, f"took row {found}, brute force says {expected}"


def insert_block(buffer, world):
    """Add a block: a part one by one, a part in batches, and one sample checked."""
    items, streams, lasts = world.block()
    lasts = lasts if buffer._window else np.zeros(BLOCK, bool)
    item = {name: x[0] for name, x in items.items()}
    add_checked(buffer, item, int(streams[0]), bool(lasts[0]))
    at = 1
    while at < BLOCK:
        if world.rng.random() < 0.1:
            item = {name: x[at] for name, x in items.items()}
            stream, is_last = int(streams[at]), bool(lasts[at])
            buffer.add(item, embedding=item["place"], stream=stream, is_last=is_last)
            at += 1
            continue
        part = slice(at, min(BLOCK, at + int(world.rng.integers(1, 120))))
        batch = {name: x[part] for name, x in items.items()}
        own = {"is_last": lasts[part]} if buffer._window else {}
        buffer.extend(batch, embedding=batch["place"], stream=streams[part], **own)
        at = part.stop
    if buffer._priorities is not None:
        batch = buffer.sample(64)
        buffer.update_priorities(batch, world.rng.exponential(size=64))


def soak(lane, num_blocks, seed):
    """Run one lane; returns how many decisions and states were compared, and memory in between."""
    memory, num_full = [], 0
    plain = nullcontext() if lane.has_numba else patch.object(neighbors, "kernels", lambda: None)
    with plain:
        world = World(seed, lane.options.get("num_streams", 1))
        buffer = ReplayBuffer(lane.rule, lane.capacity, seed=seed, **lane.options)
        for block in range(1, num_blocks + 1):
            insert_block(buffer, world)
            if block % FULL == 0 or block == num_blocks:
                check_sound(buffer, is_uncut=True)
                assert buffer.metrics().get("step_overflow", 0) == 0
                num_full += 1
                if num_full % 3 == 0:
                    before = image(buffer)
                    buffer = ReplayBuffer._unpack(
                        *serialization.from_bytes(bytes_of(buffer)), *[None] * 4
                    )
                    assert image(buffer) == before
                memory.append(resident())
    return num_full, memory, buffer.metrics()


def resident():
    """The memory of this process in MB, where the system tells it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inserts", type=float, default=1e7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LofoWarning)
    total = 0
    for number, lane in enumerate(LANES):
        start, num_blocks = (
            time.perf_counter(),
            max(1, round(lane.share * arguments.inserts / BLOCK)),
        )
        num_full, memory, metrics = soak(lane, num_blocks, arguments.seed + number)
        early, late = memory[len(memory) // 3], memory[-1]
        total += num_blocks * BLOCK
        print(
            f"{lane.name:24s} {num_blocks * BLOCK:>10,} inserts, {num_blocks:>6,} decisions and "
            f"{num_full:>3} states compared, 0 differences; {metrics['size']:,} rows, "
            f"{metrics['evictions']:,} evictions, {metrics['overflow']:,} overflows; "
            f"{early:.0f} MB after a third, {late:.0f} MB at the end; "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        assert late <= 1.05 * early + 20, f"memory grew from {early:.0f} to {late:.0f} MB"
    print(f"{total:,} inserts, 0 differences, flat memory")


if __name__ == "__main__":
    main()
