"""`ReplayBuffer` beside other replay buffers and neighbor indexes; every figure is a ratio.

    python benchmarks/buffers.py --install     # make bench-peers: installs the peers, then measures
    python benchmarks/buffers.py --rows fifo   # some rows, with the packages that are there

All contestants of a row run in turns, in slices of some milliseconds, on one core, each with one
thread. A figure is the median over the rounds of (time of the peer) / (time of ours), or the
inverse where it is called a cost. Its spread is the middle half. Time is that of the process, so
what other processes take on a shared machine does not count, only what they do to caches.

Items: observation 17 and next observation 17 float32, action 6 float32, reward, terminated. Each
contestant gets its items in the form it takes fastest, prepared beforehand: dicts of NumPy arrays
and Python numbers for ours and cpprb, arrays [1, ...] for SB3, Tianshou's Batch, TorchRL's
TensorDict, jax arrays for flashbax. SB3 is `ReplayBuffer` with n_envs=1 and
handle_timeout_termination=False, the one of its forms that stores the same items and does the least.

Embeddings: 16 float32 on a surface of 2 or 4 dimensions that is bent smoothly into 16. They follow
a random walk on it, or, in the rows on growth, are drawn independently, which is harder on caches.
The radius is the middle distance to the fifth neighbor. Local forgetting is measured as a whole
`ReplayBuffer.add`, item and all; its peers insert points only: they look for those within the
radius, and write over the oldest of them.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and torch start their threads
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["RL_WARNINGS"] = "False"  # of torchrl

import argparse
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

HOME = Path(__file__).parents[1]
PEERS = {  # requirement: module. Torch comes first: as a dependency it would bring its CUDA form
    "torch==2.13.0": "torch", "stable-baselines3": "stable_baselines3", "cpprb": "cpprb",
    "tianshou": "tianshou", "torchrl": "torchrl", "flashbax": "flashbax", "faiss-cpu": "faiss",
    "hnswlib": "hnswlib", "numba": "numba",
}  # fmt: skip


def install() -> None:
    """Make an environment of the peers, and start again in it; a peer that fails is named."""
    python = HOME / ".venv-peers" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for requirement in ("--editable=.", *PEERS):
        if subprocess.run([*pip, requirement], cwd=HOME).returncode:
            print(f"not installed: {requirement}", flush=True)
    os.execv(python, [str(python), __file__, *(x for x in sys.argv[1:] if x != "--install")])


if __name__ == "__main__" and "--install" in sys.argv:
    install()

import numpy as np  # noqa: E402

from lofo_rl import Fifo, Local, ReplayBuffer  # noqa: E402
from lofo_rl.buffers import cells, neighbors  # noqa: E402

Items = dict[str, Any]  # leaves [n, ...]
BATCH, NUM_ITEMS, CAPACITY, DIMENSION = 256, 512, 100_000, 16


def is_there(module: str | None) -> bool:
    """Whether a peer can be imported."""
    return module is None or importlib.util.find_spec(module) is not None


# --- items, and buffers of items ---


def vectors() -> Items:
    """Items whose observations are vectors."""
    return _items(np.random.default_rng(0).normal(size=(2, NUM_ITEMS, 17)).astype(np.float32))


def images() -> Items:
    """Items whose observations are images."""
    shape = 2, NUM_ITEMS, 64, 64, 3
    return _items(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _items(observations: Any) -> Items:
    rng = np.random.default_rng(1)
    return {
        "observation": observations[0],
        "action": rng.uniform(-1, 1, (NUM_ITEMS, 6)).astype(np.float32),
        "reward": rng.normal(size=NUM_ITEMS).astype(np.float32),
        "terminated": rng.random(NUM_ITEMS) < 0.1,
        "next_observation": observations[1],
    }


def one_by_one(items: Items) -> list[Items]:
    """A dict for each item: arrays, and Python numbers where a leaf is one number."""
    num = len(items["reward"])
    return [{k: x[i] if x.ndim > 1 else x[i].item() for k, x in items.items()} for i in range(num)]


class Contestant:
    """A buffer with its items prepared."""

    def __init__(self, items: Items, capacity: int) -> None:
        """An empty one."""

    def add(self) -> None:
        """Add all items, one call for each."""

    def extend(self) -> None:
        """Add the first 256 items as a batch, if it takes batches."""

    def sample(self) -> None:
        """Draw 256 items."""

    def contents(self) -> Items:
        """What is stored, in the order in which it came."""
        raise NotImplementedError


class Ours(Contestant):
    name = "lofo"

    def __init__(self, items: Items, capacity: int) -> None:
        self.buffer = ReplayBuffer(Fifo(), capacity)
        self.items, self.batch = one_by_one(items), {k: x[:BATCH] for k, x in items.items()}

    def add(self) -> None:
        add = self.buffer.add
        for item in self.items:
            add(item)

    def extend(self) -> None:
        self.buffer.extend(self.batch)

    def sample(self) -> None:
        self.buffer.sample(BATCH)

    def contents(self) -> Items:
        return dict(self.buffer.contents().items)


class StableBaselines(Contestant):
    name = "SB3"

    def __init__(self, items: Items, capacity: int) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer as Peer

        observation = items["observation"]
        low, high = (0, 255) if observation.dtype == np.uint8 else (-np.inf, np.inf)
        self.buffer = Peer(
            capacity,
            spaces.Box(low, high, observation.shape[1:], observation.dtype),
            spaces.Box(-1, 1, (6,), np.float32),
            device="cpu",
            handle_timeout_termination=False,
        )
        names = "observation", "next_observation", "action", "reward", "terminated"
        columns = [items[name] for name in names]
        self.items = [(*(x[i : i + 1] for x in columns), [{}]) for i in range(NUM_ITEMS)]

    def add(self) -> None:
        add = self.buffer.add
        for item in self.items:
            add(*item)

    def extend(self) -> None:
        add = self.buffer.add  # its own `extend` is this loop
        for item in self.items[:BATCH]:
            add(*item)

    def sample(self) -> None:
        self.buffer.sample(BATCH)

    def contents(self) -> Items:
        own = self.buffer
        columns = {
            "observation": own.observations,
            "action": own.actions,
            "reward": own.rewards,
            "terminated": own.dones > 0,
            "next_observation": own.next_observations,
        }
        return {k: x[: own.size(), 0] for k, x in columns.items()}


class Cpprb(Contestant):
    name = "cpprb"

    def __init__(self, items: Items, capacity: int) -> None:
        import cpprb

        forms = {k: {"shape": x.shape[1:] or 1, "dtype": x.dtype} for k, x in items.items()}
        self.buffer = cpprb.ReplayBuffer(capacity, forms)
        self.items, self.batch = one_by_one(items), {k: x[:BATCH] for k, x in items.items()}

    def add(self) -> None:
        add = self.buffer.add
        for item in self.items:
            add(**item)

    def extend(self) -> None:
        self.buffer.add(**self.batch)

    def sample(self) -> None:
        self.buffer.sample(BATCH)

    def contents(self) -> Items:
        found = self.buffer.get_all_transitions()
        return {k: x[:, 0] if k in ("reward", "terminated") else x for k, x in found.items()}


class Tianshou(Contestant):
    name = "Tianshou"

    def __init__(self, items: Items, capacity: int) -> None:
        from tianshou.data import Batch
        from tianshou.data import ReplayBuffer as Peer

        self.buffer = Peer(capacity)
        theirs = "obs", "act", "rew", "terminated", "obs_next"
        self.names = dict(zip(items, theirs, strict=True))
        named = [{self.names[k]: x for k, x in item.items()} for item in one_by_one(items)]
        self.items = [Batch(**item, truncated=False, info={}) for item in named]

    def add(self) -> None:
        add = self.buffer.add
        for item in self.items:
            add(item)

    def extend(self) -> None:
        add = self.buffer.add  # it takes no batch of one environment
        for item in self.items[:BATCH]:
            add(item)

    def sample(self) -> None:
        self.buffer.sample(BATCH)

    def contents(self) -> Items:
        stored = self.buffer[: len(self.buffer)]
        return {k: stored[name] for k, name in self.names.items()}


class TorchRL(Contestant):
    name = "TorchRL"

    def __init__(self, items: Items, capacity: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage
        from torchrl.data import ReplayBuffer as Peer

        torch.set_num_threads(1)
        self.buffer = Peer(storage=LazyTensorStorage(capacity), batch_size=BATCH)
        tensors = {k: torch.from_numpy(x) for k, x in items.items()}
        whole = TensorDict(tensors, batch_size=[NUM_ITEMS])
        self.items, self.batch = [whole[i].clone() for i in range(NUM_ITEMS)], whole[:BATCH]

    def add(self) -> None:
        add = self.buffer.add
        for item in self.items:
            add(item)

    def extend(self) -> None:
        self.buffer.extend(self.batch)

    def sample(self) -> None:
        self.buffer.sample()

    def contents(self) -> Items:
        stored = self.buffer[: len(self.buffer)]
        return {k: x.numpy() for k, x in stored.items()}


class Flashbax(Contestant):
    name = "flashbax"

    def __init__(self, items: Items, capacity: int) -> None:
        import flashbax
        import jax

        buffer = flashbax.make_item_buffer(capacity, 1, BATCH)
        of_batches = flashbax.make_item_buffer(capacity, 1, BATCH, add_batches=True)
        arrays = {k: jax.numpy.asarray(x) for k, x in items.items()}
        self.items = [{k: x[i] for k, x in arrays.items()} for i in range(NUM_ITEMS)]
        self.batch = {k: x[:BATCH] for k, x in arrays.items()}
        self.state = buffer.init(self.items[0])
        self.add_one = jax.jit(buffer.add, donate_argnums=0)
        self.add_batch = jax.jit(of_batches.add, donate_argnums=0)
        self.draw = jax.jit(lambda state, key: buffer.sample(state, key).experience)
        self.keys = list(jax.random.split(jax.random.key(0), 64))
        self.wait = jax.block_until_ready

    def add(self) -> None:
        for item in self.items:
            self.state = self.add_one(self.state, item)
        self.wait(self.state)

    def extend(self) -> None:
        self.state = self.wait(self.add_batch(self.state, self.batch))

    def sample(self) -> None:
        self.keys.append(self.keys.pop(0))
        self.wait(self.draw(self.state, self.keys[0]))

    def contents(self) -> Items:
        size = int(self.state.current_index)
        return {k: np.asarray(x)[0, :size] for k, x in self.state.experience.items()}


BUFFERS: dict[str | None, Any] = {  # by the module that they need
    None: Ours, "stable_baselines3": StableBaselines, "cpprb": Cpprb, "tianshou": Tianshou,
    "torchrl": TorchRL, "flashbax": Flashbax,
}  # fmt: skip


def buffers(items: Items, capacity: int) -> dict[str, Any]:
    """Every buffer whose module is there, by name."""
    kinds = [kind for module, kind in BUFFERS.items() if is_there(module)]
    return {kind.name: kind(items, capacity) for kind in kinds}


# --- points, and indexes of points ---


def surface(num_axes: int, num: int, *, is_walk: bool = True) -> Any:
    """Points [num, 16] on a surface: along a random walk, or drawn independently."""
    rng = np.random.default_rng(0)
    inner = rng.normal(0, 1, (num_axes, 32)).astype(np.float32)
    outer = rng.normal(0, 0.3, (32, DIMENSION)).astype(np.float32)
    shift = rng.uniform(0, 6, 32).astype(np.float32)
    points, last, block = np.empty((num, DIMENSION), np.float32), np.zeros(num_axes), 1 << 18
    for start in range(0, num, block):  # so that 1e7 points take little memory beside
        part = points[start : start + block]
        if is_walk:
            path = last + np.cumsum(rng.normal(0, 0.1, (len(part), num_axes)), 0)
            last = path[-1]
            latent = np.abs((path + 1) % 4 - 2) - 1  # as between mirrors at -1 and 1
        else:
            latent = rng.uniform(-1, 1, (len(part), num_axes))
        part[:] = np.sin(latent.astype(np.float32) @ inner + shift) @ outer
    return points


def cloud(num_axes: int, num: int) -> Any:
    """Points [num, 16], independent and normal on some axes: nothing for an index to exploit."""
    points = np.zeros((num, DIMENSION), np.float32)
    points[:, :num_axes] = np.random.default_rng(0).normal(size=(num, num_axes))
    return points


def radius_of(points: Any) -> float:
    """The middle distance to the fifth neighbor."""
    found = []
    for query in points[:: max(1, len(points) // 25)]:
        blocks = [points[i : i + (1 << 18)] - query for i in range(0, len(points), 1 << 18)]
        squares = np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks])
        found.append(np.sqrt(np.partition(squares, 5)[5]))
    return float(np.median(found))


class LocalBuffer:
    """A `ReplayBuffer` under local forgetting that holds the given points, and adds others.

    `way`: "compiled", "NumPy" (as without numba), or "all rows" (compiled, without an index).
    """

    def __init__(self, points: Any, news: Any, radius: float, way: str = "compiled") -> None:
        size, items = len(points), vectors()
        with ExitStack() as stack:
            if way == "NumPy":
                stack.enter_context(patch.object(neighbors, "kernels", lambda: None))
            if way == "all rows":
                stack.enter_context(patch.object(cells.LinkedCells, "worth", 0.0))
            self.buffer = buffer = ReplayBuffer(Local(radius), size + size // 10 + 100)
            self.items = one_by_one(items)
            buffer.add(self.items[0], embedding=points[0])
            counts = dict.fromkeys(("evictions", "overflow", "near_total"), 0)
            counts |= {"size": size, "clock": size, "embedding_size": DIMENSION}
            arrays = {"stamp": np.arange(size), "embedding": points}
            buffer._ledger.restore(counts, arrays)  # as from a file
        for start in range(0, size, NUM_ITEMS):
            for rows, leaf in zip(buffer._rows, items.values(), strict=True):
                rows[start : min(start + NUM_ITEMS, size)] = leaf[: min(NUM_ITEMS, size - start)]
        self.news, self.number = list(news), 0

    def add(self, num: int) -> None:
        """Add the next items."""
        add, items, news = self.buffer.add, self.items, self.news
        for i in range(self.number, self.number + num):
            add(items[i % NUM_ITEMS], embedding=news[i % len(news)])
        self.number += num

    def points(self) -> Any:
        """The points now."""
        index = self.buffer._ledger.index
        assert index is not None
        return index.points


class Scan:
    """The exhaustive scan in NumPy."""

    def __init__(self, points: Any, news: Any, radius: float) -> None:
        room = np.zeros((len(points) // 10 + 100, DIMENSION), np.float32)
        self.stored = np.concatenate([points, room])
        self.stamps, self.size, self.clock = np.arange(len(self.stored)), len(points), len(points)
        self.news, self.number, self.radius = list(news), 0, radius

    def near(self, point: Any) -> Any:
        """The rows within the radius."""
        return np.flatnonzero(
            np.linalg.norm(self.stored[: self.size] - point, axis=1) < self.radius
        )

    def put(self, row: int, point: Any) -> None:
        """Give a row a new point."""
        self.stored[row] = point

    def add(self, num: int) -> None:
        """Insert the next points."""
        for i in range(self.number, self.number + num):
            point = self.news[i % len(self.news)]
            near = self.near(point)
            row = int(near[self.stamps[near].argmin()]) if len(near) else self.size
            self.put(row, point)
            self.stamps[row] = self.clock
            self.size, self.clock = max(self.size, row + 1), self.clock + 1
        self.number += num

    def points(self) -> Any:
        """The points now."""
        return self.stored[: self.size]


class Faiss(Scan):
    """The exact flat index of faiss; a point is written over in its memory."""

    def __init__(self, points: Any, news: Any, radius: float) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(points, news, radius)
        self.index, self.array_at = faiss.IndexFlatL2(DIMENSION), faiss.rev_swig_ptr
        self.index.add(points)

    def near(self, point: Any) -> Any:
        return self.index.range_search(point[None], self.radius**2)[2]

    def put(self, row: int, point: Any) -> None:
        if row == self.index.ntotal:
            self.index.add(point[None])
        memory = self.array_at(self.index.get_xb(), self.index.ntotal * DIMENSION)
        memory[row * DIMENSION : (row + 1) * DIMENSION] = point
        self.stored[row] = point


class Hnsw(Scan):
    """hnswlib, which is approximate: of the ten points it finds, those within the radius."""

    def __init__(self, points: Any, news: Any, radius: float) -> None:
        import hnswlib

        super().__init__(points, news, radius)
        self.index = hnswlib.Index("l2", DIMENSION)
        self.index.init_index(len(self.stored), ef_construction=100, M=16)
        self.index.set_num_threads(1)
        self.index.set_ef(20)
        self.index.add_items(points, np.arange(len(points)))

    def near(self, point: Any) -> Any:
        rows, squares = self.index.knn_query(point, 10)
        return rows[0][squares[0] < self.radius**2].astype(np.int64)

    def put(self, row: int, point: Any) -> None:
        self.index.add_items(point, row)
        self.stored[row] = point


# --- measuring ---


class Task(NamedTuple):
    """Something to time: `run(n)` does n operations, n a multiple of `step`."""

    run: Callable[[int], Any]
    step: int = 1


def repeated(work: Callable[[], Any], num: int = 1) -> Task:
    """A task from a function that does `num` operations at a time."""

    def run(n: int) -> None:
        for _ in range(n // num):
            work()

    return Task(run, num)


def interleaved(tasks: dict[str, Task], rounds: int, seconds: float = 0.004) -> dict[str, Any]:
    """Seconds an operation [rounds] of each task, in turns, in slices of about `seconds`."""
    nums, order = {}, list(tasks)
    for name, (run, step) in tasks.items():
        run(step)  # compiles
        num, took = step, 0.0
        while took < seconds / 2:
            num *= 1 if took == 0 else 2
            begin = time.process_time()
            run(num)
            took = max(time.process_time() - begin, 1e-9)
        nums[name] = max(step, round(num * seconds / took / step) * step)
    found: dict[str, list[float]] = {name: [] for name in tasks}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name in order:
            begin = time.process_time()
            tasks[name].run(nums[name])
            found[name].append((time.process_time() - begin) / nums[name])
        order.append(order.pop(0))  # so that none always follows the same one
    gc.enable()
    return {name: np.array(times) for name, times in found.items()}


def spread(values: Any) -> dict[str, float]:
    """The median and the middle half."""
    low, median, high = (float(f"{x:.4g}") for x in np.quantile(values, [0.25, 0.5, 0.75]))
    return {"median": median, "low": low, "high": high}


class Table:
    """The lines of the table, printed as they come."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        head = f"{'ours us':>9}{'peer us':>11}{'ratio':>9}  {'middle half':18}goal"
        print(f"{'work':44}{'against':22}{head}")

    def speed(
        self, work: str, against: str, ours: Any, peer: Any, goal: float | None = None
    ) -> None:
        """How many times as long the peer takes; it should be at least the goal."""
        words = None if goal is None else f">= {goal:g}x"
        self._line(work, against, peer / ours, words, lambda x: x >= goal, ours, peer)

    def cost(
        self, work: str, against: str, ours: Any, peer: Any, goal: float | None = None
    ) -> None:
        """How many times as long ours takes; it should be at most the goal."""
        words = None if goal is None else f"cost <= {goal:g}x"
        self._line(work, against, ours / peer, words, lambda x: x <= goal, ours, peer)

    def _line(
        self, work: str, against: str, ratio: Any, goal: str | None,
        is_met: Callable[[float], bool], ours: Any, peer: Any,
    ) -> None:  # fmt: skip
        line = {"work": work, "against": against, "ratio": spread(ratio), "rounds": len(ratio)}
        line |= {"ours_us": spread(ours * 1e6), "peer_us": spread(peer * 1e6)}
        if goal is not None:
            line |= {"goal": goal, "is_met": bool(is_met(line["ratio"]["median"]))}
        self.lines.append(line)
        own, other, found = line["ours_us"]["median"], line["peer_us"]["median"], line["ratio"]
        half = f"{found['low']:.3g} to {found['high']:.3g}"
        words = "" if goal is None else f"{goal}: {'met' if line['is_met'] else 'NOT MET'}"
        numbers = f"{own:9.4g}{other:11.4g}{found['median']:9.3g}  {half:18}{words}"
        print(f"{work:44}{against:22}{numbers}", flush=True)

    def bytes(self, work: str, found: float, bound: float) -> None:
        """How many bytes a row takes; it should be at most the bound."""
        line = {"work": work, "bytes": round(found, 1), "goal": f"<= {bound:g} bytes"}
        self.lines.append(line | {"is_met": found <= bound})
        verdict = "met" if found <= bound else "NOT MET"
        print(f"{work:44}{found:.1f} bytes, goal <= {bound:g}: {verdict}", flush=True)


