"""The promises of a rule of forgetting, checked on random walks.

`choose` is checked here with NumPy alone. `place` is checked in `compiled_rules`, which needs jax
and is imported only for a rule that has a compiled form.
"""

import math
import pickle
import random
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers import ReplayBuffer
from lofo_rl.buffers.cells import Points, Rows
from lofo_rl.buffers.rules import (
    Fifo,
    Local,
    Placement,
    Reservoir,
    Rule,
    check_class_variables,
    check_number,
)
from lofo_rl.extras import MissingExtra, needs
from lofo_rl.types import LofoError, LofoWarning

COMPILED = (Fifo, Reservoir, Local)  # `lofo_rl.functional` has a compiled form of these
GAPS = 2.0 ** np.arange(-4, 4)  # between places, in radii: powers of 2 keep distances exact
NUM_AGAIN = 20  # repeats of a call before other reasons are blamed: random rows may agree by chance
CLOSING = 5  # of so many steps in windows one is a closing row
OLDER_THAN_ALL, YOUNGER_THAN_ALL = -1, 2**62
LIBRARIES = {"lofo_rl", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}

PURE = "it must follow from ledger, near and rng alone: draw from rng, keep nothing between calls"
READ = "read only size, capacity, clock, stamp and oldest() of the ledger"
ANY_LEDGER = f"{READ}, and expect that it or near is empty"


class View:
    """What `choose` may read of a buffer: a `LedgerView` with its own memory."""

    def __init__(self, size: int, capacity: int, clock: int, stamp: NDArray[np.int64]) -> None:
        self.size, self.capacity, self.clock = size, capacity, clock
        self.stamp = stamp.copy()  # [C]

    def oldest(self) -> int:
        """The live row with the smallest stamp."""
        if not self.size:
            raise LofoError("ledger.oldest() of an empty ledger: check ledger.size first")
        return int(self.stamp[: self.size].argmin())

    def copy(self, remains: int | None = None) -> "View":
        """The same numbers; `remains` replaces the stamps of the rows that are not live."""
        view = View(self.size, self.capacity, self.clock, self.stamp)
        if remains is not None:
            view.stamp[view.size :] = remains
        return view


class Decision(NamedTuple):
    """A call of `choose`: what it was given and what it returned."""

    ledger: View
    near: Rows  # [K]
    random_state: Mapping[str, Any]  # of the generator, before the call
    placement: Placement
    is_random: bool  # it drew from the generator


class Chosen(NamedTuple):
    """What `choose` decided in all walks."""

    placements: Placement  # leaves [W, T]
    is_random: NDArray[np.bool_]  # [W, T]
    decisions: dict[tuple[int, int], Decision]  # by walk and step, at the steps of `some_steps`


def check_rule(
    rule: Rule, *, seed: int = 0, capacity: int = 32, window: int = 4, embedding_size: int = 2
) -> None:
    """Raise a LofoError if the rule breaks a promise; it names the promise, the value and the fix.

    The rule decides on random walks, some among few places and some among more than `capacity`,
    which lie 1/16 to 8 radii apart; one walk has distances of exactly the radius. `choose` is
    checked on its own and in a `ReplayBuffer`, with transitions and windows; `place` is checked
    under jit, vmap and scan, if jax is installed.

    A rule with both must decide alike with both. These walks are exact in float32, so wherever
    `choose` draws no random number, `place` must give the same placement. Wherever it draws, the
    two draw differently: on a few ledgers, a chi-square test compares 4000 placements of each. It
    finds another distribution, but no small difference.

    Give a `capacity` above the rule's limit; with less, no neighborhood is crowded.
    """
    check_number("seed", seed, lambda x: x >= 0, "at least 0", whole=True)
    sizes = {"capacity": capacity, "window": window, "embedding_size": embedding_size}
    for name, value in sizes.items():
        check_number(name, value, lambda x: x >= 1, "at least 1", whole=True)
    if isinstance(rule, type):
        name = rule.__name__
        raise LofoError(f"rule must be an instance, got the class {name}: give {name}(...)")
    kind = type(rule)
    has_choose = callable(getattr(kind, "choose", None))
    has_place = callable(getattr(kind, "place", None))
    if not (has_choose or has_place):
        raise LofoError(
            f"{kind.__name__} is no rule: it needs a method choose(ledger, near, rng), or place"
        )
    check_class_variables(rule)
    if has_choose:
        ReplayBuffer(rule, capacity, window=window)  # it refuses a rule without a usable radius
    walks = _draw_walks(rule, seed, capacity, embedding_size)
    chosen = _check_choose(rule, walks, seed, capacity, window) if has_choose else None
    if has_place or kind in COMPILED:
        try:
            with needs("jax", "check_rule"):
                from lofo_rl.testing.compiled_rules import check_place
        except MissingExtra as error:
            words = f"place of {kind.__name__} was not checked: {error}"
            warnings.warn(words, LofoWarning, stacklevel=2)
        else:
            check_place(rule, walks, chosen, seed, capacity, window)


