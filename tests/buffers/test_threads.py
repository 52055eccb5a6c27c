"""Threads, forks, other processes: no item meets another's embedding, nothing waits forever."""

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from soundness import check_rows, check_sound, image, item_at

from lofo_rl import Fifo, Local, LofoError, Prioritized, ReplayBuffer

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


@contextmanager
def hasty():
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def together(*works):
    """Run functions in threads, and raise what one of them raised."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    with hasty():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread waits forever"
    if failures:
        raise failures[0]


def place_of(number):
    return np.float32([number, -number])


def make(window, num_streams=4):
    shape = {"window": window, "num_streams": num_streams}
    return ReplayBuffer(Local(0.5, 1), 2000, **shape, group_by="group")


def adder(buffer, stream, num, first=0, *, batch=0):
    """Adds steps whose every part says which they are; every stream has its own numbers."""

    def work():
        numbers = range(10_000 * stream + first, 10_000 * stream + first + num)
        items = [item_at(n, place_of(n), n % 3, stream, n - 1) for n in numbers]
        if not batch:
            for item in items:
                buffer.add(item, embedding=item["place"], stream=stream)
        for start in range(0, num if batch else 0, batch or 1):
            part = items[start : start + batch]
            columns = {name: np.stack([item[name] for item in part]) for name in items[0]}
            buffer.extend(columns, embedding=columns["place"], stream=stream)

    return work


@pytest.mark.parametrize("batch", [0, 7])
@pytest.mark.parametrize("window", [None, 3])
def test_threads_that_add_mix_nothing(window, batch):
    buffer = make(window)
    together(*(adder(buffer, stream, 400, batch=batch) for stream in range(4)))
    items = dict(zip(buffer._spec.names, buffer._rows, strict=True))
    assert len(buffer) == buffer._ledger.clock == 1600
    if window is None:
        check_rows(buffer, np.arange(1600), items)
        ids = sorted(buffer.contents().items["id"].tolist())
        assert ids == [10_000 * stream + n for stream in range(4) for n in range(400)]
        assert (items["deep"][:1600] == items["id"][:1600, None, None]).all()
    else:
        batch = buffer.contents()
        assert len(batch.starts) == 4 * 398
        ids = batch.items["id"]
        np.testing.assert_array_equal(batch.items["before"][:, 1:], ids[:, :-1])
        np.testing.assert_array_equal(batch.items["deep"][..., 0, 0], ids)
        np.testing.assert_array_equal(
            buffer._ledger.index.points[batch.starts], batch.items["place"][:, 0]
        )


def test_all_that_a_buffer_does_may_happen_at_once(tmp_path):
    buffer = ReplayBuffer(Local(0.5, 1), 300, window=2, num_streams=4, sampler=Prioritized())
    for stream in range(4):
        adder(buffer, stream, 5)()
    path, is_over = tmp_path / "b.lofo", threading.Event()

    def until_over(work):
        def repeat():
            for _ in range(2):
                work()
            while not is_over.is_set():
                work()

        return repeat

    def sample():
        batch = buffer.sample(8)
        np.testing.assert_array_equal(batch.items["before"][:, 1], batch.items["id"][:, 0])
        np.testing.assert_array_equal(batch.items["deep"][..., 0, 0], batch.items["id"])
        buffer.update_priorities(batch, np.ones(8))

    def read():
        size = buffer.metrics()["size"]
        assert len(buffer) >= size and len(buffer.contents().starts) <= 300

    def save():
        buffer.save(path)
        check_sound(ReplayBuffer.load(path))

    def add():
        try:
            for first in (5, 105):
                for stream in range(4):
                    adder(buffer, stream, 100, first)()
        finally:
            is_over.set()

    together(add, *map(until_over, (sample, read, save)))
    assert buffer._ledger.clock == 20 + 800


@NEEDS_FORK
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_threads_add_leaves_a_usable_buffer():
    buffer, is_over, codes = make(None), threading.Event(), []

    def fork():
        try:
            for _ in range(5):
                child = os.fork()
                if not child:  # no thread but this one lives here
                    code = 1
                    try:
                        signal.alarm(20)  # a lock that nobody will release ends the child
                        buffer.add(item_at(-1, (1e6, 0)), embedding=(1e6, 0))
                        check_sound(buffer)
                        code = 0
                    finally:
                        os._exit(code)
                codes.append(os.waitpid(child, 0)[1])
        finally:
            is_over.set()

    def add():
        for number in itertools.count():
            if is_over.is_set():
                break
            place = place_of(number % 500)
            buffer.add(item_at(number, place), embedding=place)

    for number in range(3):
        buffer.add(item_at(-2, place_of(number)), embedding=place_of(number))
    together(fork, fork, add)  # two that fork at once must not wait for each other
    assert codes == [0] * 10
    check_sound(buffer)


def echo(buffer):
    buffer.add(item_at(9, (9, 9)), embedding=(9.0, 9.0))
    return buffer, buffer.contents().items["id"].tolist()


@pytest.mark.parametrize("method", ["spawn"])
def test_a_buffer_goes_to_another_process_and_comes_back(method):
    buffer = ReplayBuffer(Local(0.5, 1), 8)
    for number in range(5):
        buffer.add(item_at(number, (number, 0)), embedding=(number, 0))
    with multiprocessing.get_context(method).Pool(1) as pool:
        back, ids = pool.apply(echo, (buffer,))
    assert ids == [0, 1, 2, 3, 4, 9] and back.contents().items["id"].tolist() == ids
    check_sound(back)
    echo(buffer)
    assert image(back) == image(buffer)


def test_pickles_hold_the_format_of_files():
    buffer = ReplayBuffer(Fifo(), 4)
    buffer.add(item_at(1, (0, 0)))
    whole = bytearray(pickle.dumps(buffer))
    assert b"lofobuf2" in whole
    whole[whole.index(b"lofobuf2") + 60] ^= 1
    with pytest.raises(LofoError, match=r"the pickled buffer .* damaged"):
        pickle.loads(bytes(whole))


def test_a_signal_handler_in_the_middle_of_a_change_is_refused_not_stuck():
    """A handler that saves when a job is preempted may come at any moment."""
    buffer, seen = ReplayBuffer(Local(0.5, 1), 100), []

    def handle(*_):
        for call in (buffer.contents, buffer.metrics, lambda: buffer.sample(1)):
            with pytest.raises(LofoError, match="in the middle of a change"):
                call()
            seen.append(call)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        add = buffer._ledger.add

        def add_and_signal(*arguments):
            add(*arguments)
            signal.raise_signal(signal.SIGUSR1)

        buffer._ledger.add = add_and_signal
        buffer.add(item_at(0, (0, 0)), embedding=(0.0, 0.0))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 3
    check_sound(buffer)


def test_a_locality_and_a_group_may_ask_the_buffer():
    def embed(observation):
        sizes.append(buffer.metrics()["size"])
        return observation

    def group_of(item):
        sizes.append(buffer.metrics()["size"])
        return int(item["id"]) % 2

    sizes = []
    buffer = ReplayBuffer(Local(0.5, 1), 8, embed, group_by=group_of)
    together(lambda: [buffer.add({"observation": [float(n)], "id": n}) for n in range(4)])
    assert sizes == [0, 0, 1, 1, 2, 2, 3, 3] and len(buffer) == 4


def test_an_interrupt_that_is_interrupted_says_so_until_clear():
    buffer = ReplayBuffer(Fifo(), 4)
    buffer.add({"x": 1})

    def fail(*_):
        raise KeyboardInterrupt

    finish, buffer._ledger.finish = buffer._ledger.finish, fail
    add, buffer._ledger.add_one = buffer._ledger.add_one, fail
    with pytest.raises(KeyboardInterrupt):
        buffer.add({"x": 2})
    buffer._ledger.finish, buffer._ledger.add_one = finish, add
    for call in (lambda: buffer.add({"x": 2}), lambda: buffer.sample(1), lambda: buffer.save("x")):
        with pytest.raises(LofoError, match=r"in the middle of a change.*clear\(\)"):
            call()
    buffer.clear()
    buffer.add({"x": 3})
    assert buffer.contents().items["x"].tolist() == [3]


@pytest.mark.slow
def test_real_interrupts_leave_a_sound_buffer():
    """Timers interrupt the main thread wherever it is, while it adds windows."""
    buffer = ReplayBuffer(Local(0.3, 2), 40, window=3, sampler=Prioritized(), group_by="group")
    rng, number, num_interrupts, last = np.random.default_rng(0), 0, 0, -1

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                clock = buffer._ledger.clock
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-3))
                while True:
                    place = rng.integers(0, 12, 2) / 8
                    item = item_at(number, place, number % 2, 0, last)
                    clock = buffer._ledger.clock
                    number += 1
                    buffer.add(item, embedding=item["place"])
                    last = number - 1
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                num_interrupts += 1
                if buffer._ledger.clock > clock:
                    last = number - 1
                if num_interrupts % 10 == 0:
                    check_sound(buffer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    check_sound(buffer)
    assert num_interrupts > 1000


def test_every_method_waits_while_another_thread_is_at_work(tmp_path):
    methods = {
        "add": lambda buffer, _: buffer.add({"x": 9}),
        "extend": lambda buffer, _: buffer.extend({"x": np.arange(2)}),
        "sample": lambda buffer, _: buffer.sample(2),
        "update_priorities": lambda buffer, batch: buffer.update_priorities(batch, np.ones(3)),
        "contents": lambda buffer, _: buffer.contents(),
        "clear": lambda buffer, _: buffer.clear(),
        "metrics": lambda buffer, _: buffer.metrics(1),
        "save": lambda buffer, _: buffer.save(tmp_path / "b.lofo"),
        "__reduce__": lambda buffer, _: pickle.dumps(buffer),
    }
    threads, done = {}, []

    def run(name, *own):
        methods[name](*own)
        done.append(name)

    with ExitStack() as locks:
        for name in methods:
            buffer = ReplayBuffer(Fifo(), 4, sampler=Prioritized())
            buffer.extend({"x": np.arange(3)})
            own = name, buffer, buffer.sample(3)
            locks.enter_context(buffer._lock)
            threads[name] = threading.Thread(target=run, args=own, daemon=True)
            threads[name].start()
        time.sleep(0.1)
        assert done == [] and all(thread.is_alive() for thread in threads.values())
    for thread in threads.values():
        thread.join(60)
    assert sorted(done) == sorted(methods)
