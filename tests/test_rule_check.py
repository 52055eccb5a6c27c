"""The checker of rules: ours keep every promise, and each broken one is named."""

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
from lofo_rl.functional import near
from lofo_rl.pytrees import register_dataclass
from lofo_rl.testing import check_rule
from lofo_rl.types import LofoError

KEY = jax.random.key(0)
NOBODY, NO = jnp.zeros((), jnp.int32), jnp.zeros((), bool)


@pytest.mark.parametrize(
    "rule",
    [Fifo(), Reservoir(), Local(0.5, 1), Local(0.3, 7), Local(jnp.float32(2.0), jnp.int32(40))],
    ids=str,
)
def test_our_rules_keep_every_promise(rule):
    check_rule(rule, KEY)


@pytest.mark.parametrize(
    ("capacity", "window"),
    [
        (1, 1),
        pytest.param(1, 3, marks=pytest.mark.slow),
        pytest.param(5, 1, marks=pytest.mark.slow),
        (64, 50),
    ],
)
def test_whatever_the_room(capacity, window):
    for rule in (Fifo(), Reservoir(), Local(0.5, 2)):
        check_rule(rule, KEY, capacity=capacity, window=window)


def made(place, base=object, **said):
    """A rule, with one field and this for a method."""
    said = {"needs_embedding": True, "voids_rewards": True} | said
    body = {"__annotations__": {"radius": float}, "radius": 0.5, "place": place} | said
    kind = type("Mine", (base,), body)
    return register_dataclass(dataclasses.dataclass(frozen=True)(kind))()


def goes_to(slot, num_near=lambda ledger: NOBODY, overflow=lambda ledger: NO, **said):
    """A rule that answers by functions of the ledger."""

    def place(self, ledger, embedding, key):
        return Placement(jnp.int32(slot(ledger)), num_near(ledger), overflow(ledger))

    return made(place, **said)


def fresh(ledger):
    return ledger.size


