"""`check_rule` on compiled rules: ours keep all promises, and each broken one is named."""

import dataclasses
import itertools
import random
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from lofo_rl.buffers import Fifo, Local, Placement, Reservoir
from lofo_rl.functional import near, place
from lofo_rl.pytrees import register_dataclass
from lofo_rl.testing import check_rule
from lofo_rl.types import LofoError

NONE, NO = jnp.zeros((), jnp.int32), jnp.zeros((), bool)


@pytest.mark.parametrize(
    "rule",
    [Fifo(), Reservoir(), Local(0.5, 1), Local(0.3, 7), Local(jnp.float32(2.0), jnp.int32(40))],
    ids=str,
)
def test_our_rules_keep_every_promise(rule):
    check_rule(rule)


@pytest.mark.parametrize(
    ("capacity", "window"),
    [
        (1, 1),
        pytest.param(1, 3, marks=pytest.mark.slow),
        pytest.param(5, 1, marks=pytest.mark.slow),
        pytest.param(64, 50, marks=pytest.mark.slow),
    ],
)
def test_our_rules_keep_them_with_other_sizes(capacity, window):
    for rule in (Fifo(), Reservoir(), Local(0.5, 2)):
        check_rule(rule, capacity=capacity, window=window, seed=7)


def made(place, base=object, **body):
    """A rule with a radius, a limit and this method; a `choose` may be among the rest."""
    body = {"needs_embedding": True, "voids_rewards": True, "place": place} | body
    fields = {"__annotations__": {"radius": float, "limit": int}, "radius": 0.5, "limit": 2}
    kind = type("Mine", (base,), body | fields)
    return register_dataclass(dataclasses.dataclass(frozen=True)(kind))()


def places(slot, num_near=lambda ledger: NONE, overflow=lambda ledger: NO, **body):
    """A rule that returns these functions of the ledger."""

    def place(self, ledger, embedding, key):
        return Placement(jnp.int32(slot(ledger)), num_near(ledger), overflow(ledger))

    return made(place, **body)


def fresh(ledger):
    return ledger.size


