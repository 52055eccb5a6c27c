"""Local forgetting as one compiled call for many samples. Importing this needs numba.

The functions here decide alone only where no point is within a relative `1e-5` of the radius.
A sum of squares in another order than NumPy's may differ in its last bit, so such a sample is
handed back, and NumPy decides it. So decisions do not depend on numba.
"""

from typing import Any

import numba
import numpy as np

CELL = np.int64(-7046029254386353131)  # 2^64 over the golden ratio: spreads keys over a table
SLOT = np.int64(2685821657736338717)
GROUP = np.int64(-4417276706812531889)  # moves the cells of a group away from those of others
TAG = np.int64(2**31 - 1)
NEVER = np.int64(2**63 - 1)  # a stamp that no row has

compiled = numba.njit(error_model="numpy", cache=True)


@numba.njit(error_model="numpy", cache=True, fastmath={"reassoc", "contract"})
def _distance(point: Any, points: Any, row: Any) -> Any:
    """The squared distance of a point to the point of a row, in float32."""
    total = np.float32(0)
    for i in range(len(point)):
        difference = points[row, i] - point[i]
        total += difference * difference
    return total


@compiled
def _key_of(point: Any, group: Any, basis: Any, reach: Any, strides: Any) -> Any:
    """The key of a point's cell."""
    key = group * GROUP
    for axis in range(len(strides)):
        place = 0.0
        for i in range(len(point)):
            place += min(max(np.float64(point[i]), -reach), reach) * basis[i, axis]
        key += np.int64(np.floor(place)) * strides[axis]
    return key


@compiled
def _spread(key: Any) -> Any:
    """A key with all its bits mixed; the lower half is the tag of a cell."""
    mixed = key * CELL
    return mixed ^ (mixed >> 29)


@compiled
def _slot_of(mixed: Any, heads: Any, shift: Any) -> Any:
    """Where in the table the rows of a cell begin."""
    return ((mixed * SLOT) >> shift) & (len(heads) - 1)


@compiled
def _unlink(row: Any, mixed: Any, links: Any, heads: Any, shift: Any) -> None:
    slot = _slot_of(mixed, heads, shift)
    if heads[slot] == row + 1:
        heads[slot] = links[row, 1]
        return
    before = heads[slot] - 1
    while links[before, 1] != row + 1:
        before = links[before, 1] - 1
    links[before, 1] = links[row, 1]


@compiled
def _link(row: Any, mixed: Any, links: Any, heads: Any, shift: Any) -> None:
    slot = _slot_of(mixed, heads, shift)
    links[row, 0] = np.int32(mixed & TAG)
    links[row, 1] = heads[slot]
    heads[slot] = row + 1


@compiled
def link_all(
    points: Any, groups: Any, size: Any, links: Any, heads: Any, shift: Any,
    offsets: Any, basis: Any, reach: Any, strides: Any, first: Any,
) -> None:  # fmt: skip
    """Enter the live rows into an empty table."""
    for row in range(size):
        group = groups[row] if len(groups) else np.int64(0)
        _link(row, _spread(_key_of(points[row], group, basis, reach, strides)), links, heads, shift)


@compiled
def move(
    points: Any, groups: Any, row: Any, point: Any, group: Any, is_fresh: Any,
    links: Any, heads: Any, shift: Any, offsets: Any, basis: Any, reach: Any, strides: Any,
    first: Any,
) -> None:  # fmt: skip
    """Move a row to the cell of its new point, before that is written."""
    if not is_fresh:
        own = groups[row] if len(groups) else np.int64(0)
        old = _key_of(points[row], own, basis, reach, strides)
        _unlink(row, _spread(old), links, heads, shift)
    key = _key_of(point, np.int64(group), basis, reach, strides)
    _link(row, _spread(key), links, heads, shift)


@compiled
def gather(
    points: Any, groups: Any, point: Any, group: Any, links: Any, heads: Any, shift: Any,
    offsets: Any, basis: Any, reach: Any, strides: Any, first: Any,
) -> Any:  # fmt: skip
    """The rows of the cells around a point, each once."""
    key = _key_of(point, np.int64(group), basis, reach, strides)
    found = np.empty(64, np.int64)
    num = 0
    for offset in offsets:
        mixed = _spread(key + offset)
        link = heads[_slot_of(mixed, heads, shift)]
        while link > 0:
            row = link - 1
            own = groups[row] if len(groups) else np.int64(0)
            # Tags of two cells may be equal, so the row's own key decides.
            if (
                links[row, 0] == mixed & TAG
                and _key_of(points[row], own, basis, reach, strides) == key + offset
            ):
                if num == len(found):
                    found = np.concatenate((found, np.empty(num, np.int64)))
                found[num] = row
                num += 1
            link = links[row, 1]
    return found[:num].copy()


