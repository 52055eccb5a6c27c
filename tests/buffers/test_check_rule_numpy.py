"""`check_rule` on rules that have only `choose`: it needs NumPy alone, and finds what is broken."""

import dataclasses
import itertools
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from lofo_rl.buffers import Fifo, Local, Placement, ReplayBuffer, Reservoir
from lofo_rl.testing import check_rule
from lofo_rl.types import LofoError, LofoWarning


def made(choose, base=object, **variables):
    """A rule with a radius, and this as its method."""
    variables = {"needs_embedding": True, "voids_rewards": True} | variables
    body = {"__annotations__": {"radius": float}, "radius": 0.5, "choose": choose} | variables
    return dataclasses.dataclass(frozen=True)(type("Mine", (base,), body))()


def chooses(slot, num_near=0, overflow=False, **variables):
    """A rule that returns these, the slot by a function of the ledger."""
    return made(
        lambda self, ledger, near, rng: Placement(slot(ledger), num_near, overflow), **variables
    )


def fresh(ledger):
    return ledger.size


def first_half(ledger):
    return min(ledger.size, ledger.capacity // 2)


def random_neighbor(self, ledger, near, rng):
    if len(near) > 2:
        return Placement(rng.choice(near), len(near), False)
    return Placement(ledger.size, len(near), False)


def any_row(self, ledger, near, rng):
    if ledger.size < ledger.capacity:
        return Placement(ledger.size, 0, False)
    return Placement(rng.integers(ledger.size), 0, np.True_)


def oldest_when_full(self, ledger, near, rng):
    is_full = ledger.size == ledger.capacity
    return Placement(np.uint8(ledger.oldest() if is_full else ledger.size), 0, is_full)


KEPT = {
    "the next row": chooses(fresh),
    "half of the rows": chooses(first_half, needs_embedding=False),
    "int16": chooses(lambda ledger: np.int16(first_half(ledger)), num_near=np.uint32(0)),
    "an array without axes": chooses(lambda ledger: np.array(first_half(ledger))),
    "refuses all": chooses(lambda ledger: ledger.capacity),
    "a random neighbor": made(random_neighbor),
    "any row": made(any_row, needs_embedding=False, voids_rewards=False),
    "the oldest, uint8": made(oldest_when_full, needs_embedding=False),
}


@pytest.mark.parametrize("rule", KEPT.values(), ids=KEPT)
def test_a_rule_that_keeps_the_promises_passes(rule):
    check_rule(rule)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 3, 2), (5, 1, 3), (64, 50, 2)], ids=str)
def test_our_rules_keep_the_promises_of_choose(sizes):
    capacity, window, embedding_size = sizes
    for rule in (Fifo(), Reservoir(), Local(0.5, 1), Local(0.3, 7), Local(2.0, 40)):
        own = type("Own", (type(rule),), {})(**vars(rule))  # a class without a compiled form
        check_rule(own, capacity=capacity, window=window, embedding_size=embedding_size)


def refusing_with_overflow(self, ledger, near, rng):
    return Placement(ledger.size, 0, ledger.size == ledger.capacity)


def empty_near(self, ledger, near, rng):
    return Placement(near[0], len(near), False)


def oldest_of_none(self, ledger, near, rng):
    return Placement(ledger.oldest() if ledger.size != 1 else 1, 0, False)


def embeddings(self, ledger, near, rng):
    return Placement(int(ledger.embedding.argmin()), 0, False)


def global_numpy(self, ledger, near, rng):
    return Placement(min(ledger.size, np.random.randint(4)), 0, False)  # noqa: NPY002


def global_seed(self, ledger, near, rng):
    np.random.seed(0)  # noqa: NPY002
    return Placement(min(ledger.size, np.random.randint(4)), 0, False)  # noqa: NPY002


def global_python(self, ledger, near, rng):
    return Placement(min(ledger.size, random.randrange(4)), 0, False)


def own_generator(self, ledger, near, rng, own=np.random.default_rng(0)):  # noqa: B008  # kept
    return Placement(min(ledger.size, int(own.integers(4))), 0, False)


def counting(self, ledger, near, rng, count=itertools.count()):  # noqa: B008  # kept
    return Placement(min(ledger.size, next(count) % 4), 0, False)


def seldom(self, ledger, near, rng, count=itertools.count(1)):  # noqa: B008  # kept
    return Placement(0 if next(count) % 9 == 0 else min(ledger.size, 4), 0, False)


