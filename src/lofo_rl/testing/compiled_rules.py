"""The promises of `place`, the compiled form of a rule, checked on random walks. This needs jax."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.cells import Points
from lofo_rl.buffers.rules import Rule
from lofo_rl.functional import ledger as ledgers
from lofo_rl.functional import rules
from lofo_rl.functional.index import SequenceIndex
from lofo_rl.functional.ledger import DIGIT, Ledger, Placement
from lofo_rl.testing.rules import (
    CLOSING,
    NUM_AGAIN,
    Chosen,
    Decision,
    attempt,
    call_choose,
    check_placement,
    generator,
    refuse,
    shown,
    some_steps,
)
from lofo_rl.types import Array, Key

FAR = 2.0**50  # times as far apart; squares are still finite, and no usable radius is larger
NUM_DRAWS = 4000  # placements of each method on one ledger
NUM_LEDGERS = 5
SIGMAS = 5.0  # a right rule is refused once in 3e6 ledgers
FORMS = {"slot": "int32[]", "num_near": "int32[]", "overflow": "bool[]"}
TRACED = "use jnp.where for a branch, and arrays of jax alone"
UNSEEN = "it does not use the embedding, because needs_embedding is False"


class Samples(NamedTuple):
    """New samples in order; several walks are an axis more."""

    embedding: Array  # [T, D]
    key: Key  # [T]


def check_place(
    rule: Rule, walks: Points, chosen: Chosen | None, seed: int, capacity: int, window: int
) -> None:
    """Check `place` on walks [W, T, D], and against what `choose` decided there."""
    if any(leaf is rule for leaf in jax.tree.leaves(rule)):
        gave, fix = "a plain object", "put @lofo_rl.register_dataclass above the class"
        refuse(rule, "place", "the rule is a pytree", gave, fix)
    keys = jax.random.split(jax.random.key(seed), walks.shape[:2])
    located = samples = Samples(jnp.asarray(walks), keys)
    if not rule.needs_embedding:  # as in a buffer: no columns
        samples = located._replace(embedding=located.embedding[..., :0])
    _check_form(rule, capacity, *_at(samples, (0, 0)))
    walk = partial(_walk, capacity)  # the rule is an argument: its fields are data
    traced = "it runs under jit with traced fields"
    attempt(
        rule, "place", traced, TRACED, partial(jax.eval_shape, walk), rule, _at(samples, (0,)), None
    )
    side_by_side = jax.jit(jax.vmap(walk, (None, 0, 0)))
    run = partial(attempt, rule, "place", "it runs under vmap", TRACED, side_by_side, rule)
    followed = None
    if chosen is not None:  # both methods decide on the ledgers that `choose` made
        slot, num_near, overflow = chosen.placements
        followed = Placement(jnp.int32(slot), jnp.int32(num_near), jnp.asarray(overflow, bool))
    placed = Placement(*map(np.asarray, run(samples, followed)))
    taken = placed if chosen is None else chosen.placements
    sizes = _sizes(taken.slot, capacity)
    for (w, t), size in np.ndenumerate(sizes):
        where = f", at sample {t}"
        check_placement(rule, "place", _numbers(placed, (w, t)), int(size), capacity, where)
    for at in some_steps(walks, capacity)[::2]:
        ledger, sample = _ledger_at(samples, taken, capacity, at), _at(samples, at)
        _check_plain_calls(rule, ledger, sample, _numbers(placed, at))
    if not rule.needs_embedding:  # not earlier: random rows that do not follow from the key differ
        for scale in (1.0, FAR):  # within a large radius all are near, as without an embedding
            scaled = located._replace(embedding=scale * located.embedding)
            _check_unseen(rule, placed, run(scaled, followed))
    if chosen is not None:
        _check_agreement(rule, placed, chosen, sizes)
        _check_distributions(rule, samples, chosen, seed, capacity)
    _check_windows(rule, samples, SequenceIndex(rule, capacity, window))


def _check_form(rule: Rule, capacity: int, embedding: Array, key: Key) -> None:
    empty = ledgers.init(capacity, len(embedding))
    trace = partial(jax.eval_shape, partial(rules.place, rule))
    given = attempt(rule, "place", "it runs under jit", TRACED, trace, empty, embedding, key)
    if not isinstance(given, Placement):
        gave, fix = type(given).__name__, "return lofo_rl.buffers.Placement"
        refuse(rule, "place", "it returns a Placement", gave, fix)
    for (name, form), leaf in zip(FORMS.items(), given, strict=True):
        if (gave := f"{leaf.dtype}{[*leaf.shape]}") != form:
            refuse(rule, "place", f"{name} is {form}", gave, f"return {name} as one {form}")


def _walk(capacity: int, rule: Rule, samples: Samples, followed: Placement | None) -> Placement:
    """The placement of each sample [T]; the ledger follows these, or given ones."""

    def visit(ledger: Ledger, given: tuple[Samples, Placement | None]) -> tuple[Ledger, Placement]:
        sample, other = given
        placement = rules.place(rule, ledger, *sample)
        taken = placement if other is None else other
        return ledgers.record(ledger, taken, sample.embedding), placement

    empty = ledgers.init(capacity, samples.embedding.shape[-1])
    return jax.lax.scan(visit, empty, (samples, followed))[1]


def _sizes(slots: Any, capacity: int) -> Any:
    """The number of live rows before each sample of all walks [W, T]."""
    taken = np.where(slots < capacity, slots + 1, 0)
    before = np.maximum.accumulate(taken, axis=1)[:, :-1]
    return np.concatenate([np.zeros((len(slots), 1), np.int64), before], axis=1)


def _ledger_at(samples: Samples, taken: Placement, capacity: int, at: tuple[int, int]) -> Ledger:
    """The ledger before a sample."""
    walk, num = at
    slot, num_near, overflow = (np.asarray(x[walk, :num]) for x in taken)
    is_stored = slot < capacity
    stamp = np.zeros(capacity, np.int32)
    embedding = np.zeros((samples.embedding.shape[-1], capacity), np.float32)
    stamp[slot[is_stored]] = np.flatnonzero(is_stored)
    embedding[:, slot[is_stored]] = np.asarray(samples.embedding)[walk, :num][is_stored].T
    size = int((slot[is_stored] + 1).max(initial=0))
    evictions = np.count_nonzero(is_stored) - size
    digits = divmod(int(num_near.sum()), DIGIT)
    numbers = (jnp.int32(x) for x in (size, num, evictions, overflow.sum(), *digits))
    return Ledger(jnp.asarray(stamp), jnp.asarray(embedding), *numbers)


def _check_plain_calls(rule: Rule, ledger: Ledger, sample: Samples, compiled: Placement) -> None:
    """The same decision by plain calls: twice, and with remains in rows that are not live."""
    remains = ledger._replace(  # nearer and older than all others
        embedding=jnp.where(ledger.live, ledger.embedding, sample.embedding[:, None]),
        stamp=jnp.where(ledger.live, ledger.stamp, -1),
    )
    fix = "divide by jnp.maximum(x, 1), or select before the division"

    def plain(ledger: Ledger) -> Placement:
        found = attempt(rule, "place", "it makes no NaN", fix, rules.place, rule, ledger, *sample)
        return _numbers(found, ())

    with jax.debug_nans(True):
        first, again, other = plain(ledger), plain(ledger), plain(remains)
        if len({first, again, other, compiled}) > 1:
            repeats = (plain(ledger) for _ in range(NUM_AGAIN))
            again = next((x for x in (again, *repeats) if x != first), again)
    for promise, answer, fix in (
        ("the same key gives the same placement", again, "draw random numbers from key alone"),
        ("jit changes nothing", compiled, "it must follow from the arguments alone"),
        ("rows beyond size have no influence", other, "use ledger.live"),
    ):
        if answer != first:
            gave = f"{shown(answer)} after {shown(first)} with size {ledger.size}"
            refuse(rule, "place", promise, gave, fix)


def _check_unseen(rule: Rule, placed: Placement, located: Placement) -> None:
    """The same walks without embeddings and with them."""
    for name, without, given in zip(FORMS, placed, located, strict=True):
        for at in map(tuple, np.argwhere(without != np.asarray(given))[:1]):
            gave = (
                f"{name} {given[at]} with embeddings and {without[at]} without, at sample {at[1]}"
            )
            refuse(rule, "place", UNSEEN, gave, "set needs_embedding = True")


def _check_agreement(rule: Rule, placed: Placement, chosen: Chosen, sizes: Any) -> None:
    """Where `choose` drew no random number, `place` gives the same placement."""
    for name, compiled, plain in zip(FORMS, placed, chosen.placements, strict=True):
        for at in map(tuple, np.argwhere((compiled != plain) & ~chosen.is_random)[:1]):
            num_near = chosen.placements.num_near[at]
            gave = (
                f"{name} {compiled[at]} where choose gave {plain[at]}, with size {sizes[at]} and "
                f"num_near {num_near} of choose, at sample {at[1]}"
            )
            refuse(rule, "place", "it decides as choose", gave, "compare the two methods")


def _check_distributions(
    rule: Rule, samples: Samples, chosen: Chosen, seed: int, capacity: int
) -> None:
    """Where `choose` draws random numbers, `place` gives the same placements as often."""
    at_random = jax.jit(jax.vmap(partial(rules.place, rule), (None, None, 0)))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), NUM_DRAWS)
    drawn = [at for at, decision in chosen.decisions.items() if decision.is_random]
    for at in drawn[:: max(len(drawn) // NUM_LEDGERS, 1)]:
        decision = chosen.decisions[at]
        ledger = _ledger_at(samples, chosen.placements, capacity, at)
        found = at_random(ledger, _at(samples, at).embedding, keys)
        columns = (np.asarray(x).tolist() for x in found)
        compiled = [Placement(*x) for x in zip(*columns, strict=True)]
        rng = generator(decision.random_state)
        plain = [call_choose(rule, decision, rng) for _ in range(NUM_DRAWS)]
        _compare(rule, plain, compiled, decision)


def _compare(
    rule: Rule, plain: list[Placement], compiled: list[Placement], decision: Decision
) -> None:
    """A chi-square test of two lists of placements, as many of each."""
    kinds = {kind: k for k, kind in enumerate(sorted({*plain, *compiled}))}
    counts = np.zeros((2, len(kinds)))
    for row, placements in zip(counts, (plain, compiled), strict=True):
        np.add.at(row, [kinds[x] for x in placements], 1)
    # Given the sum of two counts, a term has mean 1 and variance below 2, even if the sum is small.
    statistic = (np.square(counts[0] - counts[1]) / counts.sum(0)).sum()
    freedom = max(len(kinds) - 1, 1)
    # The cube root of a chi-square number is close to normal (Wilson and Hilferty).
    narrow = 2 / (9 * freedom)
    if statistic > freedom * (1 - narrow + SIGMAS * narrow**0.5) ** 3:
        k = int(np.square(counts[0] - counts[1]).argmax())
        of_choose, of_place = counts[:, k].astype(int)
        gave = (
            f"{shown([*kinds][k])} in {of_place} of {NUM_DRAWS} calls, and choose in {of_choose}, "
            f"with size {decision.ledger.size} and {len(decision.near)} near"
        )
        refuse(rule, "place", "it draws as choose", gave, "compare the two methods")


def _check_windows(rule: Rule, samples: Samples, index: SequenceIndex) -> None:
    """The rule decides for windows, too."""

    def visit(state: Any, given: tuple[Array, Samples]) -> tuple[Any, None]:
        number, sample = given
        is_start = number % CLOSING != CLOSING - 1
        return index.place(state, *sample, is_start=is_start)[0], None

    def follow(samples: Samples) -> Array:
        empty = index.init(samples.embedding.shape[-1])
        last, _ = jax.lax.scan(visit, empty, (jnp.arange(len(samples.key)), samples))
        return last.ledger.size

    attempt(rule, "place", "it serves windows", TRACED, jax.jit(jax.vmap(follow)), samples)


def _at(samples: Samples, at: tuple[int, ...]) -> Samples:
    place = tuple(map(jnp.int32, at))  # as arrays: of a plain number jax would compile each value
    return jax.tree.map(lambda x: x[place], samples)


def _numbers(placed: Placement, at: Any) -> Placement:
    """One placement, of Python numbers."""
    slot, num_near, overflow = (np.asarray(x)[at] for x in placed)
    return Placement(int(slot), int(num_near), bool(overflow))
