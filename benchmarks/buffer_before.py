"""One `add` with local forgetting and without numba, beside the same of an older commit.

    python benchmarks/buffer_before.py COMMIT [--out FILE]

Both run in one process and in turns, on the embeddings of `benchmarks/buffers.py`: 16 numbers on a
surface of four dimensions. An older commit's buffer needs jax.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SIZES = 30_000, 300_000, 1_000_000


def package_of(commit: str, folder: str) -> Any:
    """The package of a commit, under its own name or the old one, `lofo`."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    if not Path(folder, "src", "lofo").exists():
        sys.exit(f"{commit} has the package under today's name, so both cannot be imported")
    sys.path.insert(0, f"{folder}/src")
    return import_module("lofo")


def adder(package: Any, points: Any, radius: float) -> Any:
    """A call that adds the next point to a buffer that has seen all of them."""
    buffer = package.ReplayBuffer(package.Local(radius, 1), len(points))
    for point in points:
        buffer.add({"x": 0.0}, embedding=point)
    state = {"next": 0}

    def add() -> None:
        state["next"] = (state["next"] + 1) % len(points)
        buffer.add({"x": 0.0}, embedding=points[state["next"]])

    return add


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    sys.modules["numba"] = None  # type: ignore[assignment]  # cannot be imported from here on
    import lofo_rl
    from buffers import interleaved, provenance, radius_of, repeated, surface

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        packages = {"before": package_of(given.commit, folder), "now": lofo_rl}
        for size in given.sizes:
            points = surface(4, size)
            radius = radius_of(points)
            tasks = {
                name: repeated(adder(package, points, radius)) for name, package in packages.items()
            }
            times = interleaved(tasks, 60)
            micro = {name: float(np.median(own) * 1e6) for name, own in times.items()}
            rows.append({"rows": size} | micro | {"ratio": micro["before"] / micro["now"]})
            print(f"{size:>9,} rows: before {micro['before']:.1f} us, now {micro['now']:.1f} us")
    if given.out:
        found = {"before": given.commit, "rows": rows, "provenance": provenance()}
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