def counting_in_num_near(self, ledger, near, rng, count=itertools.count()):  # noqa: B008  # kept
    return Placement(ledger.size, min(ledger.size, next(count) % 4), False)


def remembering(self, ledger, near, rng, seen=[0]):  # noqa: B006  # kept
    """Another row unless the sample before was the last one seen."""
    before, seen[0] = seen[0], ledger.clock
    return Placement(min(ledger.size, 1 if before + 1 >= ledger.clock else 0), 0, False)


def writing_stamps(self, ledger, near, rng):
    ledger.stamp[: ledger.size] -= 1
    return Placement(ledger.size, 0, False)


def writing_size(self, ledger, near, rng):
    ledger.size = min(ledger.size + 1, ledger.capacity)
    return Placement(ledger.size, 0, False)


def writing_more(self, ledger, near, rng):
    ledger.last = near
    return Placement(ledger.size, 0, False)


def deleting(self, ledger, near, rng):
    del ledger.clock
    return Placement(ledger.size, 0, False)


def writing_near(self, ledger, near, rng):
    near[::-1].sort()
    return Placement(ledger.size, len(near), False)


def all_stamps(self, ledger, near, rng):
    return Placement(min(int(ledger.stamp.argmin()), ledger.size), 0, False)


def youngest_stamp(self, ledger, near, rng):
    is_full = ledger.size == ledger.capacity
    return Placement(
        int(ledger.stamp.argmax()) if ledger.clock % 2 else first_half(ledger), 0, is_full
    )


def counting_stamps(self, ledger, near, rng):
    return Placement(ledger.size, min(ledger.size, int((ledger.stamp == -1).sum())), False)


def near_all_the_same(self, ledger, near, rng):
    return Placement(near[-1] if len(near) else ledger.size, 0, False)


def counting_near(self, ledger, near, rng):
    return Placement(ledger.size, len(near), False)


def more_than_a_view(self, ledger, near, rng):
    return Placement(
        0 if getattr(ledger, "evictions", -1) == 0 and ledger.size else ledger.size, 0, False
    )


def only_one_by_one(self, ledger, near, rng):
    depth, frame = 0, sys._getframe()
    while frame := frame.f_back:
        depth += frame.f_code.co_name == "extend"
    return Placement(0 if depth and ledger.size == 9 else ledger.size, 0, False)


def only_in_steps(self, ledger, near, rng):
    """Another row where windows are extended."""
    frame, is_other = sys._getframe(), False
    while frame := frame.f_back:
        names = frame.f_locals
        is_other |= frame.f_code.co_name == "extend" and names["self"]._window is not None
    return Placement(0 if is_other and ledger.size == 9 else ledger.size, 0, False)


def shy(self):
    raise OSError("nothing to show")


def line_of(choose):
    """Where its body is: one line, below the line of its name."""
    return f"{Path(__file__).name}:{choose.__code__.co_firstlineno + 1}"