def some_steps(walks: Points, capacity: int) -> list[tuple[int, int]]:
    """A few (walk, step) of all walks: while the buffer fills, when it may be full, and later."""
    num_walks, num_steps, _ = walks.shape
    rng = np.random.default_rng(0)
    late = [int(rng.integers(capacity, num_steps)) for _ in range(num_walks)]
    return [(w, t) for w in range(num_walks) for t in sorted({w, capacity, late[w]})]


def generator(state: Mapping[str, Any]) -> np.random.Generator:
    """A random generator in this state."""
    rng = np.random.Generator(np.random.PCG64(0))
    rng.bit_generator.state = state
    return rng


def call_choose(
    rule: Rule, decision: Decision, rng: np.random.Generator | None = None
) -> Placement:
    """What `choose` returns for a decision's ledger and near, drawing from its random state or rng.

    The arguments are copies, which must come back as they were. The placement is made of Python
    numbers, which may be out of range.
    """
    ledger, near = decision.ledger.copy(), decision.near.copy()
    rng = generator(decision.random_state) if rng is None else rng
    placement = attempt(
        rule, "choose", "it decides on any ledger", ANY_LEDGER, rule.choose, ledger, near, rng
    )
    if not isinstance(placement, Placement):
        gave = _short(repr(placement))
        refuse(rule, "choose", "it returns a Placement", gave, "return lofo_rl.buffers.Placement")
    for name, value in placement._asdict().items():
        kinds, words = ("b", "a bool") if name == "overflow" else ("iu", "an integer")
        if np.ndim(value) or np.asarray(value).dtype.kind not in kinds:
            refuse(rule, "choose", f"{name} is {words}", _short(repr(value)), f"return {words}")
    given: dict[str, Any] = vars(decision.ledger)
    now: dict[str, Any] = vars(ledger)
    for name in given.keys() | now.keys():
        if name not in given or not np.array_equal(now.get(name, ()), given[name]):
            fix = "use ledger.stamp.copy()" if name == "stamp" else READ
            refuse(rule, "choose", "it does not write into the ledger", f"another {name}", fix)
    if not np.array_equal(near, decision.near):
        refuse(rule, "choose", "it does not write into near", "another near", "use near.copy()")
    return Placement(int(placement.slot), int(placement.num_near), bool(placement.overflow))


def check_placement(
    rule: Rule, method: str, placement: Placement, size: int, capacity: int, where: str = ""
) -> None:
    """Refuse a placement, of Python numbers, that a buffer of `size` live rows cannot follow."""
    slot, num_near, overflow = placement
    is_full = size == capacity
    fresh = "" if is_full else f", {size} for a fresh row"
    rows = f"return a row below {size} to replace its sample{fresh}, or {capacity} to refuse"
    for promise, value, holds, fix in (
        ("slot lies in [0, capacity]", slot, 0 <= slot <= capacity, rows),
        ("the live rows remain the first rows", slot, slot <= size or slot == capacity, rows),
        ("num_near lies in [0, size]", num_near, 0 <= num_near <= size, "count live rows only"),
        (
            "overflow is True only if a full buffer loses a live row",
            overflow,
            not overflow or (is_full and slot < capacity),
            f"return False with slot {slot}",
        ),
    ):
        if not holds:
            gave = f"{value} with size {size} and capacity {capacity}{where}"
            refuse(rule, method, promise, gave, fix)


def attempt(
    rule: Rule, method: str, promise: str, fix: str, function: Callable[..., Any], *given: Any
) -> Any:
    """The function's result; an error breaks the promise."""
    try:
        return function(*given)
    except Exception as error:  # the user's code may raise anything
        broken = f"{type(rule).__name__} breaks a promise of {method}: {promise}"
        raise LofoError(f"{broken}; it raised {_words(error)}; {fix}") from error


def refuse(rule: Rule, method: str, promise: str, gave: str, fix: str) -> NoReturn:
    """Raise the error of a broken promise."""
    name = type(rule).__name__
    raise LofoError(f"{name} breaks a promise of {method}: {promise}; it gave {gave}; {fix}")


def _words(error: Exception) -> str:
    """Its name, its first sentence, and the last line of the user's code that led to it."""
    sentence = re.split(r"(?:(?<=[.!?])\s|\n)\s*(?=[A-Z])", str(error).strip())[0].rstrip(".")
    words = _short(sentence)
    lines = [
        f" ({Path(frame.f_code.co_filename).name}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").split(".")[0] not in LIBRARIES
    ]
    return ": ".join(filter(None, (type(error).__name__, words))) + "".join(lines[-1:])


