"""One long life of a buffer: any sequence of calls leaves what the paper's lists hold.

Three live side by side. The buffer is extended, saved, loaded, pickled and copied. Its twin gets
the same steps one by one and is never copied; its bytes must stay the same. The oracle decides
what both hold.
"""

import copy
import pickle
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from soundness import check_index, image
from test_replay_buffer import GRID, RULES, check_metrics, contents, contents_of_oracle

import oracles
from lofo_rl import LofoError, Prioritized, ReplayBuffer
from lofo_rl.buffers import cells, neighbors

# Capacity, window, slots, streams; the last two fill enough rows for a grid.
SHAPES = [
    (5, None, None, 1),
    (4, 3, None, 2),
    (6, 1, None, 1),
    (5, 4, 6, 2),
    (1, 2, None, 1),
    (40, None, None, 1),
    (30, 2, 40, 3),
]
STEP = st.tuples(
    st.integers(0, 3),  # where
    st.integers(0, 2),
    st.sampled_from([True, True, True, True, False]),  # a start, or a closing row
    st.integers(0, 2),  # its stream
    st.integers(-1, 1),  # its group
    st.booleans(),  # the first of an episode
)
STEPS = st.lists(STEP, min_size=3, max_size=14)
SAMPLERS = [None, Prioritized(), Prioritized(exponent=1.0, floor=0.5, beta=1.0)]
EVENTS = ["add", "add", "extend"]


BAD = {
    "shape": lambda b: b.add({"observation": np.zeros(3), "id": "?", "group": 0}),
    "kind": lambda b: b.add("left", embedding=[0.0, 0.0]),
    "texts": lambda b: b.extend({"observation": np.ones((2, 2)), "id": np.array(["a", "b"])}),
    "stream": lambda b: b.add({"observation": np.zeros(2)}, embedding=[0.0], stream=9),
    "num": lambda b: b.sample(0),
    "weight": lambda b: b.sample(2, np.full(b._capacity, np.nan)),
    "batch": lambda b: b.update_priorities(None, [1.0]),
    "age": lambda b: b.metrics(age=-1),
    "folder": lambda b: b.save(tempfile.gettempdir()),
}


def group_of(item):
    return int(item["group"])


def embed(observation):
    return np.asarray(observation, np.float32) * np.float32(GRID)


