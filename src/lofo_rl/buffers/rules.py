"""Which row a new sample takes: Fifo, Reservoir and Local differ in nothing else.

A rule is a frozen dataclass of numbers with a method `choose`, in NumPy. `lofo_rl.functional`
holds the compiled `place` of the same decision.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers.arrays import words_of
from lofo_rl.types import LofoError

Rows = NDArray[np.integer[Any]]


class Placement(NamedTuple):
    """Where a new sample goes: the one integer in which rules differ, and why."""

    slot: Any  # int: == size: a fresh row; < size: replaces that row; == capacity: refused
    num_near: Any  # int, neighbors the rule counted
    overflow: Any  # bool, a sample left only because the buffer was full


class LedgerView(Protocol):
    """What a rule may read of a buffer. The live rows are the prefix [0, size)."""

    @property
    def size(self) -> int:
        """The number of live rows."""

    @property
    def capacity(self) -> int:
        """The number of rows."""

    @property
    def clock(self) -> int:
        """How many samples have come so far."""

    @property
    def stamp(self) -> NDArray[np.int64]:
        """The clock at which each row was written; rows from `size` on hold anything."""

    def oldest(self) -> int:
        """The live row with the smallest stamp."""


class Rule(Protocol):
    """A rule of forgetting. One that needs embeddings also has a number `radius`.

    `lofo_rl.testing.check_rule` checks a rule of your own.
    """

    needs_embedding: ClassVar[bool]  # False: `near` is empty
    voids_rewards: ClassVar[bool]  # in windows, the reward of a forgotten start becomes unknown

    def choose(self, ledger: LedgerView, near: Rows, rng: np.random.Generator) -> Placement:
        """The row of a new sample; `near` holds its live neighbors [K], in ascending order.

        It follows from the arguments alone, and writes into none of them.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Fifo:
    """First in, first out."""

    needs_embedding: ClassVar[bool] = False
    voids_rewards: ClassVar[bool] = False

    def choose(self, ledger: LedgerView, near: Rows, rng: np.random.Generator) -> Placement:
        """The next row of the ring."""
        return Placement(ledger.clock % ledger.capacity, 0, False)


@dataclasses.dataclass(frozen=True)
class Reservoir:
    """A uniform sample of everything seen so far."""

    needs_embedding: ClassVar[bool] = False
    voids_rewards: ClassVar[bool] = False

    def choose(self, ledger: LedgerView, near: Rows, rng: np.random.Generator) -> Placement:
        """A fresh row while there is one, then a random row of all samples seen so far."""
        if ledger.size < ledger.capacity:
            return Placement(ledger.size, 0, False)
        return Placement(min(int(rng.integers(ledger.clock + 1)), ledger.capacity), 0, False)


@dataclasses.dataclass(frozen=True)
class Local:
    """Local forgetting: a new sample with enough neighbors replaces the oldest of them."""

    radius: float  # D_local
    limit: int = 1  # N_local
    expected_size: int | None = dataclasses.field(
        default=None, init=False, compare=False, repr=False
    )  # predicted by `keeping`; it decides nothing
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("radius", self.radius, lambda x: x > 0, "positive")
        check_number("limit", self.limit, lambda x: x >= 1, "at least 1", whole=True)

    @classmethod
    def keeping(
        cls,
        num: int,
        embeddings: ArrayLike,
        limit: int = 1,
        *,
        groups: ArrayLike | None = None,
        nearest: bool = False,
        num_steps: int | None = None,
    ) -> Self:
        """The rule with the radius that will hold about `num` samples after `num_steps`.

        `embeddings` [T, D] are those of T steps in their order, with the policy of the run or a
        random one; some thousand are enough. `num_steps` is 50 for each sample held if left out.
        `groups` [T], such as the actions, are those of the steps if the buffer has groups.
        If no radius holds about so many, it is an error; with `nearest`, the radius whose size is
        nearest is taken. The prediction is in `expected_size` and in `ReplayBuffer.metrics()`,
        beside the `size` that came out. `lofo_rl.buffers.calibration` says how it is made and how
        far it can be off.
        """
        from lofo_rl.buffers.calibration import radius_keeping  # which runs this rule

        radius, expected = radius_keeping(num, embeddings, limit, num_steps, groups, nearest)
        rule = cls(radius, limit)
        object.__setattr__(rule, "expected_size", expected)
        return rule

    def choose(self, ledger: LedgerView, near: Rows, rng: np.random.Generator) -> Placement:
        """The oldest neighbor's row if there are enough, else a fresh one, else the oldest."""
        num_near = len(near)
        if num_near >= self.limit:
            return Placement(int(near[ledger.stamp[near].argmin()]), num_near, False)
        if ledger.size < ledger.capacity:
            return Placement(ledger.size, num_near, False)
        return Placement(ledger.oldest(), num_near, True)


def either_rule(radius: float | None, limit: int, rule: Rule | None) -> Rule:
    """`rule`, or local forgetting with this radius and limit: what the adapters are given."""
    if (radius is None) == (rule is None):
        raise LofoError(f"give either radius= or rule=, got {radius=} and {rule=}")
    return Local(radius, limit) if rule is None else rule  # type: ignore[arg-type]  # there is one


def check_class_variables(rule: Any) -> None:
    """Refuse a rule whose class does not say what it needs."""
    for name in ("needs_embedding", "voids_rewards"):
        if not isinstance(value := getattr(rule, name, None), bool):
            kind = type(rule).__name__
            raise LofoError(
                f"{kind}.{name} must be True or False, got {value!r}: "
                f"write {name}: ClassVar[bool] = ... in class {kind}"
            )


def check_number(
    name: str, value: Any, holds: Callable[[Any], Any], words: str, *, whole: bool = False
) -> None:
    """Refuse a value that is not a number, or arrays of numbers, for which `holds` is true.

    A tracer of jax passes: its value is not known yet.
    """
    try:
        numbers = np.asarray(value)
    except Exception:
        if type(value).__module__.startswith("jax"):
            return
        numbers = np.asarray(None)
    if whole and type(value) is int and value >= 2**64:
        raise LofoError(f"{name} must be an integer below 2**64, got {words_of(value)}")
    kinds, kind = ("iu", "an integer") if whole else ("iuf", "a number")
    if numbers.dtype.kind not in kinds or not np.all(holds(numbers)):
        article = f"{kind} of " if whole else ""
        raise LofoError(f"{name} must be {article}{words}, got {value!r}")
