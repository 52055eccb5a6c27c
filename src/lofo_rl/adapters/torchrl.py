"""Local forgetting in TorchRL: a writer that chooses the row of each new record.

    writer = LoFoWriter(radius=0.1, limit=2, key="observation")
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(30_000), writer=writer)

With `window=T` the rule decides about the starts of sequences of T records, and
`sampler=LoFoSampler(writer), sample_unit=LoFoSequence(writer)` draw them. Each record of a sample
then has a `reward_known`: False where the start of this record was forgotten, so that its reward
may be stale. Multiply the reward loss by it.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lofo_rl.buffers import Rule, serialization
from lofo_rl.buffers.arrays import as_array, checked_groups, checked_size
from lofo_rl.buffers.ledger import Ledger
from lofo_rl.buffers.neighbors import checked_points
from lofo_rl.buffers.rules import either_rule
from lofo_rl.buffers.sequences import Trajectory
from lofo_rl.extras import needs
from lofo_rl.types import LofoError, LofoWarning

with needs("torchrl", __name__):
    import torch
    from torchrl.data import RandomSampler, TensorDictRoundRobinWriter
    from torchrl.data.replay_buffers.sample_units import SampleUnit

    from lofo_rl.adapters.torch_contrastive import embedded

FILE = "lofo.ledger"
REVIEWED = 1024  # records between two looks at settings that defeat themselves


class LoFoWriter(TensorDictRoundRobinWriter):
    """Writes each record to the row that the rule of forgetting chooses, one after the other.

    `radius` and `limit` are those of `lofo_rl.Local`; give `rule=` for any other rule.
    `key` names the entry whose numbers are the embedding; `locality` turns a batch of that entry
    [n, ...] into vectors [n, D].
    `group_by` names an entry, such as "action": only records of the same group are neighbors. A
    one-hot entry counts as the number of its action.
    `window` makes sequences of so many records. Records of parallel environments are chained apart
    by the integers in `stream_key`, below `num_streams`. `num_starts` is the most starts of
    sequences; without it, a quarter of the storage.
    """

    def __init__(
        self,
        *,
        radius: float | None = None,
        limit: int = 1,
        rule: Rule | None = None,
        key: Any = "observation",
        locality: Any = None,
        group_by: Any = None,
        window: int | None = None,
        num_starts: int | None = None,
        stream_key: Any = None,
        num_streams: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.rule = either_rule(radius, limit, rule)
        if group_by is not None and not self.rule.needs_embedding:
            raise LofoError(f"groups divide neighbors, and {self.rule} looks at none")
        self.window = None if window is None else checked_size("window", window)
        self._key, self._locality, self._group_by = key, locality, group_by
        self._num_starts, self._stream_key = num_starts, stream_key
        self._num_streams = checked_size("num_streams", num_streams)
        self._seed = seed
        self._parts: set[str] = set()  # the sampler and the unit that were made for it
        self.ledger: Ledger | None = None
        self.steps: Trajectory | None = None

    def register_storage(self, storage: Any) -> None:
        """Take the storage, and make the book of its rows."""
        super().register_storage(storage)
        if storage.ndim != 1:
            raise LofoError(f"LoFoWriter needs a storage with ndim=1, got ndim={storage.ndim}")
        if not 0 < storage.max_size < 2**62:
            raise LofoError("LoFoWriter needs a storage with a max_size")
        self._reset()

    def add(self, data: Any) -> Any:
        """Write one record; its row, or -1 if the rule refused it."""
        return self.extend(data[None])[0]

    def extend(self, data: Any) -> Any:
        """Write records [n] in their order; their rows [n], -1 for one that was refused."""
        if not (num := len(data)):
            raise LofoError("extend needs at least one record")
        if len(data.batch_size) != 1:
            raise LofoError(f"records must be flat, [n]: got {data.batch_size}, give reshape(-1)")
        ledger = self._book()
        if self.window is not None and self._parts != {"LoFoSampler", "LoFoSequence"}:
            raise LofoError(
                "a LoFoWriter with window= needs sampler=LoFoSampler(writer) and "
                "sample_unit=LoFoSequence(writer), both"
            )
        points, groups = None, None
        if self.rule.needs_embedding:
            x = self._entry(data, "key", self._key)
            if isinstance(self._locality, torch.nn.Module):
                x = embedded(self._locality, x)
            else:
                x = x.reshape(num, -1) if self._locality is None else self._locality(x)
            points = checked_points(as_array("embedding", x), ledger.embedding_size or None)
        if self._group_by is not None:
            own = self._entry(data, "group_by", self._group_by).reshape(num, -1)
            if own.shape[-1] > 1:
                if not (((own == 0) | (own == 1)).all() and (own.sum(-1) == 1).all()):
                    raise LofoError(
                        f"group_by={self._group_by!r} must be integers or one-hot, got {own[0]}"
                    )
                own = own.argmax(-1)
            groups = checked_groups(own.reshape(num), num)
        size, rows = ledger.size, np.full(num, -1, np.int64)
        ledger.add(points, groups, self._generator, rows)
        slots = self._chain(data, rows, size) if self.steps is not None else rows
        is_in = slots < self._storage.max_size
        _, last = np.unique(slots[::-1], return_index=True)  # of a row that comes twice, the last
        chosen = num - 1 - last
        chosen = np.sort(chosen[is_in[chosen]])
        if len(chosen):
            kept = data if len(chosen) == num else data[torch.as_tensor(chosen)]
            self.write_at(torch.as_tensor(slots[chosen]), kept)
        self._review()
        return torch.as_tensor(np.where(is_in, slots, -1))

    def metrics(self) -> dict[str, int]:
        """Occupancy and forgetting."""
        ledger = self._book()
        found = {"size": ledger.size, "evictions": ledger.evictions, "overflow": ledger.overflow}
        if self.steps is not None:
            found |= {"complete": self.steps.num_complete, "num_steps": self.steps.num_steps}
        return found

    def state_dict(self) -> dict[str, Any]:
        manifest, arrays = self._pack()
        own = {name: torch.from_numpy(np.array(x)) for name, x in arrays.items()}
        return super().state_dict() | {"lofo": manifest, "lofo_arrays": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = {name: x.numpy() for name, x in state_dict["lofo_arrays"].items()}
        self._unpack(state_dict["lofo"], own)
        super().load_state_dict(state_dict)

    def dumps(self, path: Any) -> None:
        super().dumps(path)
        serialization.write(Path(path) / FILE, *self._pack())

    def loads(self, path: Any) -> None:
        with serialization.judged(str(Path(path) / FILE)):
            self._unpack(*serialization.read(Path(path) / FILE))
        super().loads(path)

    def _empty(self, empty_write_count: bool = True) -> None:
        super()._empty(empty_write_count)
        self._reset()

    def __repr__(self) -> str:
        return f"LoFoWriter({self.rule}, window={self.window})"

    def __getstate__(self) -> dict[str, Any]:
        raise LofoError(
            "a LoFoWriter cannot be copied or sent to another process, where its book of rows "
            "would go out of date: add the records in the process that made the buffer"
        )

    def _reset(self) -> None:
        num_slots = self._storage.max_size
        capacity = num_slots if self.window is None else self._num_starts or max(1, num_slots // 4)
        if self.window is not None and num_slots < self.window:
            raise LofoError(f"a storage of {num_slots} cannot hold a window of {self.window}")
        self.ledger = Ledger(self.rule, capacity, is_grouped=self._group_by is not None)
        if self.window is not None:
            self.steps = Trajectory(capacity, self.window, num_slots, self._num_streams)
        self._generator = np.random.default_rng(self._seed)
        self._reviewed, self._has_warned = (0, 0), False  # clock and cut sequences

    def _review(self) -> None:
        """Warn once of a walker that erases its own trail."""
        if self.ledger is None or self.steps is None or self._has_warned:
            return
        num = self.ledger.clock - self._reviewed[0]
        if num < REVIEWED:
            return
        cut = self.steps.num_cut - self._reviewed[1]
        self._reviewed = self.ledger.clock, self.steps.num_cut
        if 2 * cut > num:
            self._has_warned = True
            warnings.warn(
                f"{cut:,} of the last {num:,} records took the place of a start whose sequence was "
                "not yet complete: the radius is larger than a step. Raise limit to the window's "
                "length or lower radius",
                LofoWarning,
                stacklevel=4,
            )

    def _entry(self, data: Any, option: str, key: Any) -> Any:
        x = data.get(key, None)
        if x is None:
            raise LofoError(f"{option}={key!r} is no entry of the records: {list(data.keys(True))}")
        return x

    def _book(self) -> Ledger:
        if self.ledger is None:
            raise LofoError("the writer has no storage yet: give it to a replay buffer")
        return self.ledger

    def _chain(self, data: Any, rows: Any, size: int) -> Any:
        """The slots of the records, whose starts have taken these rows."""
        assert self.ledger is not None and self.steps is not None
        streams = np.zeros(len(rows), np.int64)
        if self._stream_key is not None:
            streams = as_array("stream", data.get(self._stream_key)).reshape(-1)
            if not ((streams >= 0) & (streams < self._num_streams)).all():
                raise LofoError(f"streams must lie in [0, {self._num_streams}), got {streams}")
        slots = np.empty(len(rows), np.int64)
        voids = self.rule.voids_rewards
        for i, row in enumerate(rows.tolist()):
            slots[i] = self.steps.add(row, row < size, int(streams[i]), voids_rewards=voids)
            size += row == size < self.ledger.capacity
        return slots

    def _pack(self) -> tuple[dict[str, Any], serialization.Arrays]:
        ledger = self._book()
        counts, arrays = ledger.pack()
        manifest: dict[str, Any] = {
            "kind": "LoFoWriter", "rule": repr(self.rule), "ledger": counts,
            "rng": self._generator.bit_generator.state,
        }  # fmt: skip
        if self.steps is not None:
            manifest["steps"], more = self.steps.pack(ledger.size)
            arrays |= more
        return manifest, arrays

    def _unpack(self, manifest: dict[str, Any], arrays: serialization.Arrays) -> None:
        if manifest["kind"] != "LoFoWriter" or manifest["rule"] != repr(self.rule):
            raise LofoError(f"it holds {manifest['kind']} of {manifest['rule']}, not {self.rule}")
        before = dict(self.__dict__)
        self._reset()
        ledger = self._book()
        try:
            forms = ledger.forms(manifest["ledger"])
            if self.steps is not None:
                forms |= self.steps.forms(manifest["steps"], manifest["ledger"]["size"])
            serialization.check(arrays, forms)
            ledger.restore(manifest["ledger"], arrays)
            if self.steps is not None:
                self.steps.restore(manifest["steps"], arrays)
        except Exception:
            self.__dict__.update(before)
            raise
        self._generator.bit_generator.state = manifest["rng"]


class LoFoSampler(RandomSampler):
    """Draws starts whose sequences are complete, uniformly."""

    def __init__(self, writer: LoFoWriter) -> None:
        super().__init__()
        self._writer = _with_windows(writer, "LoFoSampler")

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Rows of starts [batch_size]; `LoFoSequence` turns each into the records after it."""
        steps = self._writer.steps
        if steps is None or not steps.num_complete:
            raise LofoError(f"no sequence of {self._writer.window} records is complete yet")
        drawn = torch.randint(steps.num_complete, (batch_size,), generator=self._rng)
        return torch.as_tensor(steps.complete[drawn.numpy()].astype(np.int64)), {}


class LoFoSequence(SampleUnit):
    """From rows of starts [B] to their records [B * window], with `reward_known` for each."""

    def __init__(self, writer: LoFoWriter) -> None:
        self._writer = _with_windows(writer, "LoFoSequence")

    def expand(
        self, index: Any, info: dict[str, Any], storage: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The records of each sequence, one sequence behind the other."""
        steps = self._writer.steps
        assert steps is not None
        slots = steps.window[index.numpy()].reshape(-1)
        known = torch.as_tensor(~steps.unknown[slots])
        return torch.as_tensor(slots.astype(np.int64)), info | {"reward_known": known}


def _with_windows(writer: LoFoWriter, part: str) -> LoFoWriter:
    if not isinstance(writer, LoFoWriter) or writer.window is None:
        raise LofoError(f"it needs a LoFoWriter with window=, got {writer!r}")
    writer._parts.add(part)
    return writer