def newest(ledger):
    """One that crowds all into the first half of the rows."""
    return jnp.minimum(ledger.size, ledger.capacity // 2)


def branching(self, ledger, embedding, key):
    return Placement(ledger.size if ledger.size < 3 else jnp.int32(0), NOBODY, NO)


def converting(self, ledger, embedding, key):
    return Placement(jnp.int32(np.median(ledger.stamp)), NOBODY, NO)


def exhausted(self, ledger, embedding, key):
    return next(iter(()))


def rambling(self, ledger, embedding, key):
    raise OSError("nowhere " * 99)


def counting(self, ledger, embedding, key, count=itertools.count()):  # noqa: B008  # on purpose
    row = jnp.int32(next(count) % 4)
    return Placement(jnp.where(ledger.size < 4, ledger.size, row), NOBODY, NO)


def agreeing_by_chance(self, ledger, embedding, key, lots=itertools.cycle([0, 0, 1])):  # noqa: B008  # on purpose
    lot = 0 if isinstance(ledger.size, jax.core.Tracer) else next(lots)
    return Placement(jnp.where(ledger.size < 4, ledger.size, lot), NOBODY, NO)


def peeping(self, ledger, embedding, key):
    is_traced = isinstance(ledger.size, jax.core.Tracer)
    return Placement(jnp.minimum(ledger.size, 4 + is_traced), NOBODY, NO)


def telling(self, ledger, embedding, key):
    io_callback(lambda where: None, None, embedding, ordered=True)
    return Placement(ledger.size, NOBODY, NO)


def dividing(self, ledger, embedding, key):
    """The mean place of no rows is none."""
    total = jnp.sum(jnp.where(ledger.live[:, None], ledger.embedding, 0.0))
    is_far = total / ledger.size > 1.0  # NaN > 1 is False
    return Placement(jnp.where(is_far, 0, ledger.size).astype(jnp.int32), NOBODY, NO)


def forgetting_who_lives(self, ledger, embedding, key):
    num_near = jnp.sum(near(ledger.embedding, embedding, self.radius))  # and ledger.live
    return Placement(jnp.where(num_near > 5, 0, ledger.size), NOBODY, NO)


def crowding(self, ledger, embedding, key):
    is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
    return Placement(jnp.where(jnp.any(is_near), 0, ledger.size), NOBODY, NO)


def counting_neighbours(self, ledger, embedding, key):
    is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
    return Placement(ledger.size, jnp.sum(is_near, dtype=jnp.int32), NO)


def any_row(self, ledger, embedding, key):
    row = jax.random.randint(key, (), 0, jnp.maximum(ledger.size, 1))
    return Placement(jnp.where(ledger.size < ledger.capacity, ledger.size, row), NOBODY, NO)


def line_of(place):
    """Where its body is: one line, below the line of its name."""
    return f"{Path(__file__).name}:{place.__code__.co_firstlineno + 1}"


def test_rules_of_ones_own_that_keep_them():
    check_rule(goes_to(fresh), KEY)
    check_rule(goes_to(newest, needs_embedding=False), KEY)
    check_rule(made(any_row), KEY)
    check_rule(made(crowding), KEY)


BROKEN = {
    "slot is a row; it gave -1 with size 0 and capacity 32, newcomer 0; what fits: below size": (
        goes_to(lambda ledger: ledger.size - 1)
    ),
    "slot is a row; it gave 33 with size 32": goes_to(
        lambda ledger: ledger.size + (ledger.size == ledger.capacity)
    ),
    "live rows remain the first; it gave 1 with size 0 and capacity 32": goes_to(
        lambda ledger: jnp.minimum(ledger.size + 1, ledger.capacity - 1)
    ),
    "neighbours are live; it gave 32 with size 0": goes_to(
        fresh, num_near=lambda ledger: jnp.int32(ledger.capacity)
    ),
    "who overflows leaves a full buffer; it gave True with size 0": goes_to(
        fresh, overflow=lambda ledger: ~NO
    ),
    "slot is one number of its kind; it gave float32[]; what fits: int32[]": made(
        lambda self, ledger, embedding, key: Placement(1.0 * ledger.size, NOBODY, NO)
    ),
    "num_near is one number of its kind; it gave bool[32]; what fits: int32[]": goes_to(
        fresh, num_near=lambda ledger: ledger.live
    ),
    "place gives a Placement; it gave": made(lambda self, ledger, embedding, key: ledger.size),
    "place runs under jit; it raised TracerBoolConversionError: Attempted boolean conversion of "
    f"traced array with shape bool[] ({line_of(branching)}); what fits": made(branching),
    "place runs under jit; it raised TracerArrayConversionError: The numpy.ndarray conversion "
    "method __array__() was called on traced array with shape int32[32] "
    f"({line_of(converting)}); what fits": made(converting),
    f"place runs under jit; it raised StopIteration ({line_of(exhausted)}); what": made(exhausted),
    f"place runs under jit; it raised OSError: {'nowhere ' * 18}... (": made(rambling),
    "place runs under vmap; it raised ValueError: Cannot `vmap` ordered IO": made(telling),
    "the same key gives the same row; it gave slot": made(counting),
    "the same key gives the same row; it gave slot 0 and slot 1": made(agreeing_by_chance),
    "jit changes no decision; it gave slot 4 and slot 5 with size 5": made(peeping),
    "place makes no NaN, even in passing; it raised FloatingPointError: invalid": made(dividing),
    "rows that are not live have no say; it gave slot": made(forgetting_who_lives),
    "place looks at no embedding, for needs_embedding is False; it gave slot 1 with embeddings and "
    "0 without, newcomer": made(crowding, needs_embedding=False),
    "place looks at no embedding, for needs_embedding is False; it gave num_near": made(
        counting_neighbours, needs_embedding=False
    ),
    "32 starts with windows of 4 need no more than B·N slots; it gave": made(
        any_row, Fifo, needs_embedding=False
    ),
    "the class says voids_rewards; it gave None; what fits: a ClassVar": goes_to(
        fresh, voids_rewards=None
    ),
}


@pytest.mark.parametrize("words", BROKEN, ids=lambda words: words.split(";")[0])
def test_a_broken_promise_is_named(words):
    with pytest.raises(LofoError) as caught:
        check_rule(BROKEN[words], KEY)
    message = str(caught.value)
    assert message.startswith(f"Mine breaks a promise: {words}"), message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize("radius", [1e-6, 0.5, 540.0, 1e3, 1e9, 1e17])
def test_who_looks_at_embeddings_is_found_whatever_the_radius(radius):
    rule = dataclasses.replace(made(crowding, needs_embedding=False), radius=radius)
    with pytest.raises(LofoError, match="place looks at no embedding, for needs_embedding is Fals"):
        check_rule(rule, KEY)


@pytest.mark.parametrize("seed", range(4))
def test_lots_of_its_own_are_never_blamed_on_others(seed):
    lots = random.Random(seed)

    def place(self, ledger, embedding, key):
        row = jnp.int32(lots.randrange(2))
        return Placement(jnp.where(ledger.size < 2, ledger.size, row), NOBODY, NO)

    with pytest.raises(LofoError, match="the same key gives the same row; it gave slot"):
        check_rule(made(place), KEY)


def test_a_rule_that_jax_cannot_look_into_is_told_how():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        needs_embedding: ClassVar[bool] = False
        voids_rewards: ClassVar[bool] = False

        def place(self, ledger, embedding, key):
            return Placement(ledger.size, NOBODY, NO)

    told = r"a rule is a pytree; it gave a plain object, which jax does not know; .*register"
    with pytest.raises(LofoError, match=f"^Plain breaks a promise: {told}"):
        check_rule(Plain(), KEY)


def test_a_class_is_no_rule():
    with pytest.raises(LofoError, match=r"^check_rule wants an instance.*: give Local\(\.\.\.\)$"):
        check_rule(Local, KEY)


@pytest.mark.parametrize("key", [0, None, jnp.int32(0), jax.random.split(KEY)], ids=range(4))
def test_a_number_is_no_key(key):
    with pytest.raises(LofoError, match=r"^key must be .* jax\.random\.key\(0\), got "):
        check_rule(Fifo(), key)


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
            return Placement(ledger.size, NOBODY, NO)

    check_rule(Judging(0.5), KEY)
