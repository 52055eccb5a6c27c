"""Local forgetting as one compiled call for many samples. Importing this needs numba.

The functions here decide alone only where no point is within a relative `1e-5` of the radius.
A sum of squares in another order than NumPy's may differ in its last bit, so such a sample is
handed back, and NumPy decides it. So decisions do not depend on numba.

Rows lie in cells twice as wide as the radius, on K axes, so a neighbor of a point lies in one of
the 2 ** K cells around it. `table` is a hash table of chains of chunks. The lowest bits of a slot
are the parities of a cell's coordinates, so the cells around a point have slots of their own, and
no row is met twice. A chunk is one line of cache, 16 integers:

    [0..6] signatures   [7] number of rows   [8..14] rows   [15] next chunk, 0: none

Only the first chunk of a chain may have room. Behind all chunks stands the first one of each slot.

A signature holds the places of a row in 32 bits: 4 on each of 8 axes, 8 on 4, 16 on 2 or 32 on 1,
in steps of radius / 3.5. Two points nearer than the radius differ by at most 3.5 steps on every
axis, so most rows are passed over by their signatures, without a look at their points.

Every argument of a call takes time, so all small things stand in one array of integers, `book`,
whose end is read as float64, `numbers`. `groups` is None where there are none.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

AXES = 8  # the most axes of a signature
ENTRIES, NEXT = 7, 15  # rows of a chunk, and where it names the next
LOAD = 12  # rows for each slot when the table is full
FINE = 3.5  # steps of a signature for each radius
MOST_CELL_AXES = 7
NEVER = np.int64(2**63 - 1)  # a stamp that no row has
LARGEST = 2.0**110  # the squared norm of a point that may be held
SPREAD = np.int64(2685821657736338717)  # odd numbers that spread keys over a table
GROUP = np.int64(-4417276706812531889)
AXIS = (
    -7046029254386353131, -4658895280553007687, 7046029254386353087, -3335678366873096957,
    8106689801006905757, -5435081209227447693, 5700357409661599241,
)  # fmt: skip
AXIS_SPREAD = np.array(AXIS, np.int64)
ON, REFERRED, FULL, REFUSED = 0, 1, 2, 3  # why an insert stopped

# In `book`: the first free chunk, the chunks ever used, the axes of cells, the bits of a signature
# for each axis, of these the high ones, and all but the lowest three, where the slots begin in the
# table, how many there are, and room for keys, chains and the candidates found.
FREE, USED, CELL_AXES, BITS, HIGH, OFF, SLOTS, NUM_SLOTS, KEYS = range(9)
CHAINS = KEYS + (1 << MOST_CELL_AXES)
FOUND = CHAINS + (1 << MOST_CELL_AXES)
# In `numbers`: the squared distances between which NumPy decides, the largest coordinate, room for
# the places of a point and for the distances of cells, and the axes [D, 8].
NUMBERS = FOUND + 8 * (1 << MOST_CELL_AXES)
LOW, TOP, REACH, PLACES = range(4)
AWAY = PLACES + AXES
BASIS = AWAY + (1 << MOST_CELL_AXES)

intrinsic: Any = extending.intrinsic
compiled = numba.njit(error_model="numpy", cache=True)


@numba.njit(error_model="numpy", cache=True, fastmath={"reassoc", "contract"})
def _distance(point: Any, points: Any, row: Any) -> Any:
    """The squared distance of a point to the point of a row, in float32."""
    total = np.float32(0)
    for i in range(len(point)):
        difference = points[row, i] - point[i]
        total += difference * difference
    return total


@intrinsic
def _fetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Start to read the line of cache that holds an element, without waiting for it."""

    def generate(context: Any, build: Any, own: Any, arguments: Any) -> Any:
        data = context.make_array(own.args[0])(context, build, arguments[0]).data
        address = build.bitcast(build.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        fetch = build.module.declare_intrinsic("llvm.prefetch", [address.type], form)
        build.call(fetch, [address, word(0), word(3), word(1)])  # a read, to keep, of data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@compiled
def _place(point: Any, numbers: Any) -> None:
    """Write the coordinates of a point on all axes, in radii."""
    for axis in range(AXES):
        numbers[PLACES + axis] = 0.0
    reach = numbers[REACH]
    for i in range(len(point)):
        x = min(max(np.float64(point[i]), -reach), reach)
        for axis in range(AXES):
            numbers[PLACES + axis] += x * numbers[BASIS + AXES * i + axis]


def numbers_of(radius: float, reach: float, basis: Any) -> Any:
    """The numbers of a book, for a basis [D, A] that measures in radii."""
    embedding_size, num_axes = basis.shape
    # The compiled sum of squares may differ from NumPy's by this share.
    margin = max(1e-5, (embedding_size + 8) * 2.0**-22)
    numbers = np.zeros(BASIS + embedding_size * AXES)
    numbers[:PLACES] = radius**2 * (1 - margin), radius**2 * (1 + margin), reach
    numbers[BASIS:].reshape(-1, AXES)[:, :num_axes] = basis
    return numbers


def book_of(num_cell_axes: int, num_axes: int, start: int, num_slots: int, numbers: Any) -> Any:
    """The book of an empty table, whose slots begin at `start`."""
    bits = 32 // (1 << (num_axes - 1).bit_length())
    ones = sum(1 << (bits * k) for k in range(32 // bits))
    own = 0, 1, num_cell_axes, bits, ones << (bits - 1), ones * ((1 << bits) - 8), start, num_slots
    return np.concatenate([own, np.zeros(NUMBERS - len(own), np.int64), numbers.view(np.int64)])


@compiled
def _group_of(row: Any, groups: Any) -> Any:
    """The group of a row; 0 where there are none."""
    if groups is None:
        return np.int64(0)
    return groups[row]


@compiled
def _signature(numbers: Any, shift: Any, bits: Any) -> Any:
    """The signature of the point that was placed last, or of one `shift` steps before it."""
    total = np.int64(0)
    for axis in range(32 // bits):
        step = np.int64(np.floor(numbers[PLACES + axis] * FINE - shift))
        total |= (step & ((1 << bits) - 1)) << (bits * axis)
    return total


@compiled
def _hash(key: Any, parity: Any, book: Any) -> Any:
    """Where in the table the chain of the cell of a key and of these parities is named."""
    mixed = ((key ^ (key >> 31)) * SPREAD) >> 24
    num_axes = book[CELL_AXES]
    return book[SLOTS] + (((mixed & ((book[NUM_SLOTS] >> num_axes) - 1)) << num_axes) | parity)


@compiled
def _slot(numbers: Any, group: Any, book: Any) -> Any:
    """Where in the table the chain of the point that was placed last is named."""
    key, parity = group * GROUP, np.int64(0)
    for axis in range(book[CELL_AXES]):
        cell = np.int64(np.floor(numbers[PLACES + axis] * 0.5))
        key += (cell >> 1) * AXIS_SPREAD[axis]
        parity |= (cell & 1) << axis
    return _hash(key, parity, book)


@compiled
def _chains_around(numbers: Any, group: Any, table: Any, book: Any) -> Any:
    """Write the first chunks of the cells near the point that was placed last; how many."""
    keys, chain, away = book[KEYS:CHAINS], book[CHAINS:FOUND], numbers[AWAY:BASIS]
    keys[0], chain[0], away[0], num = group * GROUP, 0, 0.0, 1
    for axis in range(book[CELL_AXES]):
        place = numbers[PLACES + axis] * 0.5 - 0.5
        cell = np.int64(np.floor(place))
        one, two = (cell >> 1) * AXIS_SPREAD[axis], ((cell + 1) >> 1) * AXIS_SPREAD[axis]
        bit, other = (cell & 1) << axis, ((cell + 1) & 1) << axis
        beyond = 2 * (place - cell) - 1  # how far the point lies behind the wall between the two
        near, far = max(beyond, 0.0) ** 2, min(beyond, 0.0) ** 2
        for i in range(num):
            keys[num + i], keys[i] = keys[i] + two, keys[i] + one
            chain[num + i], chain[i] = chain[i] | other, chain[i] | bit
            away[num + i], away[i] = away[i] + far, away[i] + near
        num *= 2
    num_near = 0
    for i in range(num):  # of the cells, those that are less than a radius away
        keys[num_near], chain[num_near] = keys[i], chain[i]
        num_near += away[i] < 1 + 2.0**-9
    num_chains = 0
    for i in range(num_near):
        chunk = table[_hash(keys[i], chain[i], book)]
        chain[num_chains] = chunk
        num_chains += chunk > 0
        _fetch(table, 16 * np.int64(chunk))
    return num_chains


@compiled
def _link(row: Any, signature: Any, slot: Any, table: Any, book: Any) -> None:
    chunk = np.int64(table[slot])
    if chunk == 0 or table[16 * chunk + ENTRIES] == ENTRIES:
        following = chunk
        chunk = book[FREE]
        if chunk:
            book[FREE] = table[16 * chunk + NEXT]
        else:
            chunk = book[USED]
            book[USED] += 1
        table[16 * chunk + ENTRIES], table[16 * chunk + NEXT] = 0, following
        table[slot] = chunk
    number = table[16 * chunk + ENTRIES]
    table[16 * chunk + number] = np.int32(signature)
    table[16 * chunk + 8 + number] = row
    table[16 * chunk + ENTRIES] = number + 1


@compiled
def _unlink(row: Any, slot: Any, table: Any, book: Any) -> None:
    first = 16 * np.int64(table[slot])
    chunk, number = first, 0
    while table[chunk + 8 + number] != row or number >= table[chunk + ENTRIES]:
        number += 1
        if number >= table[chunk + ENTRIES]:
            chunk, number = 16 * np.int64(table[chunk + NEXT]), 0
    last = table[first + ENTRIES] - 1  # the last row of the first chunk fills the gap
    table[chunk + number] = table[first + last]
    table[chunk + 8 + number] = table[first + 8 + last]
    table[first + ENTRIES] = last
    if last == 0:
        table[slot], table[first + NEXT] = table[first + NEXT], book[FREE]
        book[FREE] = first // 16


@compiled
def link_all(points: Any, groups: Any, size: Any, table: Any, book: Any) -> None:
    """Enter the live rows into an empty table."""
    numbers = book[NUMBERS:].view(np.float64)
    for row in range(size):
        _place(points[row], numbers)
        slot = _slot(numbers, _group_of(row, groups), book)
        _link(row, _signature(numbers, 0.0, book[BITS]), slot, table, book)


@compiled
def move(
    points: Any, groups: Any, row: Any, point: Any, group: Any, is_fresh: Any,
    table: Any, book: Any,
) -> None:  # fmt: skip
    """Move a row to the cell of its new point, before that is written."""
    numbers = book[NUMBERS:].view(np.float64)
    if not is_fresh:
        _place(points[row], numbers)
        _unlink(row, _slot(numbers, _group_of(row, groups), book), table, book)
    _place(point, numbers)
    slot = _slot(numbers, np.int64(group), book)
    _link(row, _signature(numbers, 0.0, book[BITS]), slot, table, book)


@intrinsic
def _fits(typing_context: Any, table: Any, chunk: Any, low: Any, high: Any, off: Any) -> Any:
    """Which signatures of a chunk lie less than 8 steps above `low` on every axis, as bits.

    All eight are compared at once. Without a carry between axes, `signature - low` is
    ((signature | high) - (low & ~high)) ^ ((signature ^ ~low) & high). It may have no bit of `off`.
    """

    def generate(context: Any, build: Any, own: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        line = ir.VectorType(word, 8)
        zero, undefined = ir.Constant(line, [0] * 8), ir.Constant(line, ir.Undefined)

        def eight_times(number: Any) -> Any:
            first = build.insert_element(undefined, build.trunc(number, word), word(0))
            return build.shuffle_vector(first, undefined, zero)

        memory = context.make_array(own.args[0])(context, build, arguments[0]).data
        start = build.gep(memory, [build.mul(arguments[1], ir.IntType(64)(16))])
        signatures = build.load(build.bitcast(start, line.as_pointer()))
        signatures.align = 4
        low, high, off = (eight_times(number) for number in arguments[2:])
        above = build.sub(build.or_(signatures, high), build.and_(low, build.not_(high)))
        carry = build.and_(build.xor(signatures, build.not_(low)), high)
        fits = build.icmp_unsigned("==", build.and_(build.xor(above, carry), off), zero)
        return build.zext(build.bitcast(fits, ir.IntType(8)), ir.IntType(64))

    number = types.int64
    return number(table, number, number, number, number), generate


@intrinsic
def _lowest(typing_context: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set."""

    def generate(context: Any, build: Any, own: Any, arguments: Any) -> Any:
        return build.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@compiled
def _gather(
    low: Any, num_chains: Any, table: Any, book: Any, points: Any, found: Any, num: Any
) -> Any:
    """Append the rows of chunks whose signatures fit, and let each chain advance by one chunk.

    All chains advance together, so that their chunks are read from memory at the same time. Of most
    chunks none, one or two signatures fit: two rows are written without a branch, which would be
    mispredicted half of the time, and counted only if they fit.
    """
    chain, high, off = book[CHAINS:FOUND], book[HIGH], book[OFF]
    num_left: Any = 0
    for i in range(num_chains):
        chunk = chain[i]
        fits = _fits(table, chunk, low, high, off)
        fits &= (1 << np.int64(table[16 * chunk + ENTRIES])) - 1
        for _ in range(2):
            row = np.int64(table[16 * chunk + 8 + _lowest(fits | 128)])
            found[num] = row
            num += fits != 0
            fits &= fits - 1
            _fetch(points, row * points.shape[1])
        while fits:
            row = np.int64(table[16 * chunk + 8 + _lowest(fits)])
            found[num] = row
            num += 1
            fits &= fits - 1
            _fetch(points, row * points.shape[1])
        following = np.int64(table[16 * chunk + NEXT])
        chain[num_left] = following
        num_left += following > 0
        _fetch(table, 16 * following)
    return num_left, num


@compiled
def gather(points: Any, point: Any, group: Any, size: Any, table: Any, book: Any) -> Any:
    """Rows among which are all that are near a point, each once; and how much was looked at.

    With no table, all `size` live rows are looked at.
    """
    numbers = book[NUMBERS:].view(np.float64)
    top, found, num, looked_at = np.float32(numbers[TOP]), np.empty(1024, np.int64), 0, size
    if len(table):
        _place(point, numbers)
        num_chains = _chains_around(numbers, np.int64(group), table, book)
        low, looked_at = _signature(numbers, FINE, book[BITS]), 0
        while num_chains:
            looked_at += num_chains
            if num + 8 * num_chains > len(found):
                found = np.concatenate((found, np.empty(len(found), np.int64)))
            num_chains, num = _gather(low, num_chains, table, book, points, found, num)
        looked_at += num
        size, num = num, 0
    for k in range(size):
        row = found[k] if len(table) else np.int64(k)
        if _distance(point, points, row) < top:
            if num == len(found):
                found = np.concatenate((found, np.empty(num, np.int64)))
            found[num] = row
            num += 1
    return found[:num].copy(), looked_at


@compiled
def insert(
    samples: Any, sample_groups: Any, rows: Any, points: Any, stamps: Any, groups: Any,
    table: Any, book: Any, limit: Any, spare: Any, size: Any, clock: Any,
) -> Any:  # fmt: skip
    """Insert samples [n, D] in order under local forgetting, and write their rows [n].

    `spare` is the oldest live row if the buffer is full, else -1. It stops before a sample that
    NumPy has to decide, with a point about as far as the radius, before one that is too long to be
    held, when the table must grow, and before a second one that takes the spare row. With no table,
    all live rows are looked at.
    Returns how many samples were inserted, how many of them took a fresh row, the sum of their
    neighbors, how many chunks and points were looked at, how many took the spare row, why it
    stopped, and the row of the last one.
    """
    num = num_fresh = near_total = looked_at = overflow = 0
    stopped, row = ON, np.int64(-1)
    spare_stamp = stamps[spare] if spare >= 0 else np.int64(0)
    found, numbers = book[FOUND:NUMBERS], book[NUMBERS:].view(np.float64)
    low, top, is_grid = np.float32(numbers[LOW]), np.float32(numbers[TOP]), len(table) > 0
    slot = signature = lowest = np.int64(0)
    for number in range(len(samples)):
        point = samples[number]
        group = _group_of(number, sample_groups)
        oldest, youngest, num_near, is_unsure = np.int64(-1), NEVER, 0, False
        norm = 0.0
        for i in range(len(point)):
            norm += np.float64(point[i]) * point[i]
        if not norm <= LARGEST:  # NaN, too
            stopped = REFUSED
            break
        num_chains, num_found = 0, size
        if is_grid:
            if size >= LOAD * book[NUM_SLOTS]:
                stopped = FULL
                break
            _place(point, numbers)
            slot, signature = _slot(numbers, group, book), _signature(numbers, 0.0, book[BITS])
            lowest = _signature(numbers, FINE, book[BITS])
            num_chains, num_found = _chains_around(numbers, group, table, book), 0
        is_looking = True
        while is_looking:
            while num_chains and num_found + 8 * num_chains <= len(found):
                looked_at += num_chains
                num_chains, num_found = _gather(
                    lowest, num_chains, table, book, points, found, num_found
                )
            for k in range(num_found):
                other = found[k] if is_grid else np.int64(k)
                distance = _distance(point, points, other)
                if distance < top and _group_of(other, groups) == group:
                    is_unsure |= distance > low
                    num_near += 1
                    if stamps[other] < youngest:
                        oldest, youngest = other, stamps[other]
            looked_at += num_found
            num_found = 0
            is_looking = num_chains > 0
        if is_unsure:
            stopped = REFERRED
            break
        is_fresh = num_near < limit and size < len(points)
        if is_fresh:
            oldest = size
        elif num_near < limit:
            if spare < 0 or overflow or stamps[spare] != spare_stamp:
                break
            oldest, overflow = spare, 1
        row = oldest
        if is_grid:
            if not is_fresh:
                _place(points[row], numbers)
                _unlink(row, _slot(numbers, _group_of(row, groups), book), table, book)
            _link(row, signature, slot, table, book)
        for i in range(len(point)):
            points[row, i] = point[i]
        if groups is not None:
            groups[row] = group
        stamps[row] = clock
        rows[number] = row
        size += is_fresh
        num_fresh += is_fresh
        near_total += num_near
        clock += 1
        num += 1
    return num, num_fresh, near_total, looked_at, overflow, stopped, row
