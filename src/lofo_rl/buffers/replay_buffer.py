"""The object API: a buffer for Python users, NumPy in and NumPy out, on the host.

The semantics are those of `Replay`; only the means differ. Neighbours are found by an index whose
cost does not grow with the buffer, and what changes is written in place.
"""

import functools
import inspect
import operator
import os
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers import files
from lofo_rl.buffers.hosted import HostLedger
from lofo_rl.buffers.items import Layout, Leaf, observation_of
from lofo_rl.buffers.rules import Fifo, Local, Reservoir, Rule
from lofo_rl.functional import sequences as trajectories
from lofo_rl.functional.index import SequenceIndex, SequenceState, TransitionIndex
from lofo_rl.functional.sequences import Trajectory
from lofo_rl.functional.storage import HostStorage
from lofo_rl.types import Array, Batch, LofoError, Tree

Embed = Callable[[Any], ArrayLike]
Rows = NDArray[np.int32]

RULES: dict[str, Any] = {kind.__name__: kind for kind in (Fifo, Reservoir, Local)}


class ReplayBuffer:
    """Remembers items under a rule of forgetting; the same seed and calls give the same samples.

    `locality` turns an observation into a point: a function, or an object with a method `embed`,
    such as `functools.partial(jax.jit(locality.embed), params)` of a fitted one. Without it, a
    rule that asks for neighbours wants `embedding=` with every `add`.
    `window` is None for single transitions, or the number of steps of a sequence.
    `num_slots` bounds the steps stored behind the starts, `num_streams` counts parallel worlds.
    """

    def __init__(
        self,
        rule: Rule,
        capacity: int,
        locality: Any = None,
        window: int | None = None,
        seed: int = 0,
        *,
        num_streams: int = 1,
        num_slots: int | None = None,
    ) -> None:
        self._trajectory: Trajectory | None = None
        self._index: TransitionIndex | SequenceIndex = TransitionIndex(rule, capacity)
        if window is not None:
            self._index = SequenceIndex(rule, capacity, window, num_slots, num_streams)
        elif num_slots is not None:
            raise LofoError(f"num_slots={num_slots} bounds the steps of windows: give window=")
        assert self._index.num_slots is not None  # every index settles it on construction
        self._num_slots, self._num_streams = self._index.num_slots, num_streams
        if window is not None:
            self._trajectory = _on_host(self._empty_trajectory())
        self._ledger = HostLedger(rule, capacity)
        self._embed = _embedder(locality)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._every_row = np.arange(capacity, dtype=np.int32)
        self._layout: Layout | None = None  # settled by the first item
        self._rows: list[Leaf] = []  # leaves [T, ...]

    def __len__(self) -> int:
        """How many items, or starts of windows, are remembered."""
        return self._ledger.size

    def __repr__(self) -> str:
        index = self._index
        kind = f"window={index.window}" if isinstance(index, SequenceIndex) else "transitions"
        return f"ReplayBuffer({index.rule}, {len(self)} of {index.capacity}, {kind})"

    def add(
        self,
        item: Tree,
        *,
        embedding: ArrayLike | None = None,
        is_first: bool = False,
        is_last: bool = False,
        stream: int = 0,
    ) -> None:
        """Remember an item, and perhaps forget another.

        In windows, `is_first` marks the first step of an episode, and `is_last` adds its closing
        row: the final observation, which ends windows but starts none, and needs no embedding.
        Each flag may be given here or in the item's own field of that name, where it is written.
        """
        stream = self._checked_stream(stream)
        layout = self._layout or Layout.of(item)
        leaves, rows = layout.fit(item), self._rows or layout.rows(self._num_slots)
        if self._trajectory is not None:
            is_last = layout.mark(leaves, is_first=is_first, is_last=is_last)
        elif is_last:
            raise LofoError("is_last=True adds the closing row of a window: transitions have none")
        row, is_taken = self._index.capacity, False
        if not is_last:
            row, is_taken = self._ledger.add(self._point(item, embedding), self._rng)
        self._layout, self._rows = layout, rows
        slot = row if self._trajectory is None else self._extend(row, is_taken, stream)
        HostStorage().write(rows, slot, leaves)  # type: ignore[arg-type]  # a Python int

    def sample(self, num: int, weight: ArrayLike | None = None) -> Batch:
        """A batch drawn uniformly, or in proportion to a weight [capacity] of the ledger rows."""
        if operator.index(num) < 1:
            raise LofoError(f"num must be at least 1, got {num}")
        rows = self._drawable()
        if weight is None:
            return self._read(rows[self._rng.integers(len(rows), size=num)])
        total = np.cumsum(self._checked_weight(weight)[rows])
        if not total[-1] > 0:
            raise LofoError("weight must be positive for at least one row that can be drawn")
        lots = (1.0 - self._rng.random(num)) * total[-1]  # in (0, total], so no zero weight
        return self._read(rows[np.searchsorted(total, lots)])

    def contents(self) -> Batch:
        """Everything that can be sampled, oldest first."""
        rows = self._drawable()
        return self._read(rows[np.argsort(self._ledger.stamp[rows])])

    def can_sample(self) -> bool:
        """Whether there is anything to sample: an item, or a complete window."""
        return len(self._candidates()) > 0

    def metrics(self, age: int | None = None) -> dict[str, int | float]:
        """How the buffer fares; `older` is the fraction not among the last `age` newcomers."""
        state: Any = self._ledger.view()
        if self._trajectory is not None:
            state = SequenceState(state, self._trajectory)
        metrics = jax.device_get(self._index.metrics(state, age))
        return {name: np.asarray(value).item() for name, value in metrics.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole buffer to one file, except its locality."""
        index, ledger, num_rows = self._index, self._ledger, len(self)
        counts, arrays = ledger.pack()
        manifest = {
            "rule": _describe_rule(index.rule), "capacity": index.capacity,
            "num_streams": self._num_streams, "rng": self._rng.bit_generator.state,
            "ledger": counts, "layout": self._layout and self._layout.describe(),
        }  # fmt: skip
        if isinstance(index, SequenceIndex) and self._trajectory is not None:
            counts, book = files.pack(self._trajectory, len(self))
            arrays |= book
            num_rows = counts["high_water"]
            manifest |= {"window": index.window, "num_slots": self._num_slots, "trajectory": counts}
        arrays |= {f"leaf{i}": rows[:num_rows] for i, rows in enumerate(self._rows)}
        files.write(path, manifest, arrays)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, locality: Any = None, example: Tree | None = None
    ) -> Self:
        """The buffer that was saved, which continues exactly as the saved one would have.

        An `example` item is needed where items are of classes unknown to this library.
        """
        embed = _embedder(locality)
        with files.judged(path):
            manifest, arrays = files.read(path)
            rule = RULES[manifest["rule"]["name"]](**manifest["rule"]["numbers"])
            names = ("window", "num_streams", "num_slots")
            options = {name: manifest[name] for name in names if name in manifest}
            buffer = cls(rule, manifest["capacity"], **options)
            buffer._restore(manifest, arrays, example)
        buffer._embed = embed
        return buffer

    def _restore(self, manifest: dict[str, Any], arrays: files.Arrays, example: Tree) -> None:
        self._rng.bit_generator.state = manifest["rng"]
        forms, size = self._ledger.forms(manifest["ledger"]), manifest["ledger"]["size"]
        num_rows = size
        if self._trajectory is not None:
            counts, empty = manifest["trajectory"], self._empty_trajectory()
            forms |= files.pack_forms(counts, size, empty)
            num_rows = counts["high_water"]
        if manifest["layout"] is not None:
            layout = Layout.restore(manifest["layout"], example)
            pairs = zip(layout.shapes, layout.dtypes, strict=True)
            forms |= {f"leaf{i}": ((num_rows, *s), d) for i, (s, d) in enumerate(pairs)}
            self._layout, self._rows = layout, layout.rows(self._num_slots)
        elif size:
            raise LofoError(f"it does not say what its {size} items look like")
        files.check(arrays, forms)
        self._ledger.restore(manifest["ledger"], arrays)
        if self._trajectory is not None:
            self._trajectory = _on_host(files.unpack(counts, arrays, empty))
        for i, rows in enumerate(self._rows):
            rows[:num_rows] = arrays[f"leaf{i}"]

    def _extend(self, row: int, is_taken: bool, stream: int) -> int:
        voids_rewards = self._index.rule.voids_rewards
        self._trajectory, slot = _add_step(
            self._trajectory, row, is_taken, stream, voids_rewards=voids_rewards
        )
        return int(slot)

    def _read(self, rows: Rows) -> Batch:
        slots, known = rows, np.ones(len(rows), bool)
        if self._trajectory is not None:
            slots = np.asarray(self._trajectory.window)[rows]
            known = np.asarray(self._trajectory.known)[slots]
        assert self._layout is not None  # there is something to read
        leaves: Any = HostStorage().read(self._rows, slots)  # type: ignore[arg-type]  # NumPy's
        return Batch(self._layout.structure.unflatten(leaves), known, rows)  # type: ignore[arg-type]  # likewise

    def _candidates(self) -> Rows:
        if self._trajectory is None:
            return self._every_row[: len(self)]
        window = self._trajectory.window.shape[1]
        return self._every_row[np.asarray(self._trajectory.filled) == window]

    def _drawable(self) -> Rows:
        rows = self._candidates()
        if len(rows):
            return rows
        if self._trajectory is None:
            raise LofoError("nothing to sample: the buffer is empty, add at least 1 more item")
        window, recent = self._trajectory.window.shape[1], np.asarray(self._trajectory.recent)
        filled = np.append(np.asarray(self._trajectory.filled), 0)[recent]
        raise LofoError(
            f"nothing to sample: no window of {window} steps is complete, "
            f"add at least {window - filled.max(initial=0)} more steps to a stream"
        )

    def _point(self, item: Tree, embedding: ArrayLike | None) -> NDArray[np.float32] | None:
        """The embedding that the rule asks for, given or from the locality."""
        if not self._index.rule.needs_embedding:
            return None
        if embedding is not None:
            return np.asarray(embedding, np.float32)
        if self._embed is None:
            name = type(self._index.rule).__name__
            raise LofoError(f"{name} needs to know what is near: give locality= or add(embedding=)")
        return np.asarray(self._embed(observation_of(item)), np.float32)

    def _checked_stream(self, stream: int) -> int:
        if not 0 <= operator.index(stream) < self._num_streams:
            raise LofoError(f"stream must lie in [0, {self._num_streams}), got {stream}")
        return operator.index(stream)

    def _checked_weight(self, weight: ArrayLike) -> NDArray[np.float64]:
        numbers, shape = np.asarray(weight, np.float64), (self._index.capacity,)
        if numbers.shape != shape or not (np.isfinite(numbers) & (numbers >= 0)).all():
            raise LofoError(
                f"weight must be finite, not negative, of shape {shape}: got {weight!r}"
            )
        return numbers

    def _empty_trajectory(self) -> Trajectory:
        index = self._index
        assert isinstance(index, SequenceIndex)  # only windows have one
        return trajectories.init(index.capacity, index.window, self._num_slots, self._num_streams)


@functools.partial(jax.jit, donate_argnums=0, static_argnames="voids_rewards")
def _add_step(
    trajectory: Trajectory, row: Array, is_taken: Array, stream: Array, *, voids_rewards: bool
) -> tuple[Trajectory, Array]:
    return trajectories.add(trajectory, row, is_taken, stream, voids_rewards=voids_rewards)


def _on_host(trajectory: Trajectory) -> Trajectory:
    """The book on the host's own device, where there is one: a step is too small to travel."""
    try:
        return jax.device_put(trajectory, jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # this process was told to use no such device
        return jax.device_put(trajectory)


def _embedder(locality: Any) -> Embed | None:
    embed = getattr(locality, "embed", locality)
    if embed is None:
        return None
    if not callable(embed):
        raise LofoError(f"locality must be a function or have a method embed, got {locality!r}")
    try:
        inspect.signature(embed).bind(None)
    except TypeError as error:
        raise LofoError(
            f"locality must turn one observation into a vector, got {locality!r}: "
            "of a fitted one, give functools.partial(jax.jit(locality.embed), params)"
        ) from error
    except ValueError:  # a built-in that does not tell: it will be seen when it is called
        pass
    return embed


def _describe_rule(rule: Rule) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    if isinstance(rule, Local):
        numbers = {"radius": float(rule.radius), "limit": int(rule.limit)}
    return {"name": type(rule).__name__, "numbers": numbers}