class Life(RuleBasedStateMachine):
    which, shape = RULES[0], SHAPES[0]  # set by the tests

    @initialize(
        sampler=st.sampled_from(SAMPLERS),
        grouping=st.sampled_from(["none", "given", "leaf", "function"]),
        has_locality=st.booleans(),
        is_compiled=st.booleans(),
        seed=st.integers(0, 9),
    )
    def begin(self, sampler, grouping, has_locality, is_compiled, seed):
        self.patches = ExitStack()
        self.patches.enter_context(patch.multiple(neighbors, FEWEST=6, WINDOW=8))
        for kind in (cells.ListedCells, cells.LinkedCells):
            self.patches.enter_context(patch.object(kind, "worth", 9.0))
        if not is_compiled:
            self.patches.enter_context(patch.object(neighbors, "kernels", lambda: None))
        self.rule, self.make_oracle = self.which
        self.capacity, self.window, num_slots, self.num_streams = self.shape
        self.grouping = grouping if self.rule.needs_embedding else "none"
        self.locality = embed if has_locality else None
        self.group_by = {"leaf": "group", "function": group_of}.get(self.grouping)
        self.options = {
            "window": self.window, "num_slots": num_slots, "num_streams": self.num_streams,
            "seed": seed, "sampler": sampler,
        }  # fmt: skip
        self.buffer, self.twin = self.make(), self.make()
        self.sampler, self.number = sampler, 0
        self.forget()

    def make(self):
        return ReplayBuffer(
            self.rule, self.capacity, self.locality, group_by=self.group_by, **self.options
        )

    def forget(self):
        """A new oracle, for an empty buffer."""
        self.oracle = oracles.SequenceBuffer(
            self.make_oracle(), self.capacity, self.window or 1, self.buffer._num_slots
        )
        self.firsts, self.priorities, self.highest, self.batches = {}, {}, 1.0, []

    def item(self, step):
        x, y, is_start, stream, group, is_first = step
        self.number += 1
        number = self.number
        self.firsts[number] = is_first
        item = {
            "observation": np.float32([x, y]),
            "id": np.int32(number),
            "group": np.int8(group),
            "deep": [np.uint8(number % 256), (np.full((2, 1), number, np.float64),)],
            "is_first": np.bool_(is_first),
            "is_last": np.bool_(not is_start),
        }
        return item, stream % self.num_streams, group

    def tell_oracle(self, items, is_start, streams, groups, rng):
        states = self.oracle.states
        for item, is_one, stream, group in zip(items, is_start, streams, groups, strict=True):
            draw, is_full = 0, len(states.samples) == self.capacity
            if is_one and is_full and isinstance(states.rule, oracles.Reservoir):
                draw = int(rng.integers(states.seen + 1))
            self.oracle.add(
                int(item["id"]), tuple((GRID * item["observation"]).tolist()), is_start=is_one,
                stream=stream, draw=draw, group=0 if self.grouping == "none" else group,
            )  # fmt: skip

    @rule(steps=STEPS, events=st.lists(st.sampled_from(EVENTS)))
    def live(self, steps, events):
        """Steps come one by one or in batches, in the same order."""
        self.take(steps, events)

    @rule(steps=STEPS)
    def live_in_batches(self, steps):
        """The like, so that most of a life is spent so."""
        self.take(steps, [])

    @rule(steps=STEPS)
    def live_step_by_step(self, steps):
        """The like."""
        self.take(steps, ["add"] * len(steps))

    def take(self, steps, events):
        if self.window is None:
            steps = [(*step[:2], True, *step[3:]) for step in steps]
        made = [self.item(step) for step in steps]
        items, streams, groups = ([one[i] for one in made] for i in range(3))
        is_start = [step[2] for step in steps]
        self.tell_oracle(items, is_start, streams, groups, copy.deepcopy(self.buffer._rng))
        for i in range(len(items)):
            self.add_one(self.twin, items[i], is_start[i], streams[i], groups[i])
        at = 0
        for number, event in enumerate([*events, *["extend"] * len(items)]):
            part = slice(at, at + 1 + (number + len(steps)) % 5)
            if at >= len(items):
                break
            if event == "add":
                self.add_one(self.buffer, items[at], is_start[at], streams[at], groups[at])
                at += 1
            else:
                self.add_many(items[part], is_start[part], streams[part], groups[part])
                at = part.stop

    def add_one(self, buffer, item, is_start, stream, group):
        own = {"group": group} if self.grouping == "given" and is_start else {}
        if self.locality is None and is_start:
            own["embedding"] = embed(item["observation"])
        if self.number % 2:  # flags stand in the item, or beside it
            own |= {"is_first": bool(item["is_first"]), "is_last": not is_start}
            item = item | {"is_first": False, "is_last": False}
        buffer.add(item, stream=stream, **own)

    def add_many(self, items, is_start, streams, groups):
        batch = {
            name: np.stack([item[name] for item in items]) for name in items[0] if name != "deep"
        }
        deep = [item["deep"] for item in items]
        batch["deep"] = [np.stack([x[0] for x in deep]), (np.stack([x[1][0] for x in deep]),)]
        batch = {name: batch[name] for name in items[0]}
        own = {"group": groups} if self.grouping == "given" else {}
        if self.locality is None:
            own["embedding"] = embed(batch["observation"])
        if self.number % 3 == 0:
            own |= {"is_first": batch["is_first"], "is_last": ~np.array(is_start)}
            batch |= {"is_first": np.zeros(len(items), bool), "is_last": np.zeros(len(items), bool)}
        self.buffer.extend(batch, stream=streams, **own)

    @rule(
        num=st.integers(1, 5),
        weights=st.none() | st.lists(st.integers(0, 3), min_size=40, max_size=40),
    )
    def sample(self, num, weights):
        weight = None if weights is None else np.array(weights[: self.capacity], float)
        rows = self.buffer._drawable()
        if not len(rows) or (weight is not None and not weight[rows].any()):
            before = image(self.buffer)
            with pytest.raises(LofoError, match=r"nothing to sample|at least one row"):
                self.buffer.sample(num, weight)
            assert image(self.buffer) == before
            return
        batch, again = self.buffer.sample(num, weight), self.twin.sample(num, weight)
        check_equal(batch, again)
        self.check_batch(batch)
        assert weight is None or (weight[batch.starts] > 0).all()
        if weight is None and self.sampler is not None:
            self.batches.append(batch)
            own = np.array([self.priorities[stamp] for stamp in batch.stamps.tolist()])
            chances = own / sum(self.priorities.values())
            expected = (len(self.priorities) * chances) ** -self.sampler.beta
            np.testing.assert_allclose(batch.weights, expected / expected.max(), rtol=1e-5)
        else:
            assert batch.weights is None

    def check_batch(self, batch):
        """Whatever was drawn is held, and all its parts belong together."""
        lines = dict(contents_by_stamp(self.oracle, self.window))
        ids, steps = batch.items["id"], self.window or 1
        for row, stamp in enumerate(batch.stamps.tolist()):
            assert (ids[row].tolist(), batch.reward_known[row].tolist()) == lines[stamp]
        np.testing.assert_array_equal(self.buffer._ledger.stamp[batch.starts], batch.stamps)
        np.testing.assert_array_equal(batch.items["deep"][0], ids.astype(np.uint8))
        assert (batch.items["deep"][1][0] == ids[..., None, None]).all()
        firsts = np.array([self.firsts[n] for n in ids.ravel().tolist()]).reshape(ids.shape)
        np.testing.assert_array_equal(batch.items["is_first"], firsts)
        assert ids.size == len(batch.starts) * steps

    @precondition(lambda self: self.sampler is not None and self.batches)
    @rule(data=st.data())
    def update(self, data):
        """A batch that may be old by now, perhaps with a row twice."""
        batch = data.draw(st.sampled_from(self.batches[-4:]))
        errors = data.draw(
            st.lists(
                st.sampled_from([0.0, 0.25, 1.0, 9.0]),
                min_size=len(batch.starts),
                max_size=len(batch.starts),
            )
        )
        for buffer in (self.buffer, self.twin):
            buffer.update_priorities(batch, np.array(errors))
        largest = {}
        for stamp, error in zip(batch.stamps.tolist(), errors, strict=True):
            if stamp in self.priorities:
                largest[stamp] = max(error, largest.get(stamp, 0.0))
        for stamp, error in largest.items():
            value = (error + self.sampler.floor) ** self.sampler.exponent
            self.priorities[stamp] = value
            self.highest = max(self.highest, value)

    @rule(way=st.sampled_from(["file", "pickle", "copy", "deepcopy"]))
    def leave_and_return(self, way):
        if way == "file":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "b.lofo"
                self.buffer.save(path)
                own = self.group_by if callable(self.group_by) else None
                self.buffer = ReplayBuffer.load(path, locality=self.locality, group_by=own)
        elif way == "pickle":
            self.buffer = pickle.loads(pickle.dumps(self.buffer))
        else:
            left = self.buffer
            self.buffer = getattr(copy, way)(left)
            left.clear()  # a copy shares nothing with it

    @precondition(lambda self: self.number % 5 == 0)
    @rule()
    def clear(self):
        for buffer in (self.buffer, self.twin):
            buffer.clear()
        assert image(self.buffer) == image(self.make())
        self.forget()

    @rule(call=st.sampled_from(sorted(BAD)))
    def err(self, call):
        before = image(self.buffer)
        with pytest.raises(LofoError):
            BAD[call](self.buffer)
        assert image(self.buffer) == before

    @invariant()
    def all_agree(self):
        if not hasattr(self, "oracle"):
            return
        assert contents(self.buffer) == contents_of_oracle(self.oracle, self.window)
        assert len(self.buffer) == len(self.oracle.states.samples)
        assert image(self.buffer) == image(self.twin)
        if self.buffer.can_sample():
            self.check_batch(self.buffer.contents())
        found = self.buffer.metrics(age=3)
        check_metrics(found, self.oracle)
        stamps = [sample.stamp for sample in self.oracle.states.samples]
        seen = self.oracle.states.seen
        is_old = [stamp < seen - 3 for stamp in stamps]
        assert found["older"] == pytest.approx(np.mean(is_old) if is_old else 0.0)
        assert sorted(self.buffer._ledger.stamp[: len(stamps)].tolist()) == stamps
        if self.buffer._ledger.index is not None:
            check_index(self.buffer._ledger.index)
        if self.sampler is not None:
            self.check_priorities()

    def check_priorities(self):
        drawable = dict(contents_by_stamp(self.oracle, self.window))
        self.priorities = {stamp: self.priorities.get(stamp, self.highest) for stamp in drawable}
        ledger, book = self.buffer._ledger, self.buffer._priorities
        highest, held = book.pack(self.capacity)
        stamps = ledger.stamp[: len(self.buffer)].tolist()
        found = {stamp: x for stamp, x in zip(stamps, held.tolist(), strict=False) if x > 0}
        assert found == pytest.approx(self.priorities)
        assert highest == pytest.approx(self.highest)  # powers differ in last bits
        assert book._tree.total == pytest.approx(sum(self.priorities.values()))

    def teardown(self):
        if hasattr(self, "patches"):
            self.patches.close()


def contents_by_stamp(oracle, window):
    lines = []
    for sample in oracle.states.samples:
        keys = oracle.steps(sample)
        if len(keys) == (window or 1):
            ids = [oracle.trajectory[key] for key in keys]
            known = [key not in oracle.unknown for key in keys]
            lines.append((sample.stamp, (ids, known) if window else (ids[0], known[0])))
    return lines


def check_equal(batch, again):
    for one, other in zip(batch[1:], again[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(batch.items["id"], again.items["id"])


def live(which, shape, max_examples, num_steps):
    own = type("Life", (Life,), {"which": which, "shape": shape})
    settings = hypothesis.settings(
        max_examples=max_examples, stateful_step_count=num_steps, deadline=None
    )
    run_state_machine_as_test(own, settings=settings)


EACH_RULE = pytest.mark.parametrize("which", RULES, ids=[str(rule) for rule, _ in RULES])
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


@EACH_RULE
@EACH_SHAPE
def test_any_life_is_that_of_the_lists(which, shape):
    live(which, shape, 7, 20)


@pytest.mark.slow
@EACH_RULE
@EACH_SHAPE
def test_many_long_lives_are_those_of_the_lists(which, shape):
    live(which, shape, 200, 60)
