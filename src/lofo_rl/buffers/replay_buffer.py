"""The object API: a replay buffer for Python users, NumPy in and NumPy out.

The semantics are those of `lofo_rl.functional.Replay`. Neighbors are found by an index whose cost
does not grow with the buffer, and rows are written in place.
"""

import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers import memory, serialization
from lofo_rl.buffers.arrays import as_array, checked_groups, checked_size
from lofo_rl.buffers.cells import Points, Rows
from lofo_rl.buffers.item_spec import ItemSpec, Leaf, observation_of
from lofo_rl.buffers.ledger import NO_ROWS, Ledger
from lofo_rl.buffers.neighbors import checked_points
from lofo_rl.buffers.priorities import Priorities, Prioritized
from lofo_rl.buffers.rules import Fifo, Local, Reservoir, Rule, check_class_variables
from lofo_rl.buffers.sequences import Trajectory
from lofo_rl.types import Batch, LofoError, LofoWarning, Tree

Embed = Callable[[Any], ArrayLike]
GroupOf = str | Callable[[Any], Any]

RULES: dict[str, Any] = {kind.__name__: kind for kind in (Fifo, Reservoir, Local)}
REVIEWED = 1024  # samples between two looks at settings that defeat themselves


class ReplayBuffer:
    """Remembers items under a rule of forgetting; the same seed and calls give the same samples.

    `rule`: `Fifo()`, `Reservoir()`, `Local(radius, limit)`, or a rule of your own.
    `capacity`: the most items, or starts of windows, that it holds.
    `locality`: a function from an observation to a vector, or an object with a method `embed`.
    Without it, a rule that needs neighbors takes `embedding=` with every `add`.
    `window`: None for single transitions, or the number of steps of a sequence.
    `group_by`: the name of a leaf, such as "action", or a function from an item to an integer; only
    samples of the same group are neighbors.
    `sampler`: `Prioritized(...)` to sample by error, None to sample uniformly.
    `num_slots` bounds the steps stored behind the starts of windows, `num_streams` counts parallel
    environments, whose steps are chained apart.

    All methods may be called from several threads.
    """

    def __init__(
        self,
        rule: Rule,
        capacity: int,
        locality: Any = None,
        window: int | None = None,
        seed: int = 0,
        *,
        group_by: GroupOf | None = None,
        sampler: Prioritized | None = None,
        num_streams: int = 1,
        num_slots: int | None = None,
    ) -> None:
        self._rule = _checked_rule(rule)
        self._capacity = checked_size("capacity", capacity)
        self._num_streams = checked_size("num_streams", num_streams)
        self._window = None if window is None else checked_size("window", window)
        self._num_slots = self._default_slots()
        if num_slots is not None:
            if self._window is None:
                raise LofoError(f"num_slots={num_slots} bounds the steps of windows: give window=")
            self._num_slots = checked_size("num_slots", num_slots)
            if self._num_slots < self._window:
                raise LofoError(f"num_slots must hold a window of {window}, got {num_slots}")
        if sampler is not None and not isinstance(sampler, Prioritized):
            raise LofoError(f"sampler must be Prioritized(...) or None, got {sampler!r}")
        if sampler is not None and any(np.ndim(number) for number in vars(sampler).values()):
            raise LofoError(f"one buffer has one exponent, floor and beta, got {sampler}")
        if group_by is not None and not (isinstance(group_by, str) or callable(group_by)):
            raise LofoError(f"group_by must name a leaf or be a function, got {group_by!r}")
        if group_by is not None and not rule.needs_embedding:
            raise LofoError(
                f"groups divide neighbors, and {rule} looks at none: leave out group_by"
            )
        self._embed, self._group_by, self._sampler = _embedder(locality), group_by, sampler
        self._is_embedding = self._embed is not None and rule.needs_embedding
        self._seed = checked_size("seed", seed, least=0)
        self._is_grouped: bool | None = None  # open until the first sample, without group_by
        memory.require(
            self._index_bytes(0), f"a book of {self._capacity:,} rows", "lower capacity or window"
        )
        self._lock = threading.RLock()
        self._is_changing = False  # true outside of `add` and its like: they did not come to an end
        self._warned: set[str] = set()
        self._reset()
        with _FORKING:
            _LIVING.add(self)

    def _reset(self) -> None:
        """Hold nothing, and take memory only when it is written."""
        self._is_grouped = None if self._group_by is None else True
        self._rng = np.random.Generator(np.random.PCG64(self._seed))
        self._ledger = Ledger(self._rule, self._capacity, is_grouped=bool(self._is_grouped))
        self._steps: Trajectory | None = None
        if self._window is not None:
            shape = self._capacity, self._window, self._num_slots, self._num_streams
            self._steps = Trajectory(*shape)
        self._priorities = (
            None if self._sampler is None else Priorities(self._sampler, self._capacity)
        )
        self._spec: ItemSpec | None = None  # settled by the first item
        self._rows: list[Leaf] = []  # leaves [T, ...]
        self._one_row = np.zeros(1, np.int64)
        self._reviewed = (0, 0, 0, 0)  # clock, overflow, cut windows, neighbors at the last review

    @property
    def rule(self) -> Rule:
        """The rule of forgetting."""
        return self._rule

    @property
    def capacity(self) -> int:
        """The most items, or starts of windows, that it holds."""
        return self._capacity

    def __len__(self) -> int:
        """How many items, or starts of windows, are remembered."""
        return self._ledger.size

    def __repr__(self) -> str:
        kind = "transitions" if self._window is None else f"window={self._window}"
        return f"ReplayBuffer({self._rule}, {len(self)} of {self._capacity}, {kind})"

    def add(
        self,
        item: Tree,
        *,
        embedding: ArrayLike | None = None,
        group: int | None = None,
        is_first: bool = False,
        is_last: bool = False,
        stream: int = 0,
    ) -> None:
        """Remember an item, and perhaps forget another.

        In windows, `is_first` marks the first step of an episode, and `is_last` adds its closing
        row: the final observation, which ends windows but starts none, and needs no embedding.
        Each flag may be given here or in the item's own field of that name, where it is written.
        """
        if is_first is not False or is_last is not False:
            is_first, is_last = _flag("is_first", is_first), _flag("is_last", is_last)
        if embedding is None and self._is_embedding and not (is_last or self._closes(item)):
            embedding = self._embed(observation_of(item))  # type: ignore[misc]  # there is one
        with self._lock:
            if self._is_changing:
                self._check_whole()
            spec = self._spec or ItemSpec.of(item)
            leaves: Any = spec.fit(item)
            if type(stream) is not int or stream or self._num_streams > 1:
                stream = self._checked_stream(stream)
            steps = self._steps
            if steps is not None or is_first:
                leaves = list(leaves)
            if steps is not None:
                is_last = _mark(spec, leaves, is_first, is_last)
            elif is_last:
                raise LofoError(
                    "is_last=True adds the closing row of a window: transitions have none"
                )
            elif is_first:
                _mark(spec, leaves, is_first, False)
            ledger, row, point, groups = self._ledger, self._one_row, None, None
            if not is_last:
                if self._rule.needs_embedding:
                    if embedding is None:
                        raise self._no_embedding()
                    point = ledger.checked(embedding)
                if group is not None or self._is_grouped:
                    groups = self._groups(item, leaves, group, spec)
            clock, size = ledger.clock, ledger.size
            row[0] = start = self._capacity if is_last else -1
            self._is_changing = True
            try:
                if is_last:
                    self._settle(spec)
                else:
                    if not clock or self._spec is None:  # the first one
                        self._settle(spec, point, groups is not None)
                    start = ledger.add_one(point, groups, self._rng, row)
                slot = start
                if steps is not None:
                    slot = self._extend_window(start, start < size, stream)
                elif self._priorities is not None and start < self._capacity:
                    self._priorities.put(start, True)
                if slot < self._num_slots:
                    for column, leaf in zip(self._rows, leaves):  # noqa: B905  # strict takes time
                        column[slot] = leaf
            except BaseException as error:
                batch = [np.asarray(leaf)[None] for leaf in leaves]
                rows = NO_ROWS if is_last else row
                if not self._is_untouched(error, rows):
                    self._finish(clock, point, groups, rows, batch, [stream], NO_ROWS)
                self._is_changing = False
                raise
            self._is_changing = False
            if not ledger.clock % REVIEWED:
                self._review()

    def extend(
        self,
        items: Tree,
        *,
        embedding: ArrayLike | None = None,
        group: ArrayLike | None = None,
        is_first: ArrayLike | None = None,
        is_last: ArrayLike | None = None,
        stream: ArrayLike = 0,
    ) -> None:
        """Add a batch of items, leaves [n, ...], in order: as n calls of `add`, but cheaper.

        `embedding` is [n, D]; without it, the locality is called once with all n observations.
        `group`, `is_first`, `is_last` and `stream` are [n], or one value for all.
        """
        if embedding is None and self._rule.needs_embedding and self._embed is not None:
            embedding = self._embed(observation_of(items))
        with self._lock:
            self._check_whole()
            spec = self._spec or ItemSpec.of_batch(items)
            leaves, num = spec.fit_batch(items)
            if not num:
                return
            streams, is_start = NO_ROWS, np.ones(num, np.bool_)
            if type(stream) is not int or stream or self._steps is not None:
                streams = self._checked_streams(stream, num)
            if is_first is not None or is_last is not None or self._steps is not None:
                firsts = _flags("is_first", is_first, num)
                lasts = _flags("is_last", is_last, num)
                if self._steps is not None:
                    is_start = ~_mark_batch(spec, leaves, firsts, lasts)
                elif lasts.any():
                    raise LofoError(
                        "is_last=True adds the closing row of a window: transitions have none"
                    )
                elif firsts.any():
                    _mark_batch(spec, leaves, firsts, lasts)
            points, groups = None, None
            if is_start.any():
                points = self._points(embedding, is_start)
                groups = self._groups_of_batch(leaves, group, spec, is_start)
            clock, size = self._ledger.clock, self._ledger.size
            rows = np.full(int(is_start.sum()), -1, np.int64)
            growing = NO_ROWS if self._steps is None else self._steps.recent[streams].ravel()
            self._is_changing = True
            try:
                if len(rows):
                    self._settle(spec, points, groups is not None)
                    self._ledger.add(points, groups, self._rng, rows)
                else:
                    self._settle(spec)
                if self._steps is None:
                    self._write_rows(rows, leaves)
                else:
                    self._write_steps(rows, size, is_start, streams, leaves)
            except BaseException as error:
                if not self._is_untouched(error, rows):
                    self._finish(clock, points, groups, rows, leaves, streams, growing)
                self._is_changing = False
                raise
            self._is_changing = False
            if self._ledger.clock // REVIEWED > clock // REVIEWED:
                self._review()

    def sample(self, num: int, weight: ArrayLike | None = None) -> Batch:
        """A batch of `num`: uniform, by the sampler, or by a weight [capacity] of the rows."""
        num = checked_size("num", num)
        with self._lock:
            self._check_whole()
            count = self._count()
            if num >> 20 and self._spec is not None:
                size = num * (self._window or 1) * self._spec.num_bytes
                memory.require(size + 64 * num, f"a batch of {num:,}", "sample fewer")
            if weight is not None:
                return self._read(self._weighted(num, weight))
            if self._priorities is not None:
                rows, weights = self._priorities.draw(num, self._rng)
                return self._read(rows)._replace(weights=weights)  # type: ignore[arg-type]  # NumPy's
            rows = self._rng.integers(count, size=num)
            return self._read(rows if self._steps is None else self._steps.complete[rows])

    def update_priorities(self, batch: Batch, errors: ArrayLike) -> None:
        """Give the samples of a batch the priorities of their errors [B], which are at least 0.

        A sample that was forgotten since the batch was drawn is skipped.
        """
        with self._lock:
            self._check_whole()
            if self._priorities is None:
                raise LofoError("priorities are for a buffer with sampler=Prioritized(...)")
            if not isinstance(batch, Batch) or batch.stamps is None:
                raise LofoError("the batch has no stamps: give one that sample() returned")
            rows, stamps = as_array("starts", batch.starts), as_array("stamps", batch.stamps)
            if not (
                rows.ndim == 1
                and rows.shape == stamps.shape
                and rows.dtype.kind == stamps.dtype.kind == "i"
                and ((rows >= 0) & (rows < self._capacity)).all()
            ):
                raise LofoError(f"it is no batch of this buffer: its starts are {rows}")
            given = _checked_numbers("errors", errors, rows.shape)
            is_there = self._ledger.stamp[rows] == stamps
            self._priorities.update(rows[is_there], given[is_there])

    def contents(self) -> Batch:
        """Everything that can be sampled, oldest first."""
        with self._lock:
            self._check_whole()
            self._count()
            rows = self._drawable()
            return self._read(rows[np.argsort(self._ledger.stamp[rows])])

    def can_sample(self) -> bool:
        """Whether there is anything to sample: an item, or a complete window."""
        return (len(self) if self._steps is None else self._steps.num_complete) > 0

    def clear(self) -> None:
        """Forget everything, the form of the items and the random state included.

        Batches that were drawn before are no batches of this buffer any more.
        """
        with self._lock:
            self._is_changing = True
            self._reset()
            self._is_changing = False

    def metrics(self, age: int | None = None) -> dict[str, int | float]:
        """Occupancy and forgetting; `older` is the fraction not among the last `age` samples."""
        if age is not None:
            age = checked_size("age", age, least=0)
        with self._lock:
            self._check_whole()
            ledger = self._ledger
            found: dict[str, int | float] = {
                "size": ledger.size,
                "capacity": ledger.capacity,
                "overflow": ledger.overflow,
                "evictions": ledger.evictions,
                "mean_near": ledger.near_total / max(ledger.clock, 1),
            }
            if (expected := getattr(self._rule, "expected_size", None)) is not None:
                found["expected_size"] = expected
            if age is not None:
                stamps = ledger.stamp[: ledger.size]
                old = np.count_nonzero(stamps < ledger.clock - age)
                found["older"] = int(old) / max(ledger.size, 1)
            if (steps := self._steps) is not None:
                found.update(
                    complete=steps.num_complete,
                    num_steps=steps.num_steps,
                    max_steps=steps.high_water,
                    num_slots=steps.num_slots,
                    step_overflow=steps.step_overflow,
                    unknown_rewards=steps.num_unknown,
                )
            return found

    def describe(
        self, item: Tree | None = None, embedding_size: int | None = None
    ) -> dict[str, int]:
        """Rows and bytes of the full buffer; before the first `add`, give an example item.

        `row` is the bytes of one item, `items` those of all, `index` those of the rest.
        """
        spec = self._spec if item is None else ItemSpec.of(item)
        if spec is None:
            raise LofoError("the buffer has seen no item yet: give describe(item) an example")
        if embedding_size is None:
            embedding_size = self._ledger.embedding_size
            if self._rule.needs_embedding and not embedding_size:
                if self._embed is None or item is None:
                    raise LofoError("the rule needs embeddings: give embedding_size=")
                embedding_size = np.size(
                    as_array("an embedding", self._embed(observation_of(item)))
                )
        embedding_size = checked_size("embedding_size", embedding_size, least=0)
        index = self._index_bytes(embedding_size)
        items = self._num_slots * spec.num_bytes
        return {
            "rows": self._num_slots,
            "row": spec.num_bytes,
            "items": items,
            "index": index,
            "total": items + index,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole buffer to one file, except its locality and a function group_by."""
        with self._lock:
            self._check_whole()
            serialization.write(path, *self._pack())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        rule: Rule | None = None,
        locality: Any = None,
        group_by: GroupOf | None = None,
        example: Tree | None = None,
    ) -> Self:
        """The buffer that was saved, which continues exactly as the saved one would have.

        A rule of your own must be given again, and so must an `example` item where items are of
        classes unknown to this library.
        """
        with serialization.judged(path):
            return cls._unpack(*serialization.read(path), rule, locality, group_by, example)

    def __reduce__(self) -> Any:
        with self._lock:
            self._check_whole()
            image = serialization.to_bytes(*self._pack())
            example = None
            if self._spec is not None:  # it names the classes of the items
                example = self._spec.unflatten(
                    [
                        np.zeros(*form)
                        for form in zip(self._spec.shapes, self._spec.dtypes, strict=True)
                    ]
                )
        group_by = self._group_by if callable(self._group_by) else None
        rule = None if type(self._rule) in RULES.values() else self._rule
        return _unpickled, (type(self), image, rule, self._embed, group_by, example)

    def _pack(self) -> tuple[dict[str, Any], serialization.Arrays]:
        counts, arrays = self._ledger.pack()
        rule = self._rule
        is_known = type(rule) in RULES.values()
        numbers: dict[str, Any] = {}
        if isinstance(rule, Local):
            numbers = {"radius": float(rule.radius), "limit": int(rule.limit)}
        num_rows = len(self)
        manifest: dict[str, Any] = {
            "kind": "ReplayBuffer",
            "rule": {"name": type(rule).__name__, "numbers": numbers} if is_known else repr(rule),
            "expected_size": getattr(rule, "expected_size", None),
            "capacity": self._capacity,
            "num_streams": self._num_streams,
            "seed": self._seed,
            "rng": self._rng.bit_generator.state,
            "ledger": counts,
            "spec": self._spec and self._spec.describe(),
            "is_grouped": self._is_grouped,
            "group_by": self._group_by if isinstance(self._group_by, str) else None,
        }
        if self._steps is not None:
            counts, book = self._steps.pack(len(self))
            arrays.update(book)
            num_rows = counts["high_water"]
            manifest.update(window=self._window, num_slots=self._num_slots, steps=counts)
        if self._priorities is not None and self._sampler is not None:
            highest, arrays["priority"] = self._priorities.pack(len(self))
            numbers = {name: float(x) for name, x in vars(self._sampler).items()}
            manifest.update(sampler=numbers, highest=highest)
        arrays.update({f"leaf{i}": rows[:num_rows] for i, rows in enumerate(self._rows)})
        return manifest, arrays

    @classmethod
    def _unpack(
        cls,
        manifest: dict[str, Any],
        arrays: serialization.Arrays,
        rule: Rule | None,
        locality: Any,
        group_by: GroupOf | None,
        example: Tree | None,
    ) -> Self:
        if manifest["kind"] != "ReplayBuffer":
            raise LofoError(f"it holds a {manifest['kind']}")
        rule = _saved_rule(manifest["rule"], rule)
        if manifest["expected_size"] is not None:
            object.__setattr__(rule, "expected_size", int(manifest["expected_size"]))
        options: dict[str, Any] = {
            name: manifest[name]
            for name in ("window", "num_streams", "num_slots")
            if name in manifest
        }
        if "sampler" in manifest:
            options["sampler"] = Prioritized(**manifest["sampler"])
        group_by = manifest["group_by"] if group_by is None else group_by
        buffer = cls(
            rule,
            manifest["capacity"],
            locality,
            seed=manifest["seed"],
            group_by=group_by,
            **options,
        )
        if manifest["is_grouped"] is not None:
            buffer._open_groups(manifest["is_grouped"])
        buffer._restore(manifest, arrays, example)
        return buffer

    def _restore(
        self, manifest: dict[str, Any], arrays: serialization.Arrays, example: Tree | None
    ) -> None:
        self._rng.bit_generator.state = manifest["rng"]
        size = manifest["ledger"]["size"]
        forms, num_rows = self._ledger.forms(manifest["ledger"]), size
        if self._steps is not None:
            forms.update(self._steps.forms(manifest["steps"], size))
            num_rows = manifest["steps"]["high_water"]
        if self._priorities is not None:
            forms["priority"] = ((size,), np.float64)
        spec: ItemSpec | None = None
        if manifest["spec"] is not None:
            spec = ItemSpec.restore(manifest["spec"], example)
            pairs = zip(spec.shapes, spec.dtypes, strict=True)
            forms.update({f"leaf{i}": ((num_rows, *s), d) for i, (s, d) in enumerate(pairs)})
        elif size or num_rows:
            raise LofoError(f"it does not say what its {size} items look like")
        serialization.check(arrays, forms)
        if spec is not None:
            self._settle(spec, arrays.get("embedding"))
        self._ledger.restore(manifest["ledger"], arrays)
        if self._steps is not None:
            self._steps.restore(manifest["steps"], arrays)
        if self._priorities is not None:
            self._priorities.restore(manifest["highest"], arrays["priority"])
        for i, rows in enumerate(self._rows):
            rows[:num_rows] = arrays[f"leaf{i}"]

    def _settle(
        self, spec: ItemSpec, points: Points | None = None, is_grouped: bool | None = None
    ) -> None:
        """Take the first item's form for good, and the memory of all rows."""
        if self._spec is None or (points is not None and not self._ledger.embedding_size):
            size = 0 if points is None else self._index_bytes(points.shape[1])
            size += self._num_slots * spec.num_bytes if self._spec is None else 0
            what = f"{self._num_slots:,} rows of {memory.words(spec.num_bytes)}, with their book,"
            memory.require(size, what, "lower capacity")
        if self._spec is None:
            if isinstance(self._group_by, str):
                spec.index(self._group_by)
            self._rows, self._spec = spec.rows(self._num_slots), spec
        if is_grouped is not None and self._is_grouped is None:
            self._open_groups(is_grouped)

    def _open_groups(self, is_grouped: bool) -> None:
        """Decide, with the first sample, whether samples have groups."""
        self._is_grouped = self._ledger.is_grouped = is_grouped

    def _default_slots(self) -> int:
        """Slots that suffice where a closing row, if any, directly follows a start."""
        if self._window is None:
            return self._capacity
        # Under Fifo a step that a live start reaches is itself a live start, or the closing row
        # right after one; under other rules most of a window may be steps that were forgotten.
        is_fifo = type(self._rule) is Fifo
        return self._capacity * (min(self._window, 2) if is_fifo else self._window)

    def _index_bytes(self, embedding_size: int) -> int:
        """What the full buffer takes beside its items."""
        per_row = 8
        if self._rule.needs_embedding:
            per_row += 4 * (embedding_size + 1) + 16 + 8 * bool(self._is_grouped)
        if self._sampler is not None:
            per_row += 32
        size = self._capacity * per_row
        if self._window is not None:
            width = 4 if self._num_slots < 2**31 else 8
            size += self._capacity * (width * self._window + 20) + self._num_slots * 13
            size += 8 * (self._num_streams + 1) * self._window
        return size

    def _closes(self, item: Tree) -> bool:
        """Whether the item itself says that it is a closing row, which is not embedded."""
        if self._steps is None:
            return False
        flag = item.get("is_last") if isinstance(item, dict) else getattr(item, "is_last", None)
        return flag is not None and bool(np.any(as_array("is_last", flag)))

    def _extend_window(self, row: int, is_taken: bool, stream: int) -> int:
        """The slot of a stream's next step, whose start has taken a row."""
        steps, priorities = self._steps, self._priorities
        assert steps is not None
        slot = steps.add(row, is_taken, stream, voids_rewards=self._rule.voids_rewards)
        if priorities is not None:
            if row < self._capacity:
                priorities.put(row, steps.is_complete(row))
            if slot < self._num_slots and (last := int(steps.recent[stream, -1])) < self._capacity:
                priorities.put(last, True)
        return slot

    def _finish(
        self, clock: int, points: Points | None, groups: Rows | None, rows: Rows,
        leaves: list[Leaf], streams: Any, growing: Rows,
    ) -> None:  # fmt: skip
        """After an interrupt, keep the samples whose rows are decided, and of no other a trace.

        The windows that were growing, here or when the call began, end as if a step had been lost.
        """
        voids = self._rule.voids_rewards
        rows = self._ledger.finish(clock, points, groups, rows)
        if not self._ledger.clock:
            self._reset()
        elif self._steps is None:
            self._write_rows(rows, leaves)
        else:
            cut = self._steps.cut(rows, growing, streams, self._ledger.size, voids)
            if self._priorities is not None:
                for row in cut.tolist():
                    self._priorities.put(row, False)

    def _is_untouched(self, error: BaseException, rows: Rows) -> bool:
        """Whether an error came before anything was changed: a sample or its rule was refused.

        A MemoryError may come while the index grows, an interrupt anywhere.
        """
        is_refused = isinstance(error, Exception) and not isinstance(error, MemoryError)
        return is_refused and self._ledger.clock > 0 and len(rows) > 0 and int(rows[0]) == -1

    def _check_whole(self) -> None:
        """Refuse to work on a buffer in the middle of a change."""
        if self._is_changing:
            raise LofoError(
                "the buffer is in the middle of a change: call it from no signal handler, and "
                "after an interrupt that was itself interrupted, load() a file or clear() it"
            )

    def _write_rows(self, rows: Rows, leaves: list[Leaf]) -> None:
        """Write the first items of a batch to their rows; of items in one row, the last."""
        num = len(rows)
        start, last = (int(rows[0]), int(rows[-1])) if num else (0, 0)
        if last - start == num - 1 and last < self._capacity and (rows[1:] > rows[:-1]).all():
            for column, leaf in zip(self._rows, leaves, strict=True):
                column[start : start + num] = leaf[:num]
        else:  # NumPy assigns in order, so the last item of a row stays
            is_in = rows < self._capacity
            rows = rows[is_in]
            for column, leaf in zip(self._rows, leaves, strict=True):
                column[rows] = leaf[:num][is_in]
        if self._priorities is not None:
            for row in rows.tolist():
                self._priorities.put(row, True)

    def _write_steps(
        self, rows: Rows, size: int, is_start: Any, streams: Rows, leaves: list[Leaf]
    ) -> None:
        """Chain the steps of a batch, and write them to their slots."""
        slots, taken = [], iter(rows.tolist())
        for number, is_one in enumerate(is_start.tolist()):
            row = next(taken) if is_one else self._capacity
            slots.append(self._extend_window(row, row < size, int(streams[number])))
            size += row == size < self._capacity
        places = np.array(slots, np.int64)
        chosen = _last_of_each(places, self._num_slots)
        for column, leaf in zip(self._rows, leaves, strict=True):
            column[places[chosen]] = leaf[chosen]

    def _read(self, rows: Rows) -> Batch:
        slots = rows
        if self._steps is None:
            known: Any = np.ones(len(rows), np.bool_)
        else:
            slots = self._steps.window[rows]
            known = ~self._steps.unknown[slots]
        assert self._spec is not None  # there is something to read
        leaves = [column.take(slots, axis=0) for column in self._rows]
        stamps = self._ledger.stamp[rows]
        return Batch(self._spec.unflatten(leaves), known, rows, stamps)  # type: ignore[arg-type]  # NumPy's

    def _drawable(self) -> Rows:
        """The rows that can be drawn, in no order."""
        if self._steps is None:
            return np.arange(len(self))
        return self._steps.complete[: self._steps.num_complete].astype(np.int64)

    def _count(self) -> int:
        """How many rows can be drawn; none is an error."""
        steps = self._steps
        if num := len(self) if steps is None else steps.num_complete:
            return num
        if steps is None:
            raise LofoError("nothing to sample: the buffer is empty, add at least 1 more item")
        filled = np.where(steps.recent < self._capacity, steps.filled[steps.recent], 0)
        raise LofoError(
            f"nothing to sample: no window of {steps.length} steps is complete, "
            f"add at least {steps.length - filled.max(initial=0)} more steps to a stream"
        )

    def _weighted(self, num: int, weight: ArrayLike) -> Rows:
        """Rows drawn in proportion to a weight."""
        rows = self._drawable()
        rows.sort()
        own = _checked_numbers("weight", weight, (self._capacity,))[rows]
        if not (largest := own.max()) > 0:
            raise LofoError("weight must be positive for at least one row that can be drawn")
        total = np.cumsum(own / largest)  # so that no sum overflows
        targets = (1.0 - self._rng.random(num)) * total[-1]  # in (0, total], so no zero weight
        drawn: Rows = rows[np.searchsorted(total, targets)]
        return drawn

    def _no_embedding(self) -> LofoError:
        name = type(self._rule).__name__
        return LofoError(f"{name} needs to know what is near: give locality= or embedding=")

    def _points(self, embedding: ArrayLike | None, is_start: Any) -> Points | None:
        """The embeddings [n, D] of the items that start something."""
        if not self._rule.needs_embedding:
            return None
        if embedding is None:
            raise self._no_embedding()
        given = as_array("embedding", embedding)
        if given.shape[:1] != is_start.shape:
            raise LofoError(
                f"embedding must be [{len(is_start)}, D], one for each item: got {given.shape}"
            )
        own = given if is_start.all() else given[is_start]
        return checked_points(own, self._ledger.embedding_size or None)

    def _groups(
        self, item: Tree, leaves: list[Any], group: int | None, spec: ItemSpec
    ) -> Rows | None:
        """The group [1] of an item; None where there are no groups."""
        if self._group_by is None and group is None and not self._is_grouped:
            return None
        if isinstance(self._group_by, str):
            group = leaves[spec.index(self._group_by)] if group is None else group
        elif self._group_by is not None and group is None:
            group = self._group_by(item)
        self._check_grouped(group)
        return checked_groups(group, 1)

    def _groups_of_batch(
        self, leaves: list[Leaf], group: ArrayLike | None, spec: ItemSpec, is_start: Any
    ) -> Rows | None:
        """The groups of the items that start something; None where there are no groups."""
        if self._group_by is None and group is None and not self._is_grouped:
            return None
        if group is None and callable(self._group_by):
            items = (spec.unflatten([x[i] for x in leaves]) for i in np.flatnonzero(is_start))
            group = np.concatenate([checked_groups(self._group_by(item), 1) for item in items])
            self._check_grouped(group)
            return group
        if group is None and isinstance(self._group_by, str):
            group = leaves[spec.index(self._group_by)]
        self._check_grouped(group)
        return np.ascontiguousarray(checked_groups(group, len(is_start))[is_start])

    def _check_grouped(self, group: Any) -> None:
        if not self._rule.needs_embedding:
            raise LofoError(f"groups divide neighbors, and {self._rule} looks at none")
        if group is None:
            raise LofoError("the first item had a group: give group= with each, or none")
        if self._is_grouped is False:
            raise LofoError(f"the first item had no group: got group={group!r}")

    def _checked_stream(self, stream: int) -> int:
        if (number := checked_size("stream", stream, least=0)) >= self._num_streams:
            raise LofoError(f"stream must lie in [0, {self._num_streams}), got {stream!r}")
        return number

    def _checked_streams(self, stream: ArrayLike, num: int) -> Rows:
        given = as_array("stream", stream)
        if given.shape not in ((), (num,)) or given.dtype.kind not in "iu":
            raise LofoError(f"stream must be an integer or [{num}] integers, got {stream!r}")
        if ((given < 0) | (given >= self._num_streams)).any():
            raise LofoError(f"stream must lie in [0, {self._num_streams}), got {stream!r}")
        return np.broadcast_to(given.astype(np.int64), (num,))

    def _review(self) -> None:
        """Warn, once each, of settings that defeat themselves."""
        ledger, steps = self._ledger, self._steps
        now = (
            ledger.clock,
            ledger.overflow,
            0 if steps is None else steps.num_cut,
            ledger.near_total,
        )
        num, overflow, cut, near = (a - b for a, b in zip(now, self._reviewed, strict=True))
        self._reviewed = now
        if not self._rule.needs_embedding or num <= 0:
            return
        if 2 * cut > num:
            self._warn(
                "cut",
                f"{cut:,} of the last {num:,} steps took the place of a start whose window was "
                "still growing: the radius is larger than a step, so the stream erases its own "
                "trail. Raise limit to the window's length or lower radius",
            )
        if overflow > 0.01 * num:
            self._warn(
                "overflow",
                f"{overflow:,} of the last {num:,} samples had too few neighbors and took the "
                f"place of the oldest of all: raise capacity ({ledger.capacity:,}) or radius",
            )
        if near > 0.5 * num * ledger.size:
            self._warn(
                "cover",
                f"a new sample has {near / num:,.1f} neighbors on average among {ledger.size:,}: "
                "the radius covers most of the data. Lower radius",
            )

    def _warn(self, kind: str, words: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self!r}: {words}", LofoWarning, stacklevel=4)


def _unpickled(kind: type[ReplayBuffer], image: bytes, *given: Any) -> ReplayBuffer:
    with serialization.judged("the pickled buffer"):
        return kind._unpack(*serialization.from_bytes(image), *given)


def _saved_rule(saved: Any, given: Rule | None) -> Rule:
    """The rule of a file, which holds only the words of a rule that this library does not know."""
    if isinstance(saved, dict):
        found: Rule = RULES[saved["name"]](**saved["numbers"])
        if given is not None and given != found:
            raise LofoError(f"its rule is {found}, not {given!r}: leave out rule=")
        return found
    if given is None:
        raise LofoError(f"its rule is {saved}, which only you can make: give load(..., rule=)")
    if repr(given) != saved:
        raise LofoError(f"its rule is {saved}, not {given!r}: give the same rule")
    return given


def _checked_rule(rule: Any) -> Rule:
    if isinstance(rule, type) or not callable(getattr(rule, "choose", None)):
        raise LofoError(
            f"rule must be Fifo(), Reservoir(), Local(radius) or a rule with a method choose, "
            f"got {rule!r}"
        )
    check_class_variables(rule)
    if isinstance(rule, Local) and (np.ndim(rule.radius) or np.ndim(rule.limit)):
        raise LofoError(f"one buffer has one radius and one limit, got {rule}")
    if rule.needs_embedding and not isinstance(
        getattr(rule, "radius", None), int | float | np.number
    ):
        try:
            float(rule.radius)
        except (AttributeError, TypeError, ValueError) as error:
            raise LofoError(f"{rule!r} needs embeddings, so it needs a number radius") from error
    checked: Rule = rule
    return checked


def _checked_numbers(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Finite numbers of at least 0."""
    given = as_array(name, value)
    if given.shape != shape or given.dtype.kind not in "fiub":
        raise LofoError(
            f"{name} must be numbers of shape {shape}, got {given.dtype} of shape {given.shape}"
        )
    with np.errstate(over="ignore"):
        numbers = given.astype(np.float64)
    if not (is_good := np.isfinite(numbers) & (numbers >= 0)).all():
        bad = np.argmin(is_good)
        raise LofoError(f"{name}[{bad}] must be finite and at least 0, got {given[bad]}")
    return numbers


def _flag(name: str, value: Any) -> bool:
    given = as_array(name, value)
    if given.shape or given.dtype.kind not in "biu" or given not in (0, 1):
        raise LofoError(f"{name} must be True or False, got {value!r}")
    return bool(given)


def _flags(name: str, value: Any, num: int) -> Any:
    """One flag for each of a batch [n]."""
    given = as_array(name, False if value is None else value)
    is_shaped = given.shape in ((), (num,)) and given.dtype.kind in "biu"
    if not is_shaped or not ((given == 0) | (given == 1)).all():
        raise LofoError(f"{name} must be True or False, or {num} of them, got {value!r}")
    return np.broadcast_to(given.astype(np.bool_), (num,))


def _mark(spec: ItemSpec, leaves: list[Any], is_first: bool, is_last: bool) -> bool:
    """Whether this is a closing row; both flags are written into the leaves of their name."""
    flags = {"is_first": is_first, "is_last": is_last}
    for name in flags:
        if name in spec.names:
            i = spec.names.index(name)
            flags[name] |= bool(np.any(leaves[i]))
            leaves[i] = np.full(spec.shapes[i], flags[name], spec.dtypes[i])
        elif name == "is_first" and is_first:
            raise LofoError("is_first=True would be lost: give the item a field is_first")
    return flags["is_last"]


def _mark_batch(spec: ItemSpec, leaves: list[Leaf], is_first: Any, is_last: Any) -> Any:
    """Which of a batch are closing rows [n]; both flags are written into the leaves."""
    num = len(leaves[0])
    found: dict[str, Any] = {}
    for name, flags in (("is_first", is_first), ("is_last", is_last)):
        if name in spec.names:
            i = spec.names.index(name)
            flags = flags | leaves[i].reshape(num, -1).any(-1)
            wide = flags.reshape(num, *(1 for _ in spec.shapes[i]))
            leaves[i] = np.broadcast_to(wide, leaves[i].shape).astype(spec.dtypes[i])
        elif name == "is_first" and flags.any():
            raise LofoError("is_first=True would be lost: give the items a field is_first")
        found[name] = flags
    return found["is_last"]


def _last_of_each(rows: Rows, end: int) -> Rows:
    """The positions of each row below `end`, where a row comes more than once the last one."""
    _, first = np.unique(rows[::-1], return_index=True)
    chosen = len(rows) - 1 - first
    return chosen[rows[chosen] < end]


def _embedder(locality: Any) -> Embed | None:
    embed: Embed | None = getattr(locality, "embed", locality)
    if callable(locality):
        embed = locality
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
    except ValueError:  # a built-in that has no signature: its first call will show
        pass
    return embed


_LIVING: weakref.WeakSet[ReplayBuffer] = weakref.WeakSet()


def _hold_all() -> None:
    """Before a fork: no thread may be in the middle of a buffer, or the child's copy is torn."""
    _FORKING.acquire()  # two threads may fork at once
    for buffer in list(_LIVING):
        buffer._lock.acquire()
        _HELD.append(buffer._lock)


def _release_all() -> None:
    while _HELD:
        _HELD.pop().release()
    _FORKING.release()


_FORKING = threading.Lock()
_HELD: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