def fifo(table: Table, rounds: int) -> None:
    """`add` and `extend` under Fifo."""
    made = buffers(vectors(), CAPACITY)
    times = interleaved({name: repeated(x.add, NUM_ITEMS) for name, x in made.items()}, rounds)
    for peer in list(made)[1:]:
        table.speed("add of one item, Fifo", peer, times["lofo"], times[peer], 1.0)
    times = interleaved({name: repeated(x.extend, BATCH) for name, x in made.items()}, rounds)
    best(table, "extend of 256, for each item", times)


def sampling(table: Table, rounds: int) -> None:
    """`sample(256)` of vectors and of images."""
    for words, items, capacity in (("vectors", vectors(), CAPACITY), ("images", images(), 3584)):
        made = buffers(items, capacity)
        for one in made.values():
            for _ in range(3584 // NUM_ITEMS):
                one.add()
        times = interleaved({name: repeated(x.sample) for name, x in made.items()}, rounds)
        best(table, f"sample(256) of {words}", times)


def best(table: Table, work: str, times: dict[str, Any]) -> None:
    """A line for the fastest of the peers, which must not be faster than ours."""
    if peers := sorted(list(times)[1:], key=lambda name: float(np.median(times[name]))):
        table.speed(work, f"{peers[0]}, the best", times["lofo"], times[peers[0]], 1.0)


def local(table: Table, rounds: int) -> None:
    """`add` under local forgetting against SB3's Fifo, the scan, faiss and hnswlib."""
    for size, goal in ((30_000, 100), (300_000, 500), (1_000_000, 1000)):
        both = surface(4, size + 60_000)
        points, news = both[:size], both[size:]
        given = points, news, radius_of(points)
        tasks = {"scan": Task(Scan(*given).add), "NumPy": Task(LocalBuffer(*given, "NumPy").add)}
        if cells.kernels():
            tasks["numba"] = Task(LocalBuffer(*given).add)
        if is_there("faiss"):
            tasks["faiss flat"] = Task(Faiss(*given).add)
        if size == 30_000 and is_there("hnswlib"):
            tasks["hnswlib (approximate)"] = Task(Hnsw(*given).add)
        if size == 30_000 and is_there("stable_baselines3"):
            peer = StableBaselines(vectors(), CAPACITY)
            tasks["SB3's Fifo"] = repeated(peer.add, NUM_ITEMS)
        times = interleaved(tasks, max(11, rounds * 30_000 // size))
        for way in ("numba", "NumPy"):
            if way not in times:
                continue
            work, own = f"Local add, 4-D, {size:.0e} rows, {way}", times[way]
            if "SB3's Fifo" in times:
                goals = {"numba": 3.0}
                table.cost(work, "SB3's Fifo", own, times["SB3's Fifo"], goals.get(way))
            table.speed(work, "NumPy's scan", own, times["scan"], goal if way == "numba" else None)
            for peer in ("faiss flat", "hnswlib (approximate)"):
                if peer in times:
                    table.speed(work, peer, own, times[peer], 1.0 if way == "numba" else None)


def clouds(table: Table, rounds: int) -> None:
    """Where points have no structure, the gain of an index over looking at all rows fades."""
    if not cells.kernels():
        return
    size = 30_000
    for num_axes in (8, 16):
        points = cloud(num_axes, size + 20_000)
        given = points[:size], points[size:], radius_of(points[:size])
        tasks = {"lofo": Task(LocalBuffer(*given).add), "scan": Task(Scan(*given).add)}
        tasks["all rows"] = Task(LocalBuffer(*given, "all rows").add)
        times = interleaved(tasks, rounds)
        work = f"Local add, {num_axes}-D cloud, {size:.0e} rows"
        table.speed(work, "all rows, compiled", times["lofo"], times["all rows"])
        table.speed(work, "NumPy's scan", times["lofo"], times["scan"])


def growth(table: Table, rounds: int) -> None:
    """The cost of one `add` from 1e4 to 1e7 rows, and the memory of a row."""
    item = sum(x.nbytes // NUM_ITEMS for x in vectors().values())
    for num_axes in (2, 4):
        made, used, sizes = {}, 0.0, (10_000, 100_000, 1_000_000, 10_000_000)
        for size in sizes:
            both = surface(num_axes, size + 50_000, is_walk=False)
            points, news = both[:size], both[size:].copy()
            given = points, news, radius_of(points)
            tracemalloc.start()
            made[size] = LocalBuffer(*given)
            used = bytes_of_arrays() / made[size].buffer.capacity
            tracemalloc.stop()
            del both, points, given
        times = interleaved({f"{n:.0e}": Task(x.add) for n, x in made.items()}, rounds)
        for size in sizes[1:]:
            goal = 2.0 if size == sizes[-1] else None
            work = f"Local add, {num_axes}-D, {size:.0e} rows"
            table.cost(work, "1e+04 rows", times[f"{size:.0e}"], times["1e+04"], goal)
        bound = item + 4 * (DIMENSION + 1) + 24
        table.bytes(f"memory of a row, {num_axes}-D, {sizes[-1]:.0e} rows", used, bound)


def bytes_of_arrays() -> int:
    """The bytes of all NumPy arrays that were made since the tracing began, and are there."""
    gc.collect()
    only_arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([only_arrays]).traces
    return sum(trace.size for trace in traces)


def functional(table: Table, rounds: int) -> None:
    """The pure form in `lax.scan`: Fifo beside flashbax, and one Local insert at 3e4 rows."""
    import jax
    import jax.numpy as jnp

    from lofo_rl.functional import Replay, TransitionIndex

    items = {k: jnp.asarray(x) for k, x in vectors().items()}
    example = {k: x[0] for k, x in items.items()}
    keys = jax.random.split(jax.random.key(0), NUM_ITEMS)

    def program_of(add: Any, sample: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = add(state, x[0])
            return state, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sample(state, x[1])))

        return jax.jit(lambda state: jax.lax.scan(step, state, (items, keys)), donate_argnums=0)

    def task_of(state: Any, program: Any, num: int) -> Task:
        held = [state]

        def work() -> None:
            held[0], _ = jax.block_until_ready(program(held[0]))

        return repeated(work, num)

    replay = Replay(TransitionIndex(Fifo(), CAPACITY))
    program = program_of(replay.add, lambda state, key: replay.sample(state, BATCH, key).items)
    tasks = {"lofo": task_of(replay.init(example), program, NUM_ITEMS)}
    if is_there("flashbax"):
        import flashbax

        peer = flashbax.make_item_buffer(CAPACITY, 1, BATCH)
        program = program_of(peer.add, lambda state, key: peer.sample(state, key).experience)
        tasks["flashbax"] = task_of(peer.init(example), program, NUM_ITEMS)
        times = interleaved(tasks, rounds, 0.02)
        work = "pure Fifo: add and sample(256) in scan"
        table.speed(work, "flashbax", times["lofo"], times["flashbax"], 1.0)

    rng, size, num = np.random.default_rng(0), 30_000, 100
    known = rng.uniform(size=(size, DIMENSION)).astype(np.float32)
    news = known[rng.integers(0, size, num)] + np.float32(0.001)
    news[::2] = rng.uniform(size=news[::2].shape)  # half of them have a neighbor
    replay = Replay(TransitionIndex(Local(0.1), 32_768))

    def insert(state: Any, points: Any) -> Any:
        step = lambda state, x: (replay.add(state, example, x), None)  # noqa: E731
        return jax.lax.scan(step, state, points)

    state = jax.jit(insert)(replay.init(example, DIMENSION), jnp.asarray(known))[0]
    ten = jax.tree.map(lambda x: jnp.stack([x] * 10), state)
    one = jax.jit(lambda state: insert(state, jnp.asarray(news)), donate_argnums=0)
    all_ten = jax.jit(jax.vmap(lambda state: insert(state, jnp.asarray(news))), donate_argnums=0)
    times = interleaved(
        {
            "one": task_of(state, one, num),
            "ten": task_of(ten, all_ten, 10 * num),
            "scan": Task(Scan(known, news, 0.1).add),
        },
        max(11, rounds // 4),
        0.02,
    )
    table.speed("pure Local insert, 3e4 rows", "NumPy's scan", times["one"], times["scan"])
    work = "pure Local insert, vmap of 10, for each"
    table.cost(work, "alone", times["ten"], times["one"], 1.2)


ROWS = {
    "fifo": fifo, "sample": sampling, "local": local, "clouds": clouds, "growth": growth,
    "functional": functional,
}  # fmt: skip


def provenance() -> dict[str, Any]:
    """Where and with what it is measured."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("numpy", "jax", *(name.partition("=")[0] for name in PEERS)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    text = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    load = os.getloadavg()[0]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=HOME, capture_output=True, text=True)
        return done.stdout.strip()

    return {
        "date": datetime.date.today().isoformat(),
        "commit": git("rev-parse", "--short", "HEAD"),
        "has_changes": bool(git("status", "--porcelain", "--", "src", "benchmarks")),
        "cpu": models[0] if models else platform.processor(),
        "num_cpus": os.cpu_count(),
        "load": round(load, 2),
        "was_shared": load > 0.5,  # others were running
        "versions": versions,
    }


def main() -> None:
    """Measure the rows, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install the peers, then measure")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="some rows")
    parser.add_argument("--rounds", type=int, default=101, help="slices of each contestant")
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    about = provenance()
    missing = [name for name, module in PEERS.items() if not is_there(module)]
    print(json.dumps(about), f"missing, so left out: {', '.join(missing) or 'none'}", sep="\n")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = Table()
    for name in arguments.rows:
        ROWS[name](table, arguments.rounds)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"about": about | {"missing": missing}, "rows": table.lines}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