ROWS = "return a row below 0 to replace its sample, 0 for a fresh row, or 32 to refuse"
SAME = "the same arguments give the same placement; it gave slot"
ALONE = (
    "random numbers come from rng alone; it gave numbers of np.random or random; use rng.integers"
)
WRITES = "it does not write into the ledger; it gave another"
BEYOND = "rows beyond size have no influence; it gave slot"
UNSEEN = "it does not use near, because needs_embedding is False; it gave slot"
LIKE = (
    "it decides in a ReplayBuffer as on a plain ledger; it gave other samples after 196 calls of "
)
FULL = "overflow is True only if a full buffer loses a live row; it gave True with size"
ANY = "it decides on any ledger; it raised"
BROKEN = [
    (
        made(lambda self, ledger, near, rng: (ledger.size, 0, False)),
        "it returns a Placement; it gave (0, 0, False); return lofo_rl.buffers.Placement",
    ),
    (made(lambda self, ledger, near, rng: None), "it returns a Placement; it gave None; return"),
    (chooses(lambda ledger: 0.0), "slot is an integer; it gave 0.0; return an integer"),
    (chooses(lambda ledger: True), "slot is an integer; it gave True;"),
    (chooses(lambda ledger: np.zeros(1, int)), "slot is an integer; it gave array([0]);"),
    (chooses(lambda ledger: None), "slot is an integer; it gave None;"),
    (chooses(fresh, num_near=np.nan), "num_near is an integer; it gave nan;"),
    (chooses(fresh, overflow=0), "overflow is a bool; it gave 0; return a bool"),
    (
        chooses(lambda ledger: ledger.size - 1),
        f"slot lies in [0, capacity]; it gave -1 with size 0 and capacity 32, at sample 0; {ROWS}",
    ),
    (
        chooses(lambda ledger: ledger.size + (ledger.size == ledger.capacity)),
        "slot lies in [0, capacity]; it gave 33 with size 32 and capacity 32, at sample 32; "
        "return a row below 32 to replace its sample, or 32 to refuse",
    ),
    (
        chooses(lambda ledger: ledger.size + 1),
        "the live rows remain the first rows; it gave 1 with size 0 and capacity 32, at sample 0; "
        + ROWS,
    ),
    (chooses(fresh, num_near=1), "num_near lies in [0, size]; it gave 1 with size 0"),
    (chooses(fresh, num_near=-1), "num_near lies in [0, size]; it gave -1 with size 0"),
    (chooses(fresh, overflow=True), f"{FULL} 0 and capacity 32, at sample 0; return False"),
    (made(refusing_with_overflow), f"{FULL} 32 and capacity 32, at sample 32; return False"),
    (
        made(empty_near),
        f"{ANY} IndexError: index 0 is out of bounds for axis 0 with size 0 "
        f"({line_of(empty_near)}); read only size",
    ),
    (
        made(oldest_of_none),
        f"{ANY} LofoError: ledger.oldest() of an empty ledger: check ledger.size first "
        f"({line_of(oldest_of_none)})",
    ),
    (
        made(embeddings),
        f"{ANY} AttributeError: 'View' object has no attribute 'embedding' "
        f"({line_of(embeddings)}); read only size, capacity, clock, stamp and oldest()",
    ),
    (made(global_numpy), ALONE),
    (made(global_seed), ALONE),
    (made(global_python), ALONE),
    (made(own_generator), SAME),
    (made(counting), SAME),
    (made(seldom), SAME),
    (made(counting_in_num_near), SAME),
    (made(remembering), SAME),
    (made(writing_stamps), f"{WRITES} stamp; use ledger.stamp.copy()"),
    (made(writing_size), f"{WRITES} size; read only"),
    (made(writing_more), f"{WRITES} last; read only"),
    (made(deleting), f"{WRITES} clock; read only"),
    (
        made(writing_near),
        "it does not write into near; it gave another near; use near.copy()",
    ),
    (made(all_stamps), BEYOND),
    (made(youngest_stamp), BEYOND),
    (made(counting_stamps), BEYOND),
    (made(near_all_the_same, needs_embedding=False), UNSEEN),
    (made(counting_near, needs_embedding=False), UNSEEN),
    (made(more_than_a_view), f"{LIKE}add than on a plain ledger; read only size"),
    (made(only_one_by_one), f"{LIKE}extend than on a plain ledger"),
    (
        made(only_in_steps),
        "it decides in a ReplayBuffer of windows, too; it gave other windows by extend than by add",
    ),
    (
        chooses(fresh, __repr__=shy),
        "a saved buffer is loaded whole; it raised OSError: nothing to show",
    ),
]


@pytest.mark.parametrize(("rule", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_promise_is_named(rule, words):
    with pytest.raises(LofoError) as caught:
        check_rule(rule)
    message = str(caught.value)
    assert message.startswith(f"Mine breaks a promise of choose: {words}"), message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Local, r"rule must be an instance, got the class Local: give Local\(\.\.\.\)$"),
        ("fifo", r"str is no rule: it needs a method choose\(ledger, near, rng\), or place$"),
        (chooses(fresh, needs_embedding=None), r"Mine\.needs_embedding must be True or False, got"),
        (chooses(fresh, voids_rewards="no"), r"Mine\.voids_rewards must .* 'no': write voids_rew"),
        (dataclasses.replace(chooses(fresh), radius=None), "needs a number radius"),
        (dataclasses.replace(chooses(fresh), radius=-1.0), "radius must lie in"),
    ],
    ids=range(6),
)
def test_what_is_no_rule_is_refused(rule, words):
    with pytest.raises(LofoError, match=words):
        check_rule(rule)


@pytest.mark.parametrize("name", ["seed", "capacity", "window", "embedding_size"])
@pytest.mark.parametrize("bad", [-1, 1.5, None, True])
def test_a_size_is_a_positive_integer(name, bad):
    with pytest.raises(LofoError, match=f"^{name} must be an integer of at least ., got"):
        check_rule(chooses(fresh), **{name: bad})


