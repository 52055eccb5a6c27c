"""The promises of a rule of forgetting, checked on random walks.

Whoever adds a rule runs `check_rule` on it; a broken promise is named, with what broke it.
"""

import re
import sys
import textwrap
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.rules import Rule
from lofo_rl.functional import ledger as ledgers
from lofo_rl.functional import rules
from lofo_rl.functional.index import SequenceIndex
from lofo_rl.functional.ledger import Ledger, Placement
from lofo_rl.types import Array, Key, LofoError

NUM_ASKED = 40  # newcomers for whom `place` is also called as plain Python
NUM_AGAIN = 20  # times it is asked again before others are blamed: its lots may agree by chance
FAR = 2.0**50  # times as far apart; squares are still finite, so no radius in use is beyond
CLOSING = 5  # every so many steps of a trajectory one closes an episode: a step, but no start
FORMS = {"slot": "int32[]", "num_near": "int32[]", "overflow": "bool[]"}
PURE = "what fits: jnp.where for a branch, jnp.maximum under a division, nothing but arrays"
UNSEEN = "place looks at no embedding, for needs_embedding is False"
NOT_THEIRS = {"lofo_rl", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
ROW = "below size (who is there leaves), size (a fresh row) or the capacity (refused)"


class Newcomers(NamedTuple):
    """Who comes, one after the other; several walks are an axis more."""

    embedding: Array  # [T, D]
    key: Key  # [T]


def check_rule(
    rule: Rule, key: Key, *, capacity: int = 32, window: int = 4, embedding_size: int = 2
) -> None:
    """Raises a LofoError that names a promise the rule breaks, what it gave, and what fits.

    Each walk visits a few places, which lie 2**-8 to 2**7 apart, and for a rule that says it needs
    no embedding 2**50 times as far, too. Where the rule has a limit, choose a capacity above it, so
    that there are crowds.
    """
    _check_given(rule, key)
    newcomers = located = _draw_newcomers(key, max(embedding_size, 1))
    if not rule.needs_embedding:  # as in a buffer: no columns
        newcomers = located._replace(embedding=located.embedding[..., :0])
    one = jax.tree.map(lambda x: x[0], newcomers)
    _check_form(rule, capacity, *jax.tree.map(lambda x: x[0], one))
    walk = partial(_walk, capacity)  # the rule is an argument: its fields are data
    _attempt(rule, "fields can be traced, too", partial(jax.eval_shape, walk), rule, one)
    side_by_side = jax.jit(jax.vmap(walk, (None, 0)))
    before, placed = _attempt(rule, "place runs under vmap", side_by_side, rule, newcomers)
    _check_placements(rule, before, placed)
    _check_plainly(rule, newcomers, before, placed)
    if not rule.needs_embedding:  # not sooner: lots of the rule's own make walks differ, too
        for scale in (1.0, FAR):  # within a large radius all lie alike, as without an embedding
            told = located._replace(embedding=scale * located.embedding)
            _check_unseen(rule, placed, _attempt(rule, UNSEEN, side_by_side, rule, told)[1])
    _check_windows(rule, newcomers, SequenceIndex(rule, capacity, window))


def _check_given(rule: Rule, key: Key) -> None:
    if isinstance(rule, type):
        name = rule.__name__
        raise LofoError(f"check_rule wants an instance, got the class {name}: give {name}(...)")
    try:
        jax.random.split(key)
    except (TypeError, ValueError) as error:
        raise LofoError(f"key must be a random key, as jax.random.key(0), got {key!r}") from error
    for name in ("needs_embedding", "voids_rewards"):
        if not isinstance(said := getattr(rule, name, None), bool):
            _refuse(rule, f"the class says {name}", f"{said!r}", "a ClassVar, True or False")
    if any(leaf is rule for leaf in jax.tree.leaves(rule)):
        fits = "a dataclass under lofo_rl.register_dataclass"
        _refuse(rule, "a rule is a pytree", "a plain object, which jax does not know", fits)


def _draw_newcomers(key: Key, size: int, num_walks: int = 16, num_steps: int = 200) -> Newcomers:
    key_places, key_lots = jax.random.split(key)
    places = jax.random.randint(key_places, (num_walks, num_steps, size), 0, 4)
    gaps = 2.0 ** (jnp.arange(num_walks) - num_walks // 2)  # so that distances are exact
    keys = jax.random.split(key_lots, (num_walks, num_steps))
    return Newcomers(gaps[:, None, None] * places, keys)


def _check_form(rule: Rule, capacity: int, embedding: Array, key: Key) -> None:
    empty = ledgers.init(capacity, len(embedding))
    look = partial(jax.eval_shape, partial(rules.place, rule))
    given = _attempt(rule, "place runs under jit", look, empty, embedding, key)
    if not isinstance(given, Placement):
        _refuse(rule, "place gives a Placement", type(given).__name__, "lofo_rl.buffers.Placement")
    for (name, fits), leaf in zip(FORMS.items(), given, strict=True):
        if (form := f"{jnp.result_type(leaf)}{[*jnp.shape(leaf)]}") != fits:
            _refuse(rule, f"{name} is one number of its kind", form, fits)


def _walk(capacity: int, rule: Rule, newcomers: Newcomers) -> tuple[Ledger, Placement]:
    """The ledger before each newcomer, and where that goes, leaves [T, ...]."""

    def visit(ledger: Ledger, newcomer: Newcomers) -> tuple[Ledger, tuple[Ledger, Placement]]:
        placement = rules.place(rule, ledger, *newcomer)
        return ledgers.record(ledger, placement, newcomer.embedding), (ledger, placement)

    empty = ledgers.init(capacity, newcomers.embedding.shape[-1])
    return jax.lax.scan(visit, empty, newcomers)[1]


def _check_placements(rule: Rule, before: Ledger, placed: Placement) -> None:
    """Where newcomers go in all walks [W, T]: the live rows remain the first `size`."""
    slot, num_near, overflow = map(np.asarray, placed)
    size, capacity = np.asarray(before.size), before.capacity
    left_for_room = (size == capacity) & (slot < capacity)
    for promise, given, holds, fits in (
        ("slot is a row", slot, (slot >= 0) & (slot <= capacity), ROW),
        ("live rows remain the first", slot, (slot <= size) | (slot == capacity), ROW),
        ("neighbours are live", num_near, (num_near >= 0) & (num_near <= size), "0 to size"),
        ("who overflows leaves a full buffer", overflow, ~overflow | left_for_room, "False"),
    ):
        for at in map(tuple, np.argwhere(~holds)[:1]):
            gave = f"{given[at]} with size {size[at]} and capacity {capacity}"
            _refuse(rule, promise, f"{gave}, newcomer {at[1]}", fits)


def _check_plainly(rule: Rule, newcomers: Newcomers, before: Ledger, placed: Placement) -> None:
    """Some decisions again, by plain calls: twice, and with remains in rows that are not live."""
    num_walks, num_steps = placed.slot.shape
    lots = np.random.default_rng(0).integers(num_steps, size=NUM_ASKED)
    for k, lot in enumerate(lots.tolist()):
        at = k % num_walks, k if k < NUM_ASKED // 2 else lot  # while it is filled, and later
        ledger, newcomer, compiled = jax.tree.map(
            lambda x, at=at: x[at], (before, newcomers, placed)
        )
        remains = ledger._replace(  # nearer and older than all others
            embedding=jnp.where(ledger.live[:, None], ledger.embedding, newcomer.embedding),
            stamp=jnp.where(ledger.live, ledger.stamp, -1),
        )
        plain = partial(rules.place, rule)
        with jax.debug_nans(True):
            ask = partial(_attempt, rule, "place makes no NaN, even in passing", plain)
            first, again, other = (ask(x, *newcomer) for x in (ledger, ledger, remains))
            if len({int(x.slot) for x in (first, again, other, compiled)}) > 1:
                answers = (ask(ledger, *newcomer) for _ in range(NUM_AGAIN))
                again = next((x for x in answers if x.slot != first.slot), again)
        for promise, answer, fits in (
            ("the same key gives the same row", again, "lots drawn from the key alone"),
            ("jit changes no decision", compiled, "what follows from the arguments alone"),
            ("rows that are not live have no say", other, "a choice among ledger.live"),
        ):
            if int(first.slot) != int(answer.slot):
                gave = f"slot {first.slot} and slot {answer.slot} with size {ledger.size}"
                _refuse(rule, promise, gave, fits)


def _check_unseen(rule: Rule, placed: Placement, located: Placement) -> None:
    """The same walks without embeddings and with them."""
    for name, without, given in zip(FORMS, placed, located, strict=True):
        for at in map(tuple, np.argwhere(without != given)[:1]):
            gave = f"{name} {given[at]} with embeddings and {without[at]} without"
            _refuse(rule, UNSEEN, f"{gave}, newcomer {at[1]}", "needs_embedding = True")


def _check_windows(rule: Rule, newcomers: Newcomers, index: SequenceIndex) -> None:
    """B starts with windows of N steps never need more than B·N slots."""

    def visit(state: Any, given: tuple[Array, Newcomers]) -> tuple[Any, Array]:
        is_start = given[0] % CLOSING != CLOSING - 1
        state, *_ = index.place(state, *given[1], is_start=is_start)
        return state, state.trajectory.step_overflow

    def follow(newcomers: Newcomers) -> Array:
        empty = index.init(newcomers.embedding.shape[-1])
        return jax.lax.scan(visit, empty, (jnp.arange(len(newcomers.key)), newcomers))[1]

    lost = _attempt(rule, "place serves windows", jax.jit(jax.vmap(follow)), newcomers)
    if lost.any():
        gave = f"{lost.max()} steps for which {index.num_slots} slots were too few"
        fits = "a rule that does not inherit from Fifo, whose ring is given less room"
        most = f"{index.capacity} starts with windows of {index.window} need no more than B·N slots"
        _refuse(rule, most, gave, fits)


def _attempt(rule: Rule, promise: str, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except Exception as error:  # somebody's own code may raise anything
        broken = f"{type(rule).__name__} breaks a promise: {promise}"
        raise LofoError(f"{broken}; it raised {_tell(error)}; {PURE}") from error


def _tell(error: Exception) -> str:
    """Its name, its first sentence, and the last line of the user's own that led to it."""
    sentence = re.split(r"(?:(?<=[.!?])\s|\n)\s*(?=[A-Z])", str(error).strip())[0].rstrip(".")
    words = textwrap.shorten(sentence, 150, placeholder=" ...")
    lines = [
        f" ({Path(frame.f_code.co_filename).name}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").split(".")[0] not in NOT_THEIRS
    ]
    return ": ".join(filter(None, (type(error).__name__, words))) + "".join(lines[-1:])


def _refuse(rule: Rule, promise: str, gave: str, fits: str) -> NoReturn:
    name = type(rule).__name__
    raise LofoError(f"{name} breaks a promise: {promise}; it gave {gave}; what fits: {fits}")
