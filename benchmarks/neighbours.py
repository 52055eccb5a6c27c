"""Time of one LoFo insert (near, oldest, put) against the scan `norm(points - e) < radius`.

    python benchmarks/neighbours.py [--sizes 3e4 1e6]

Streams: man2 and man4 are bounded random walks on a 2- or 4-dimensional manifold bent smoothly
into 16-D, walk16 is a random walk in all 16 dimensions, cloud16 has no structure to exploit.
The radius is set so that the middle query has about five neighbours.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core, before numpy starts its threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Iterator

import numpy as np

from lofo_rl.buffers.cells import kernels
from lofo_rl.buffers.neighbors import Automatic, Exhaustive, Grid, oldest_near

EMBEDDING_SIZE = 16
NUM_INSERTS = 2000


def walk(rng: np.random.Generator, num: int, num_axes: int) -> np.ndarray:
    """A random walk, [num, num_axes]."""
    return np.cumsum(rng.normal(0, 0.1, (num, num_axes)), 0)


def reflect(path: np.ndarray) -> np.ndarray:
    """The path as it would run between mirrors at -1 and 1."""
    return np.abs((path + 1) % 4 - 2) - 1


def bend(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """A smooth image of the latent in 16-D."""
    inner, outer = rng.normal(0, 1, (latent.shape[1], 32)), rng.normal(0, 0.3, (32, EMBEDDING_SIZE))
    return np.sin(latent @ inner + rng.uniform(0, 6, 32)) @ outer


def stream(name: str, num: int, seed: int = 0) -> np.ndarray:
    """The embeddings of one stream, [num, 16] float32."""
    rng = np.random.default_rng(seed)
    if name == "cloud16":
        return rng.normal(size=(num, EMBEDDING_SIZE)).astype(np.float32)
    num_axes = int(name.removeprefix("man").removeprefix("walk"))
    path = walk(rng, num, num_axes)
    return (bend(rng, reflect(path)) if name.startswith("man") else path).astype(np.float32)


def radius_of(points: np.ndarray) -> float:
    """The middle distance to the fifth neighbour."""
    queries = points[:: len(points) // 40]
    return float(np.median([np.sort(np.linalg.norm(points - q, axis=1))[5] for q in queries]))


def naive(points: np.ndarray, news: np.ndarray, radius: float) -> float:
    """Microseconds an insert with the scan over all."""
    points, stamps = points.copy(), np.arange(len(points))
    start = time.perf_counter()
    for i, e in enumerate(news):
        near = np.flatnonzero(np.linalg.norm(points - e, axis=1) < radius)
        row = near[stamps[near].argmin()] if len(near) else i
        points[row], stamps[row] = e, len(points) + i
    return (time.perf_counter() - start) / len(news) * 1e6


def insert(index: Exhaustive, stamps: np.ndarray, news: np.ndarray, clock: int) -> float:
    """Microseconds an insert with an index; who finds nobody near takes the place of some row.

    Two seconds are enough to know a slow method.
    """
    start = time.perf_counter()
    for i, e in enumerate(news):
        row, _ = oldest_near(index, stamps, e)
        row = row if row >= 0 else i
        index.put(row, e)
        stamps[row] = clock + i
        if time.perf_counter() - start > 2:
            break
    return (time.perf_counter() - start) / (i + 1) * 1e6


def basis_of(points: np.ndarray) -> np.ndarray:
    """The first three principal axes, [16, 3]."""
    return np.linalg.eigh(np.cov(points[::10], rowvar=False))[1][:, :-4:-1]


def methods(points: np.ndarray, radius: float) -> Iterator[tuple[str, Exhaustive]]:
    """Every index there is, empty; the compiled ones where numba can be imported."""
    size, basis = len(points), basis_of(points)
    yield "exhaustive", Exhaustive(size, EMBEDDING_SIZE, radius)
    for compiled in (False, True) if kernels() else (False,):
        suffix = " numba" if compiled else ""
        grid = Grid(size, EMBEDDING_SIZE, radius, basis=basis, compiled=compiled)
        yield "grid" + suffix, grid
        yield "automatic" + suffix, Automatic(size, EMBEDDING_SIZE, radius, compiled)


def measure(name: str, size: int) -> None:
    """Print one line a method for one stream at one size."""
    both = stream(name, size + 200 + NUM_INSERTS)
    points, news = both[:size], both[size:]
    radius = radius_of(points)
    base = naive(points, news[: max(10, 2_000_000 // size)], radius)
    print(f"{name:8} {size:9,} {'scan':16} {base:10.1f} {1:8.1f}", flush=True)
    for method, index in methods(points, radius):
        stamps = np.arange(size)
        start = time.perf_counter()
        index.fill(points)
        built = time.perf_counter() - start
        insert(index, stamps, news[:200], size)  # compiles, and lets a grid show its worth
        took = insert(index, stamps, news[200 : 200 + NUM_INSERTS], size + 200)
        seen = getattr(index, "num_candidates", 0) / getattr(index, "num_queries", 1)
        axes = getattr(index, "num_axes", 3 * isinstance(index, Grid))
        print(
            f"{name:8} {size:9,} {method:16} {took:10.1f} {base / took:8.1f} "
            f"{seen or size:11,.0f} {axes:5} {built:7.2f}",
            flush=True,
        )


def main() -> None:
    """Every stream at every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=float, default=[3e4, 3e5])
    parser.add_argument("--streams", nargs="+", default=["man2", "man4", "walk16", "cloud16"])
    arguments = parser.parse_args()
    print("stream        size method             us/insert    ratio  candidates  axes  fill s")
    for size in arguments.sizes:
        for name in arguments.streams:
            measure(name, int(size))


if __name__ == "__main__":
    main()