def _short(words: str) -> str:
    return textwrap.shorten(words, 150, placeholder=" ...")


def _draw_walks(rule: Rule, seed: int, capacity: int, embedding_size: int) -> Points:
    """Random walks [W, T, D]; with a radius, the last has distances of exactly the radius."""
    num_steps = 100 + 3 * capacity
    rng = np.random.default_rng(seed)
    many = math.ceil((4 * capacity) ** (1 / embedding_size))
    places = [
        rng.integers(num_places, size=(len(GAPS), num_steps, embedding_size))
        for num_places in (4, max(many, 4))
    ]
    radius = _radius_of(rule)
    scale = 1.0 if radius is None else 2.0 ** np.clip(np.floor(np.log2(radius)), -40, 40)
    walks = (scale * GAPS[:, None, None] * places).reshape(-1, num_steps, embedding_size)
    if radius is not None:
        line = np.zeros((1, num_steps, embedding_size))
        line[0, :, 0] = radius / 2 * rng.integers(3, size=num_steps)
        walks = np.concatenate([walks, line])
    return walks.astype(np.float32)


def _radius_of(rule: Rule) -> np.float32 | None:
    """The radius of a rule that needs embeddings, if it has a positive one."""
    radius = getattr(rule, "radius", None) if rule.needs_embedding else None
    try:
        number = np.float32(float(radius))  # type: ignore[arg-type]  # it may be anything
    except (TypeError, ValueError):
        return None
    return number if 0 < number < np.inf else None


def _check_choose(rule: Rule, walks: Points, seed: int, capacity: int, window: int) -> Chosen:
    steps = some_steps(walks, capacity)
    placements: list[list[Placement]] = []
    is_random: list[list[bool]] = []
    decisions: dict[tuple[int, int], Decision] = {}
    for w, walk in enumerate(walks):
        before = _global_random_state()
        made = _follow(rule, walk, seed + w, capacity, {t for v, t in steps if v == w})
        if _global_random_state() != before:
            promise, fix = "random numbers come from rng alone", "use rng.integers or rng.choice"
            refuse(rule, "choose", promise, "numbers of np.random or random", fix)
        placements.append(made[0])
        is_random.append(made[1])
        decisions |= {(w, t): decision for t, decision in made[2].items()}
    for at in steps:  # far apart, so that what the rule kept from the call before is wrong
        _check_again(rule, decisions[at])
    slot, num_near, overflow = np.moveaxis(np.array(placements, np.int64), -1, 0)
    stacked = Placement(slot, num_near, overflow.astype(np.bool_))
    chosen = Chosen(stacked, np.array(is_random), decisions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LofoWarning)  # of settings that are not the user's
        for w in range(0, len(walks), 4):
            buffer = _check_transitions(rule, walks[w], slot[w], seed + w, capacity)
            _check_windows(rule, walks[w], seed + w, capacity, window)
        _check_file(rule, buffer)
    return chosen


def _global_random_state() -> bytes:
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002  # not to draw


def _follow(
    rule: Rule, walk: Points, seed: int, capacity: int, steps: set[int]
) -> tuple[list[Placement], list[bool], dict[int, Decision]]:
    """The placements of a walk [T, D], where they were random, and the decisions at some steps."""
    rng = np.random.Generator(np.random.PCG64(seed))
    ledger, points = View(0, capacity, 0, np.zeros(capacity, np.int64)), np.zeros_like(walk)
    radius = _radius_of(rule)
    placements, is_random, decisions = [], [], {}
    for t, point in enumerate(walk):
        near = np.zeros(0, np.int64)
        if radius is not None:
            squares = np.square(points[: ledger.size] - point).sum(-1)
            near = np.flatnonzero(squares < np.square(radius))
        before = rng.bit_generator.state
        decision = Decision(ledger.copy(), near, before, Placement(0, 0, False), False)
        placement = call_choose(rule, decision, rng)
        check_placement(rule, "choose", placement, ledger.size, capacity, f", at sample {t}")
        placements.append(placement)
        is_random.append(rng.bit_generator.state != before)
        if t in steps:
            decisions[t] = decision._replace(placement=placement, is_random=is_random[-1])
        if placement.slot < capacity:
            ledger.stamp[placement.slot], points[placement.slot] = t, point
            ledger.size = max(ledger.size, placement.slot + 1)
        ledger.clock += 1
    return placements, is_random, decisions


