"""An interrupt at any moment of a change leaves a sound buffer: a sample is in it whole, or not."""

import dis
import functools
import pickle
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from soundness import check_sound, image, item_at

import lofo_rl
from lofo_rl import Fifo, Local, Prioritized, ReplayBuffer, Reservoir
from lofo_rl.buffers import Placement, neighbors

SOURCES = str(Path(lofo_rl.__file__).parent / "buffers")
# Python answers signals after calls, at the end of a loop's body, and when a function begins.
STOPS = ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME", "CALL_KW", "CALL_INTRINSIC_1")


@functools.cache
def names_of(code):
    """The instructions of a function by their place."""
    return {op.offset: op.opname for op in dis.get_instructions(code)}


class Interrupt:
    """Raises KeyboardInterrupt at the n-th moment at which a signal could be answered."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        last = "RESUME"

        def trace(frame, event, _):
            nonlocal last
            if event == "opcode":
                if last.startswith(STOPS):
                    self.left -= 1
                    if self.left < 0:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                last = names_of(frame.f_code).get(frame.f_lasti, "")
            return trace

        return trace

    def during(self, call):
        """Whether the call was interrupted."""
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False


def place_of(number):
    return 0.25 * (5 * number % 7), 0.25 * (number % 2)


def make(rule, window, sampler, num_streams):
    return ReplayBuffer(
        rule,
        6,
        window=window,
        sampler=sampler,
        num_streams=num_streams,
        group_by="group" if rule.needs_embedding else None,
    )


def steps_of(numbers, num_streams, last):
    """Items and streams of steps; `last` holds the step before, of each stream, and is updated."""
    items, streams = [], [number % 3 % num_streams for number in numbers]
    for number, stream in zip(numbers, streams, strict=True):
        place = place_of(number)
        items.append(item_at(number, place, number % 2, stream, last.get(stream, -1)))
        last[stream] = number
    return {name: np.stack([item[name] for item in items]) for name in items[0]}, np.array(streams)


def add(buffer, number, last):
    batch, (stream,) = steps_of([number], buffer._num_streams, last)
    item = {name: x[0] for name, x in batch.items()}
    is_last = bool(buffer._window and number % 9 == 8)
    buffer.add(item, embedding=item["place"], stream=stream, is_last=is_last)


def extend(buffer, numbers, last):
    batch, streams = steps_of(numbers, buffer._num_streams, last)
    is_last = np.array(numbers) % 9 == 8 if buffer._window else None
    buffer.extend(batch, embedding=batch["place"], stream=streams, is_last=is_last)


CHANGES = {
    "add": lambda buffer, last: add(buffer, 40, last),
    "close": lambda buffer, last: add(buffer, 44, last),
    "extend": lambda buffer, last: extend(buffer, range(42, 47), last),
    "sample": lambda buffer, last: buffer.sample(3),
}
BUFFERS = [
    (rule, window, sampler, num_streams)
    for rule in (Fifo(), Reservoir(), Local(0.5, 1), Local(0.5, 3), Local(0.2, 2))
    for window, num_streams in ((None, 1), (1, 1), (3, 2))
    for sampler in (None, Prioritized())
]


def check_every(stride, shape, num_before, change):
    """Interrupt a change at every `stride`-th moment, and check what is left, and that it lives."""
    buffer, last = make(*shape), {}
    for number in range(num_before):
        add(buffer, number, last)
    start, num_starts = pickle.dumps(buffer), buffer._ledger.clock
    before, (whole, then) = image(buffer, counts=False), (pickle.loads(start), dict(last))
    CHANGES[change](whole, then)
    after = image(whole, counts=False)
    for moment in range(stride // 2, 10_000, stride):
        buffer, now = pickle.loads(start), dict(last)
        if not Interrupt(moment).during(lambda: CHANGES[change](buffer, now)):  # noqa: B023
            break
        check_sound(buffer)
        clock = buffer._ledger.clock
        assert num_starts <= clock <= whole._ledger.clock
        is_in = image(buffer, counts=False) != before
        if buffer._window is None and change != "extend" and is_in:
            assert image(buffer, counts=False) == after
        now = dict(then if is_in else last)
        for number in range(100, 104):
            add(buffer, number, now)
        check_sound(buffer)
    assert moment > 20 and image(buffer) == image(whole)


@pytest.mark.parametrize("change", ["add", "extend"])
@pytest.mark.parametrize("shape", BUFFERS, ids=str)
def test_an_interrupted_change_leaves_a_sound_buffer(shape, change):
    check_every(17, shape, 40, change)


WHEN = [(change, num) for num in (0, 4, 40) for change in CHANGES if num or change != "sample"]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "num_before"), WHEN)
@pytest.mark.parametrize("shape", BUFFERS, ids=str)
def test_an_interrupt_at_any_moment_leaves_a_sound_buffer(shape, num_before, change):
    check_every(1, shape, num_before, change)


class EverySecond:
    """A rule that refuses every second sample, and is interrupted at one of them."""

    needs_embedding = voids_rewards = False
    interrupted_at = 5

    def choose(self, ledger, near, rng):
        if ledger.clock == self.interrupted_at:
            raise KeyboardInterrupt
        return Placement(ledger.capacity if ledger.clock % 2 else ledger.size, 0, False)


@pytest.mark.parametrize("stop", [3, 4, 5])
def test_samples_refused_before_an_interrupt_shift_no_stamp(stop):
    buffer, rule = ReplayBuffer(EverySecond(), 8), EverySecond
    with patch.object(rule, "interrupted_at", stop), pytest.raises(KeyboardInterrupt):
        buffer.extend({"id": np.arange(8)})
    batch = buffer.contents()
    assert batch.items["id"].tolist() == batch.stamps.tolist() == [*range(0, stop, 2)]
    assert buffer._ledger.clock == stop


def test_an_interrupt_before_the_steps_are_chained_voids_the_reward_of_the_start_that_left():
    buffer = ReplayBuffer(Local(0.5, 1), 8, window=3)
    for number in range(4):
        buffer.add({"id": number}, embedding=[float(number)])
    with (
        patch.object(buffer._steps, "add", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        buffer.add({"id": 4}, embedding=[1.0])  # takes the row of the start 1
    batch = buffer.contents()
    assert batch.items["id"].tolist() == [[0, 1, 2]]
    assert batch.reward_known.tolist() == [[True, False, True]]


def test_an_interrupt_before_a_point_is_stored_loses_no_group():
    with patch.object(neighbors, "kernels", lambda: None):
        buffer = ReplayBuffer(Local(0.5, 1), 8)
        buffer.add(item_at(0, (0, 0), 1), embedding=(0.0, 0.0), group=1)
        index = buffer._ledger.index
        with (
            patch.object(index, "store", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            buffer.add(item_at(1, (0, 0), 2), embedding=(0.0, 0.0), group=2)
        assert index.groups.tolist() == [1, 2]
        check_sound(buffer)