@compiled
def insert(
    samples: Any, sample_groups: Any, limit: Any, spare: Any, low: Any, high: Any, rows: Any,
    points: Any, norms: Any, stamps: Any, groups: Any, size: Any, clock: Any, norm_factor: Any,
    links: Any, heads: Any, shift: Any, offsets: Any, basis: Any, reach: Any, strides: Any,
    first: Any,
) -> Any:  # fmt: skip
    """Insert samples [n, D] in order under local forgetting, and write their rows [n].

    `spare` is the oldest live row if the buffer is full, else -1. It stops before a sample that
    NumPy has to decide, with a point about as far as the radius, and after one that took the spare
    row. A table without heads means that all live rows are looked at.
    Returns how many samples were inserted, the new size, how many rows were replaced, the sums of
    neighbours and of candidates, how many took the spare row, and whether it stopped because the
    table must grow.
    """
    num = evicted = near_total = num_candidates = overflow = 0
    spare_stamp = stamps[spare] if spare >= 0 else np.int64(0)
    is_grid = len(heads) > 0
    key = mixed = np.int64(0)
    for number in range(len(samples)):
        point = samples[number]
        group = sample_groups[number] if len(groups) else np.int64(0)
        oldest, youngest, num_near, is_unsure = np.int64(-1), NEVER, 0, False
        if is_grid:
            if size >= len(heads):
                return num, size, evicted, near_total, num_candidates, 0, True
            key = _key_of(point, group, basis, reach, strides)
            for k in range(len(offsets)):  # reads that do not wait for each other
                first[k] = heads[_slot_of(_spread(key + offsets[k]), heads, shift)]
            for k in range(len(offsets)):
                link = first[k]
                if link == 0:
                    continue
                mixed = _spread(key + offsets[k])
                while link > 0:
                    row = np.int64(link - 1)
                    if links[row, 0] == mixed & TAG:
                        num_candidates += 1
                        distance = _distance(point, points, row)
                        if distance < high and (len(groups) == 0 or groups[row] == group):
                            # Tags of two cells may be equal, so the row's own key decides.
                            own = _key_of(points[row], group, basis, reach, strides)
                            if own == key + offsets[k]:
                                is_unsure |= distance > low
                                num_near += 1
                                if stamps[row] < youngest:
                                    oldest, youngest = row, stamps[row]
                    link = links[row, 1]
        else:
            num_candidates += size
            for number_of_row in range(size):
                row = np.int64(number_of_row)
                distance = _distance(point, points, row)
                if distance < high and (len(groups) == 0 or groups[row] == group):
                    is_unsure |= distance > low
                    num_near += 1
                    if stamps[row] < youngest:
                        oldest, youngest = row, stamps[row]
        if is_unsure:
            return num, size, evicted, near_total, num_candidates, overflow, False
        is_fresh = num_near < limit and size < len(points)
        if is_fresh:
            oldest = size
        elif num_near < limit:
            if spare < 0 or overflow or stamps[spare] != spare_stamp:
                return num, size, evicted, near_total, num_candidates, overflow, False
            oldest, overflow = spare, 1
        if is_grid:
            if not is_fresh:
                left = groups[oldest] if len(groups) else np.int64(0)
                own = _key_of(points[oldest], left, basis, reach, strides)
                _unlink(oldest, _spread(own), links, heads, shift)
            _link(oldest, _spread(key), links, heads, shift)
        norm = 0.0
        for i in range(len(point)):
            points[oldest, i] = point[i]
            norm += np.float64(point[i]) * point[i]
        norms[oldest] = norm * norm_factor
        if len(groups):
            groups[oldest] = group
        stamps[oldest] = clock
        rows[number] = oldest
        size += is_fresh
        evicted += not is_fresh
        near_total += num_near
        clock += 1
        num += 1
    return num, size, evicted, near_total, num_candidates, overflow, False