def first_half(ledger):
    return jnp.minimum(ledger.size, ledger.capacity // 2)


def branching(self, ledger, embedding, key):
    return Placement(ledger.size if ledger.size < 3 else jnp.int32(0), NONE, NO)


def converting(self, ledger, embedding, key):
    return Placement(jnp.int32(np.median(ledger.stamp)), NONE, NO)


def branching_on_a_field(self, ledger, embedding, key):
    return Placement(ledger.size if self.limit > 1 else jnp.int32(0), NONE, NO)


def exhausted(self, ledger, embedding, key):
    return next(iter(()))


def rambling(self, ledger, embedding, key):
    raise OSError("nowhere " * 99)


def counting(self, ledger, embedding, key, count=itertools.count()):  # noqa: B008  # kept
    row = jnp.int32(next(count) % 4)
    return Placement(jnp.where(ledger.size < 4, ledger.size, row), NONE, NO)


def equal_by_chance(self, ledger, embedding, key, rows=itertools.cycle([0, 0, 1])):  # noqa: B008  # kept
    row = 0 if isinstance(ledger.size, jax.core.Tracer) else next(rows)
    return Placement(jnp.where(ledger.size < 4, ledger.size, row), NONE, NO)


def another_under_jit(self, ledger, embedding, key):
    is_traced = isinstance(ledger.size, jax.core.Tracer)
    return Placement(jnp.minimum(ledger.size, 4 + is_traced), NONE, NO)


def another_num_near_under_jit(self, ledger, embedding, key):
    is_traced = isinstance(ledger.size, jax.core.Tracer)
    return Placement(ledger.size, jnp.minimum(ledger.size, 4 + is_traced), NO)


def calling_back(self, ledger, embedding, key):
    io_callback(lambda where: None, None, embedding, ordered=True)
    return Placement(ledger.size, NONE, NO)


def dividing(self, ledger, embedding, key):
    """The mean of no points is NaN."""
    total = jnp.sum(jnp.where(ledger.live, ledger.embedding, 0.0))
    is_far = total / ledger.size > 1.0  # NaN > 1 is False
    return Placement(jnp.where(is_far, 0, ledger.size).astype(jnp.int32), NONE, NO)


def without_live(self, ledger, embedding, key):
    num_near = jnp.sum(near(ledger.embedding, embedding, self.radius))  # and ledger.live
    return Placement(jnp.where(num_near > 5, 0, ledger.size), NONE, NO)


def crowding(self, ledger, embedding, key):
    is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
    return Placement(jnp.where(jnp.any(is_near), 0, ledger.size), NONE, NO)


def counting_neighbors(self, ledger, embedding, key):
    is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
    return Placement(ledger.size, jnp.sum(is_near, dtype=jnp.int32), NO)


def any_row(self, ledger, embedding, key):
    row = jax.random.randint(key, (), 0, jnp.maximum(ledger.size, 1))
    return Placement(jnp.where(ledger.size < ledger.capacity, ledger.size, row), NONE, NO)


def line_of(place):
    """Where its body is: one line, below the line of its name."""
    return f"{Path(__file__).name}:{place.__code__.co_firstlineno + 1}"


def test_rules_with_place_alone_that_keep_them():
    check_rule(places(fresh))
    check_rule(places(first_half, needs_embedding=False))
    check_rule(made(any_row))
    check_rule(made(crowding))


UNSEEN = "it does not use the embedding, because needs_embedding is False; it gave"
FULL = "overflow is True only if a full buffer loses a live row; it gave True with size"
BROKEN = [
    (
        places(lambda ledger: ledger.size - 1),
        "slot lies in [0, capacity]; it gave -1 with size 0 and capacity 32, at sample 0; return a "
        "row below 0 to replace its sample, 0 for a fresh row, or 32 to refuse",
    ),
    (
        places(lambda ledger: ledger.size + (ledger.size == ledger.capacity)),
        "slot lies in [0, capacity]; it gave 33 with size 32 and capacity 32, at sample 32; return",
    ),
    (
        places(lambda ledger: jnp.minimum(ledger.size + 1, ledger.capacity - 1)),
        "the live rows remain the first rows; it gave 1 with size 0 and capacity 32, at sample 0",
    ),
    (
        places(fresh, num_near=lambda ledger: jnp.int32(ledger.capacity)),
        "num_near lies in [0, size]; it gave 32 with size 0",
    ),
    (places(fresh, overflow=lambda ledger: ~NO), f"{FULL} 0 and capacity 32"),
    (
        places(fresh, overflow=lambda ledger: ledger.size == ledger.capacity),
        f"{FULL} 32 and capacity 32, at sample 32; return False with slot 32",
    ),
    (
        made(lambda self, ledger, embedding, key: Placement(1.0 * ledger.size, NONE, NO)),
        "slot is int32[]; it gave float32[]; return slot as one int32[]",
    ),
    (
        places(fresh, num_near=lambda ledger: ledger.live),
        "num_near is int32[]; it gave bool[32]; return num_near as one int32[]",
    ),
    (
        made(lambda self, ledger, embedding, key: ledger.size),
        "it returns a Placement; it gave ShapeDtypeStruct; return lofo_rl.buffers.Placement",
    ),
    (
        made(branching),
        "it runs under jit; it raised TracerBoolConversionError: Attempted boolean conversion of "
        f"traced array with shape bool[] ({line_of(branching)}); use jnp.where for a branch",
    ),
    (
        made(converting),
        "it runs under jit; it raised TracerArrayConversionError: The numpy.ndarray conversion "
        "method __array__() was called on traced array with shape int32[32] "
        f"({line_of(converting)}); use",
    ),
    (
        made(branching_on_a_field),
        "it runs under jit with traced fields; it raised TracerBoolConversionError: Attempted "
        f"boolean conversion of traced array with shape bool[] ({line_of(branching_on_a_field)})",
    ),
    (made(exhausted), f"it runs under jit; it raised StopIteration ({line_of(exhausted)}); use"),
    (made(rambling), f"it runs under jit; it raised OSError: {'nowhere ' * 18}... ("),
    (made(calling_back), "it runs under vmap; it raised ValueError: Cannot `vmap` ordered IO"),
    (made(counting), "the same key gives the same placement; it gave slot"),
    (
        made(equal_by_chance),
        "the same key gives the same placement; it gave slot 1 (num_near 0, ov",
    ),
    (
        made(another_under_jit),
        "jit changes nothing; it gave slot 5 (num_near 0, overflow False) after slot 4 (num_near "
        "0, overflow False) with size 6; it must follow from the arguments alone",
    ),
    (made(another_num_near_under_jit), "jit changes nothing; it gave slot 32 (num_near 5"),
    (
        made(dividing),
        "it makes no NaN; it raised FloatingPointError: invalid value (nan) encountered in",
    ),
    (made(without_live), "rows beyond size have no influence; it gave slot"),
    (
        made(crowding, needs_embedding=False),
        f"{UNSEEN} slot 1 with embeddings and 0 without, at sample 11; set needs_embedding = True",
    ),
    (made(counting_neighbors, needs_embedding=False), f"{UNSEEN} num_near 10 with embeddings"),
]


@pytest.mark.parametrize(("rule", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_promise_of_place_is_named(rule, words):
    with pytest.raises(LofoError) as caught:
        check_rule(rule)
    message = str(caught.value)
    assert message.startswith(f"Mine breaks a promise of place: {words}"), message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize("radius", [1e-6, 0.5, 540.0, 1e3, 1e9, 1e17])
def test_a_rule_that_uses_embeddings_is_found_with_any_radius(radius):
    rule = dataclasses.replace(made(crowding, needs_embedding=False), radius=radius)
    with pytest.raises(
        LofoError, match="it does not use the embedding, because needs_embedding is"
    ):
        check_rule(rule)


@pytest.mark.parametrize("seed", range(4))
def test_random_rows_of_its_own_are_not_blamed_on_other_reasons(seed):
    numbers = random.Random(seed)

    def place(self, ledger, embedding, key):
        row = jnp.int32(numbers.randrange(2))
        return Placement(jnp.where(ledger.size < 2, ledger.size, row), NONE, NO)

    with pytest.raises(LofoError, match="the same key gives the same placement; it gave slot"):
        check_rule(made(place))


def test_a_rule_that_jax_does_not_know_must_be_registered():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        needs_embedding: ClassVar[bool] = False
        voids_rewards: ClassVar[bool] = False

        def place(self, ledger, embedding, key):
            return Placement(ledger.size, NONE, NO)

    words = "the rule is a pytree; it gave a plain object; put @lofo_rl.register_dataclass above"
    with pytest.raises(LofoError, match=f"^Plain breaks a promise of place: {words}"):
        check_rule(Plain())


def test_a_rule_may_check_its_numbers():
    @register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Judging:
        radius: float
        needs_embedding: ClassVar[bool] = True
        voids_rewards: ClassVar[bool] = True

        def __post_init__(self):
            if self.radius <= 0:
                raise ValueError("a radius is positive")

        def place(self, ledger, embedding, key):
            return Placement(ledger.size, NONE, NO)

    check_rule(Judging(0.5))


# Rules with both methods.


def local(self, ledger, near, rng):
    return Local.choose(self, ledger, near, rng)


def random_neighbor(self, ledger, near, rng):
    """A random neighbor leaves; in a full buffer a random sample."""
    if len(near) >= self.limit:
        return Placement(rng.choice(near), len(near), False)
    if ledger.size < ledger.capacity:
        return Placement(ledger.size, len(near), False)
    return Placement(rng.integers(ledger.size), len(near), True)


def compiled(
    is_near=near,
    is_crowded=lambda num_near, limit: num_near >= limit,
    priority=lambda ledger, key: -ledger.stamp,
    num_near=lambda found: found,
    overflow=lambda is_full: is_full,
    when_full=lambda ledger, row: row,
):
    """`Local.place`, in which parts are replaced: the candidate of the highest priority leaves."""

    def place(self, ledger, embedding, key):
        found = ledger.live & is_near(ledger.embedding, embedding, self.radius)
        num = jnp.sum(found, dtype=jnp.int32)
        crowded, full = is_crowded(num, self.limit), ledger.size >= ledger.capacity
        candidates = jnp.where(crowded, found, ledger.live)
        ranks = jnp.where(candidates, priority(ledger, key), -jnp.inf)
        row = jnp.argmax(ranks).astype(jnp.int32)
        slot = jnp.where(crowded, row, jnp.where(full, when_full(ledger, row), ledger.size))
        return Placement(slot, num_near(num), overflow(full & ~crowded))

    return place


def at_random(ledger, key):
    return jax.random.uniform(key, ledger.stamp.shape)


def leaning(ledger, key):
    """Old samples leave more often."""
    return at_random(ledger, key) - 0.02 * (ledger.stamp - ledger.clock)


def closed(points, point, radius):
    return jnp.square(points - point[:, None]).sum(0) <= jnp.square(jnp.float32(radius))


def within_larger(points, point, radius):
    return near(points, point, 1.001 * radius)


def reservoir(end):
    """Algorithm R, in which the number of rows to draw from is replaced."""

    def place(self, ledger, embedding, key):
        drawn = jax.random.randint(key, (), 0, end(ledger))
        row = jnp.minimum(drawn, ledger.capacity)
        return Placement(jnp.where(ledger.size < ledger.capacity, ledger.size, row), NONE, NO)

    return place


def choose_reservoir(self, ledger, near, rng):
    return Reservoir.choose(self, ledger, near, rng)


def made_reservoir(end):
    return made(reservoir(end), choose=choose_reservoir, needs_embedding=False, voids_rewards=False)


def always_drawing(self, ledger, near, rng):
    rng.random()
    return Local.choose(self, ledger, near, rng)


AGREEING = {
    "local": made(compiled(), choose=local),
    "another radius": dataclasses.replace(made(compiled(), choose=local), radius=0.3),
    "a random neighbor": made(compiled(priority=at_random), choose=random_neighbor),
    "reservoir": made_reservoir(lambda ledger: ledger.clock + 1),
    "draws in vain": made(compiled(), choose=always_drawing),
}


@pytest.mark.parametrize("rule", AGREEING.values(), ids=AGREEING)
def test_two_methods_that_agree_pass(rule):
    check_rule(rule)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_two_random_methods_that_agree_pass_with_any_seed(seed):
    check_rule(AGREEING["a random neighbor"], seed=seed, embedding_size=1)


def disagreeing(**parts):
    return made(compiled(**parts), choose=local)


EXACT, DRAWN = "it decides as choose; it gave", "it draws as choose; it gave slot"
DISAGREEING = {
    "limit": (disagreeing(is_crowded=lambda num, limit: num > limit), f"{EXACT} slot"),
    "a closed ball": (
        dataclasses.replace(disagreeing(is_near=closed), radius=0.3),
        f"{EXACT} slot",
    ),
    "a ball a little larger": (
        dataclasses.replace(disagreeing(is_near=within_larger), radius=0.31),
        f"{EXACT} slot",
    ),
    "the youngest": (disagreeing(priority=lambda ledger, key: ledger.stamp), f"{EXACT} slot"),
    "num_near": (
        disagreeing(num_near=lambda num: jnp.minimum(num, 5)),
        f"{EXACT} num_near 5 where",
    ),
    "overflow": (
        disagreeing(overflow=lambda full: NO),
        f"{EXACT} overflow False where choose gave T",
    ),
    "refused when full": (
        disagreeing(when_full=lambda ledger, row: ledger.capacity, overflow=lambda full: NO),
        f"{EXACT} slot 32 where choose gave 0, with size 32 and num_near",
    ),
    "drawn in place alone": (disagreeing(priority=at_random), f"{EXACT} slot"),
    "drawn in choose alone": (made(compiled(), choose=random_neighbor), DRAWN),
    "drawn unevenly": (made(compiled(priority=leaning), choose=random_neighbor), DRAWN),
    "one row less": (made_reservoir(lambda ledger: jnp.maximum(ledger.clock, 1)), DRAWN),
    "never refused": (made_reservoir(lambda ledger: ledger.capacity), DRAWN),
    "drawn in vain": (
        made(compiled(priority=lambda ledger, key: ledger.stamp), choose=always_drawing),
        DRAWN,
    ),
}


@pytest.mark.parametrize(("rule", "words"), DISAGREEING.values(), ids=DISAGREEING)
def test_two_methods_that_disagree_are_found(rule, words):
    with pytest.raises(LofoError) as caught:
        check_rule(rule)
    message = str(caught.value)
    assert message.startswith(f"Mine breaks a promise of place: {words}"), message
    assert message.endswith("; compare the two methods") and len(message) < 400


def test_a_wrong_choose_is_named_before_place():
    def choose(self, ledger, near, rng):
        return Placement(-1, 0, False)

    with pytest.raises(LofoError, match="breaks a promise of choose: slot lies in"):
        check_rule(made(compiled(), choose=choose))


def test_the_compiled_table_is_checked_against_choose(monkeypatch):
    from lofo_rl.functional import rules

    wrong = compiled(is_crowded=lambda num, limit: num > limit)
    monkeypatch.setitem(rules._PLACE, Local, lambda *given: wrong(*given[:4]))
    assert rules.place is place
    with pytest.raises(LofoError, match=r"^Local breaks a promise of place: it decides as choose"):
        check_rule(Local(0.5, 2))