def test_a_file_that_loads_as_another_buffer_is_found(monkeypatch):
    other = ReplayBuffer(Fifo(), 32)
    monkeypatch.setattr(ReplayBuffer, "load", lambda path, rule: other)
    with pytest.raises(LofoError, match=r"is loaded whole.*other samples after load"):
        check_rule(Fifo())


@pytest.mark.parametrize("seed", range(4))
def test_random_rows_of_its_own_are_not_blamed_on_other_reasons(seed):
    numbers = random.Random(seed)

    def choose(self, ledger, near, rng):
        return Placement(min(ledger.size, numbers.randrange(2)), 0, False)

    with pytest.raises(LofoError, match="the same arguments give the same placement; it gave slot"):
        check_rule(made(choose, needs_embedding=False))


def test_without_jax_it_says_that_place_was_not_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "lofo_rl.testing.compiled_rules", raising=False)
    rule = chooses(fresh, place=lambda self, ledger, embedding, key: None)
    with pytest.warns(LofoWarning, match=r"place of Mine was not checked: .* 'lofo-rl\[jax\]'"):
        check_rule(rule)
    with pytest.warns(LofoWarning, match="place of Local was not checked"):
        check_rule(Local(0.5, 1))
    broken = chooses(lambda ledger: -1, place=rule.place)
    with pytest.raises(LofoError, match="breaks a promise of choose"):
        check_rule(broken)


def test_a_rule_with_choose_alone_never_imports_jax():
    code = """
import sys
from dataclasses import dataclass
from lofo_rl.buffers import Placement
from lofo_rl.testing import check_rule

@dataclass(frozen=True)
class Mine:
    needs_embedding = voids_rewards = False

    def choose(self, ledger, near, rng):
        return Placement(ledger.size, 0, False)

check_rule(Mine())
print(*{"jax", "optax", "matplotlib"} & {name.split(".")[0] for name in sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


@dataclasses.dataclass(frozen=True)
class FirstComers:
    """A sample with enough neighbors is refused."""

    radius: float
    limit: int
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def choose(self, ledger, near, rng):
        is_crowded = len(near) >= self.limit
        return Placement(ledger.capacity if is_crowded else ledger.size, len(near), False)


@pytest.mark.parametrize("by", ["add", "extend"])
def test_a_buffer_takes_a_rule_with_choose_alone(by):
    places = np.float32([[0], [1], [0], [2], [1], [3], [4]])
    items = {"id": np.arange(7)}
    for options, expected in (
        ({}, [0, 1, 3, 5]),
        ({"window": 2}, [[0, 1], [1, 2], [3, 4], [5, 6]]),
    ):
        buffer = ReplayBuffer(FirstComers(0.5, 1), 4, **options)
        if by == "extend":
            buffer.extend(items, embedding=places)
        else:
            for number, place in enumerate(places):
                buffer.add({"id": np.int64(number)}, embedding=place)
        assert buffer.contents().items["id"].tolist() == expected
        assert buffer.metrics()["evictions"] == 0 and buffer.sample(9).items["id"].shape[0] == 9


def test_a_buffer_with_an_own_rule_is_loaded_with_the_same_rule(tmp_path):
    buffer = ReplayBuffer(FirstComers(0.5, 1), 4)
    for number, place in enumerate(np.float32([[0], [1], [0]])):
        buffer.add({"id": number}, embedding=place)
    path = tmp_path / "buffer"
    buffer.save(path)
    with pytest.raises(LofoError, match=r"FirstComers\(radius=0.5, limit=1\), which only you can"):
        ReplayBuffer.load(path)
    for other in (FirstComers(0.5, 2), Local(0.5, 1)):
        with pytest.raises(LofoError, match=r"its rule is FirstComers\(.*, not "):
            ReplayBuffer.load(path, rule=other)
    for copy in (
        ReplayBuffer.load(path, rule=FirstComers(0.5, 1)),
        pickle.loads(pickle.dumps(buffer)),
    ):
        copy.add({"id": 3}, embedding=np.float32([1]))  # refused: that place is taken
        copy.add({"id": 4}, embedding=np.float32([2]))
        assert copy.contents().items["id"].tolist() == [0, 1, 4]


def test_a_rule_given_to_load_must_be_the_saved_one(tmp_path):
    path = tmp_path / "buffer"
    ReplayBuffer(Local(0.5, 2), 4).save(path)
    assert ReplayBuffer.load(path, rule=Local(0.5, 2)).rule == Local(0.5, 2)
    with pytest.raises(LofoError, match=r"its rule is Local\(.*0.5.*\), not Local\(.*0.25"):
        ReplayBuffer.load(path, rule=Local(0.25, 2))
