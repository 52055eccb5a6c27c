"""What holds in every buffer whose items say where they lie: no oracle is needed to check it."""

import hashlib

import numpy as np

from lofo_rl import ReplayBuffer
from lofo_rl.buffers import serialization


def item_at(number, place, group=0, stream=0, before=-1):
    """The step `number` at a place, after the step `before`: every part of it says which it is."""
    return {
        "id": np.int64(number),
        "before": np.int64(before),
        "place": np.float32(place),
        "group": np.int32(group),
        "stream": np.uint8(stream),
        "is_last": np.bool_(False),
        "deep": np.full((2, 2), number, np.float64),
    }


def image(buffer, counts=True):
    """The digest of all that a file would hold; without the counts that only report."""
    manifest, arrays = buffer._pack()
    if not counts:
        manifest["rng"] = None
        manifest["ledger"] |= {"overflow": 0, "near_total": 0}
    return hashlib.sha256(serialization.to_bytes(manifest, arrays)).hexdigest()


def check_sound(buffer, *, is_uncut=False):
    """Rows, index, windows, priorities and items agree with each other.

    `is_uncut`: no step of a window was ever lost, so unknown rewards are those of lost starts.
    """
    ledger, steps, size = buffer._ledger, buffer._steps, len(buffer)
    assert not buffer._is_changing
    # A load checks that stamps, windows, slots and their counts fit together.
    loaded = ReplayBuffer._unpack(*serialization.from_bytes(bytes_of(buffer)), *[None] * 4)
    assert image(loaded) == image(buffer)
    assert size == ledger.size <= buffer._capacity and ledger.clock >= size
    assert ledger.oldest() == ledger.stamp[:size].argmin() if size else True
    items = [] if not buffer._rows else dict(zip(buffer._spec.names, buffer._rows, strict=True))
    if steps is None and size:
        check_rows(buffer, np.arange(size), items)
        assert (items["deep"][:size] == items["id"][:size, None, None]).all()
    if ledger.index is not None:
        check_index(ledger.index)
    if steps is not None:
        check_windows(buffer, items)
        if is_uncut:
            check_unknown(buffer, items)
    if buffer._priorities is not None:
        check_priorities(buffer)


def bytes_of(buffer):
    return serialization.to_bytes(*buffer._pack())


def check_rows(buffer, rows, items, slots=None):
    """The points and groups of rows are those of the items in these slots."""
    slots, index = rows if slots is None else slots, buffer._ledger.index
    if index is not None:
        np.testing.assert_array_equal(index.points[rows], items["place"][slots])
        if index.groups is not None:
            np.testing.assert_array_equal(index.groups[rows], items["group"][slots])


def check_index(index):
    """Answers of the index are those of a scan over its points."""
    for row in range(0, index.size, max(1, index.size // 64)):
        point, group = index.points[row], 0 if index.groups is None else int(index.groups[row])
        np.testing.assert_array_equal(index.near(point, group), scan(index, point, group))


def scan(index, point, group):
    """The rows near a point, by the direct difference to every point."""
    is_near = ((index.points - point) ** 2).sum(-1) < np.float32(index.radius) ** 2
    if index.groups is not None:
        is_near &= index.groups == group
    return np.flatnonzero(is_near)


def check_windows(buffer, items):
    steps, length = buffer._steps, buffer._steps.length
    complete = np.sort(steps.complete[: steps.num_complete])
    if not len(complete):
        return
    slots = steps.window[complete]
    check_rows(buffer, complete, items, slots[:, 0])
    ids, streams = items["id"][slots], items["stream"][slots]
    assert (items["deep"][slots] == ids[:, :, None, None]).all()
    assert (streams == streams[:, :1]).all()
    before = items["before"][slots]
    np.testing.assert_array_equal(before[:, 1:], ids[:, :-1])
    assert length == slots.shape[1]


def check_unknown(buffer, items):
    """The reward of a stored step is unknown if it was a start and has left."""
    steps, size = buffer._steps, len(buffer)
    stored = np.flatnonzero(steps.cover)
    live = items["id"][steps.window[:size][steps.filled[:size] > 0, 0]]
    has_left = ~items["is_last"][stored] & ~np.isin(items["id"][stored], live)
    expected = has_left & buffer._rule.voids_rewards
    np.testing.assert_array_equal(steps.unknown[stored], expected)


def check_priorities(buffer):
    priorities = buffer._priorities
    priorities._settle()
    levels = priorities._tree.levels
    for below, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        np.testing.assert_array_equal(level, below[::2] + below[1::2])
    can = np.zeros(len(levels[-1]), bool)
    can[buffer._drawable()] = True
    np.testing.assert_array_equal(levels[-1] > 0, can)
