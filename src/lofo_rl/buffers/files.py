"""A buffer in one file: flat arrays and a JSON manifest; loading it executes nothing.

The file is written whole under another name and then renamed, so at every moment it is complete:
the old one or the new one.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from lofo_rl.functional.sequences import Trajectory
from lofo_rl.types import LofoError

Arrays = dict[str, NDArray[Any]]

Forms = dict[str, tuple[tuple[int, ...], Any]]  # name -> shape, dtype

FORMAT = 1
MANIFEST = "manifest"
KIND = "lofo.ReplayBuffer"
DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, IndexError, AttributeError,
    TypeError, ValueError, OverflowError, NotImplementedError,
)  # fmt: skip


def write(path: str | os.PathLike[str], manifest: dict[str, Any], arrays: Arrays) -> None:
    """Replaces the file."""
    text = json.dumps({"kind": KIND, "format": FORMAT, **manifest})
    part = Path(f"{os.fspath(path)}.part")
    with open(part, "wb") as file:
        image = np.frombuffer(text.encode(), np.uint8)
        np.savez(file, **{MANIFEST: image}, **arrays)  # type: ignore[arg-type]  # names, no options
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
    """The manifest and the arrays of a file."""
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        manifest = json.loads(bytes(file[MANIFEST]))
        if manifest["kind"] != KIND:
            raise LofoError(f"it holds a {manifest['kind']}, not a {KIND}")
        if manifest["format"] != FORMAT:
            raise LofoError(f"it has format {manifest['format']}, this version reads {FORMAT}")
        return manifest, {name: file[name] for name in file.files if name != MANIFEST}


def check(arrays: Arrays, forms: Forms) -> None:
    """Refuse arrays that are missing, unknown, or of another shape or dtype than they should be."""
    if strangers := arrays.keys() ^ forms.keys():
        raise LofoError(f"{sorted(strangers)[0]} is missing from it, or unknown")
    for name, (shape, dtype) in forms.items():
        x = arrays[name]
        if x.shape != shape or x.dtype != dtype:
            raise LofoError(
                f"{name} is {x.dtype}{list(x.shape)}, expected {np.dtype(dtype)}{list(shape)}"
            )


@contextmanager
def judged(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns whatever a bad file causes into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise
    except LofoError as error:
        raise LofoError(f"{os.fspath(path)} cannot be loaded: {error}") from error
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise LofoError(
            f"{os.fspath(path)} is no buffer saved by lofo, or it is damaged ({reason})"
        ) from error


def pack(trajectory: Trajectory, size: int) -> tuple[dict[str, int], Arrays]:
    """The numbers and arrays of a trajectory's book, without what was never touched."""
    book = jax.tree.map(np.asarray, trajectory)
    num_free, high = int(book.num_free), int(book.high_water)
    counts = {
        "num_free": num_free, "high_water": high, "step_overflow": int(book.step_overflow),
    }  # fmt: skip
    arrays = {
        "window": book.window[:size], "filled": book.filled[:size], "recent": book.recent,
        "cover": book.cover[:high], "known": book.known[:high],
        # Slots are taken in order at first, so those above `high` still lie below in the stack.
        "free": book.free[book.num_slots - high : num_free],
    }  # fmt: skip
    return counts, arrays


def pack_forms(counts: dict[str, int], size: int, empty: Trajectory) -> Forms:
    """What the arrays of a packed book look like."""
    high, num_stacked = counts["high_water"], counts["num_free"] - empty.num_slots
    return {
        "window": ((size, empty.window.shape[1]), np.int32),
        "filled": ((size,), np.int32),
        "recent": (empty.recent.shape, np.int32),
        "cover": ((high,), np.int32),
        "known": ((high,), np.bool_),
        "free": ((num_stacked + high,), np.int32),
    }


def unpack(counts: dict[str, int], arrays: Arrays, empty: Trajectory) -> Trajectory:
    """The book that was packed, with its invariants verified: a slot is free or reached."""
    high, size = counts["high_water"], len(arrays["filled"])
    window, filled, recent = (arrays[name] for name in ("window", "filled", "recent"))
    is_there = np.arange(window.shape[1]) < filled[:, None]
    reached, cover = window[is_there], arrays["cover"]
    slots = np.concatenate([arrays["free"], np.flatnonzero(cover)])
    if not (
        ((filled >= 0) & (filled <= window.shape[1])).all()
        and ((recent >= 0) & ((recent < size) | (recent == len(empty.filled)))).all()
        and np.array_equal(np.sort(slots), np.arange(high))
        and ((reached >= 0) & (reached < high)).all()
        and np.array_equal(np.bincount(reached, minlength=high), cover)
    ):
        raise LofoError("its windows contradict each other")
    book = jax.tree.map(np.array, empty)
    book.window[:size], book.filled[:size] = window, filled
    book.cover[:high], book.known[:high] = cover, arrays["known"]
    book.free[book.num_slots - high : counts["num_free"]] = arrays["free"]
    return book._replace(recent=recent, **{name: np.int32(n) for name, n in counts.items()})