def _check_again(rule: Rule, decision: Decision) -> None:
    """The same decision again, and with what must not matter changed."""
    first, ledger = decision.placement, decision.ledger
    again = call_choose(rule, decision)
    others = [
        (
            "rows beyond size have no influence",
            call_choose(rule, decision._replace(ledger=ledger.copy(remains=stamp))),
            "read ledger.stamp[:ledger.size]",
        )
        for stamp in (OLDER_THAN_ALL, YOUNGER_THAN_ALL)
    ]
    if not rule.needs_embedding and ledger.size:
        for near in (np.arange(1), np.arange(ledger.size)):
            answer = call_choose(rule, decision._replace(near=near))
            promise = "it does not use near, because needs_embedding is False"
            others.append((promise, answer, "set needs_embedding = True"))
    answers = [again, *(answer for _, answer, _ in others)]
    if any(answer != first for answer in answers):
        repeats = (call_choose(rule, decision) for _ in range(NUM_AGAIN))
        again = next((answer for answer in (again, *repeats) if answer != first), again)
    for promise, answer, fix in (
        ("the same arguments give the same placement", again, PURE),
        *others,
    ):
        if answer != first:
            gave = f"{shown(answer)} after {shown(first)} with size {ledger.size}"
            refuse(rule, "choose", promise, gave, fix)


def shown(placement: Placement) -> str:
    """A placement in words."""
    slot, num_near, overflow = placement
    return f"slot {slot} (num_near {num_near}, overflow {overflow})"


def _check_transitions(
    rule: Rule, walk: Points, slots: Rows, seed: int, capacity: int
) -> ReplayBuffer:
    """A ReplayBuffer of single transitions holds what `slots` say, by `add` and by `extend`."""
    promise = "it decides in a ReplayBuffer as on a plain ledger"
    one, many = (ReplayBuffer(rule, capacity, seed=seed) for _ in range(2))
    ids = np.arange(len(walk))
    attempt(rule, "choose", promise, PURE, _add_each, one, ids, walk)
    attempt(rule, "choose", promise, PURE, _add_batches, many, ids, walk)
    last = np.full(capacity + 1, -1)
    last[slots] = ids
    expected = np.sort(last[:-1][last[:-1] >= 0]).tolist()
    for name, buffer in (("add", one), ("extend", many)):
        held = buffer.contents().items["id"].tolist() if len(buffer) else []
        if held != expected:
            gave = f"other samples after {len(walk)} calls of {name} than on a plain ledger"
            refuse(rule, "choose", promise, gave, READ)
    return one


def _check_windows(rule: Rule, walk: Points, seed: int, capacity: int, window: int) -> None:
    """A ReplayBuffer of windows, by `add` and by `extend`."""
    promise = "it decides in a ReplayBuffer of windows, too"
    one, many = (
        ReplayBuffer(rule, capacity, window=window, num_streams=2, seed=seed) for _ in range(2)
    )
    ids = np.arange(len(walk))
    flags = {"stream": ids % 2, "is_last": ids % CLOSING == CLOSING - 1}
    attempt(rule, "choose", promise, PURE, _add_each, one, ids, walk, flags)
    attempt(rule, "choose", promise, PURE, _add_batches, many, ids, walk, flags)
    held = [_all_of(buffer) for buffer in (one, many)]
    if held[0] != held[1]:
        gave = "other windows by extend than by add"
        refuse(rule, "choose", promise, gave, PURE)


def _add_each(
    buffer: ReplayBuffer, ids: Rows, walk: Points, flags: dict[str, Any] | None = None
) -> None:
    for t, point in enumerate(walk):
        own = {name: x[t].item() for name, x in (flags or {}).items()}
        buffer.add({"id": ids[t]}, embedding=point, **own)


def _add_batches(
    buffer: ReplayBuffer, ids: Rows, walk: Points, flags: dict[str, Any] | None = None
) -> None:
    for t in range(0, len(ids), 7):
        part = slice(t, t + 7)
        own = {name: x[part] for name, x in (flags or {}).items()}
        buffer.extend({"id": ids[part]}, embedding=walk[part], **own)


def _all_of(buffer: ReplayBuffer) -> tuple[Any, ...]:
    if not buffer.can_sample():
        return ()
    batch = buffer.contents()
    return batch.items["id"].tolist(), batch.reward_known.tolist()


def _check_file(rule: Rule, buffer: ReplayBuffer) -> None:
    """A buffer of this rule is saved and loaded whole."""
    promise, fix = "a saved buffer is loaded whole", "let repr(rule) show the rule and its settings"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "buffer"
        attempt(rule, "choose", promise, fix, buffer.save, path)
        load = partial(ReplayBuffer.load, path, rule=rule)
        loaded = attempt(rule, "choose", promise, fix, load)
        if _all_of(loaded) != _all_of(buffer):
            refuse(rule, "choose", promise, "other samples after load", fix)
