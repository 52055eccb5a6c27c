"""Where items go and where they are found again: `place` gives a slot, `draw` gives slots."""

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lofo_rl.buffers.rules import Fifo, Rule
from lofo_rl.functional import ledger as ledgers
from lofo_rl.functional import rules
from lofo_rl.functional import sequences as trajectories
from lofo_rl.functional.draws import draw_weighted
from lofo_rl.functional.ledger import Ledger, Placement
from lofo_rl.functional.sequences import Trajectory
from lofo_rl.functional.storage import check_held, check_kind, checked_size
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Key, LofoError, Metrics, Tree


class Draw(NamedTuple):
    """A sample of the ledger's rows, and where their items are."""

    starts: Array  # [B] int32, ledger rows
    slots: Array  # [B] or [B, N] int32, where the items are
    known: Array  # [B] or [B, N] bool, False where the reward is unknown
    is_again: Array | None = None  # [B, N] bool, where a window begins again


class SequenceState(NamedTuple):
    """The starts of windows, and the steps behind them."""

    ledger: Ledger
    trajectory: Trajectory


class Index(Protocol):
    """Decides slots, and never sees the items."""

    @property
    def num_slots(self) -> int | None:
        """How many slots the items need; `place` gives this number to an item that is not kept."""

    def init(self, embedding_size: int = 0, *, is_grouped: bool = False) -> Tree:
        """The state of an empty buffer."""

    def place(
        self,
        state: Tree,
        embedding: Array | None,
        key: Key | None,
        *,
        group: Array | None = None,
        is_start: Array | bool = True,
        is_closed: Array | None = None,
    ) -> tuple[Tree, Array, Array]:
        """The slot of a new item, and its ledger row: `capacity` if it has none.

        With `is_closed`, whether an episode ends, it also gives the closing row's slot: they are
        [2].
        """

    def ledger(self, state: Tree) -> Ledger:
        """Which samples are kept."""

    def drawable(self, state: Tree) -> Array:
        """Which ledger rows [C] a draw may give."""

    def find(self, state: Tree, starts: Array) -> Draw:
        """The slots behind ledger rows that can be drawn."""

    def draw(self, state: Tree, num: int, key: Key, weight: Array | None = None) -> Draw:
        """A draw, uniform or in proportion to a weight [C] of the ledger rows."""

    def can_draw(self, state: Tree) -> Array:
        """Whether there is anything to draw."""

    def metrics(self, state: Tree, age: Array | int | None = None) -> Metrics:
        """Scalars about occupancy and forgetting."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TransitionIndex:
    """Single transitions: a slot is a ledger row."""

    rule: Rule
    capacity: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", checked_size("capacity", self.capacity))

    @property
    def num_slots(self) -> int:
        """One for each row."""
        return self.capacity

    def init(self, embedding_size: int = 0, *, is_grouped: bool = False) -> Ledger:
        """An empty ledger."""
        return _empty_ledger(self.rule, self.capacity, embedding_size, is_grouped)

    def place(
        self,
        state: Ledger,
        embedding: Array | None,
        key: Key | None,
        *,
        group: Array | None = None,
        is_start: Array | bool = True,
        is_closed: Array | None = None,
    ) -> tuple[Ledger, Array, Array]:
        """The item's row, `capacity` if refused; an item that is no start is never kept."""
        if is_closed is not None:
            raise LofoError("only windows have a closing row: place single items without one")
        placed, placement = _place(self.rule, state, embedding, key, group, is_start)
        return placed, placement.slot, placement.slot

    def draw(self, state: Ledger, num: int, key: Key, weight: Array | None = None) -> Draw:
        """Live rows: uniform in [0, size), or in proportion to `weight` [C]."""
        if weight is None:
            rows = jax.random.randint(key, (num,), 0, jnp.maximum(state.size, 1))
        else:
            rows = draw_weighted(jnp.where(state.live, weight, 0), num, key)
        return self.find(state, rows)

    def ledger(self, state: Ledger) -> Ledger:
        """The state itself."""
        return state

    def drawable(self, state: Ledger) -> Array:
        """The live rows."""
        return state.live

    def find(self, state: Ledger, starts: Array) -> Draw:
        """The rows themselves; the reward of a transition is always known."""
        return Draw(starts, starts, jnp.ones(starts.shape, bool))

    def can_draw(self, state: Ledger) -> Array:
        """Whether there is a live row."""
        return state.size > 0

    def metrics(self, state: Ledger, age: Array | int | None = None) -> Metrics:
        """Occupancy, forgetting and, with `age`, the fraction not among the last `age` samples."""
        return _ledger_metrics(state, age)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SequenceIndex:
    """Windows of steps: each ledger row is a start, and points to the steps of its window.

    The default `num_slots` suffices where a closing row, if any, directly follows a start; a
    smaller one is allowed, and the steps it has no room for are counted as `step_overflow`.
    Only complete windows are drawn; with `repeats` growing ones too, begun again where they end.
    """

    rule: Rule
    capacity: int = dataclasses.field(metadata={"static": True})  # B
    window: int = dataclasses.field(metadata={"static": True})  # N
    num_slots: int | None = dataclasses.field(default=None, metadata={"static": True})
    repeats: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("capacity", "window"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        if self.num_slots is None:
            default = self.capacity * self._steps_per_start()
            num_slots = checked_size("the default of num_slots", default)
        elif (num_slots := checked_size("num_slots", self.num_slots)) < self.window:
            raise LofoError(f"num_slots must hold a window of {self.window} steps, got {num_slots}")
        object.__setattr__(self, "num_slots", num_slots)

    def _steps_per_start(self) -> int:
        # Under Fifo a step that a live start reaches is itself a live start, or the closing row
        # right after one; under other rules most of a window may be steps that were forgotten.
        return min(self.window, 2) if type(self.rule) is Fifo else self.window

    def init(self, embedding_size: int = 0, *, is_grouped: bool = False) -> SequenceState:
        """No starts and no steps."""
        assert self.num_slots is not None  # set on construction
        ledger = _empty_ledger(self.rule, self.capacity, embedding_size, is_grouped)
        return SequenceState(ledger, trajectories.init(self.capacity, self.window, self.num_slots))

    def place(
        self,
        state: SequenceState,
        embedding: Array | None,
        key: Key | None,
        *,
        group: Array | None = None,
        is_start: Array | bool = True,
        is_closed: Array | None = None,
    ) -> tuple[SequenceState, Array, Array]:
        """The step's slot, `num_slots` if not kept; a closing row is a step but no start.

        With `is_closed`, both slots [2]: what two calls give, but cheaper.
        """
        ledger, placement = _place(self.rule, state.ledger, embedding, key, group, is_start)
        trajectory, slot = trajectories.add(
            state.trajectory,
            placement.slot,
            placement.slot < state.ledger.size,
            is_closed,
            voids_rewards=self.rule.voids_rewards,
        )
        return SequenceState(ledger, trajectory), slot, placement.slot

    def draw(self, state: SequenceState, num: int, key: Key, weight: Array | None = None) -> Draw:
        """Windows, uniform among their starts or in proportion to `weight` [C]."""
        drawable = self.drawable(state)
        weight = drawable if weight is None else jnp.where(drawable, weight, 0)
        return self.find(state, draw_weighted(weight, num, key))

    def ledger(self, state: SequenceState) -> Ledger:
        """The starts."""
        return state.ledger

    def drawable(self, state: SequenceState) -> Array:
        """The starts whose window is complete, or at least has a second step."""
        return state.trajectory.begun if self.repeats else state.trajectory.complete

    def find(self, state: SequenceState, starts: Array) -> Draw:
        """The steps of their windows."""
        trajectory, is_again = state.trajectory, None
        if self.repeats:
            slots, is_again = trajectory.repeated(starts)
        else:
            slots = trajectory.window[starts]
        return Draw(starts, slots, trajectory.known[slots], is_again)

    def can_draw(self, state: SequenceState) -> Array:
        """Whether some window can be drawn."""
        return jnp.any(self.drawable(state))

    def metrics(self, state: SequenceState, age: Array | int | None = None) -> Metrics:
        """As for transitions, and about the steps."""
        trajectory = state.trajectory
        is_unknown = (trajectory.cover > 0) & ~trajectory.known
        return _ledger_metrics(state.ledger, age) | {
            "complete": jnp.sum(trajectory.complete),
            "num_steps": trajectory.num_slots - trajectory.num_free,
            "max_steps": trajectory.high_water,
            "num_slots": trajectory.num_slots,
            "step_overflow": trajectory.step_overflow,
            "unknown_rewards": jnp.sum(is_unknown),
        }


def _empty_ledger(rule: Rule, capacity: int, embedding_size: int, is_grouped: bool) -> Ledger:
    embedding_size = checked_size("embedding_size", embedding_size, least=0)
    if rule.needs_embedding and embedding_size < 1:
        raise LofoError(
            f"{type(rule).__name__} needs an embedding: "
            f"embedding_size must be at least 1, got {embedding_size}"
        )
    if is_grouped and not rule.needs_embedding:
        raise LofoError(f"groups divide neighbors, and {rule} looks at none: leave out group_by")
    return ledgers.init(capacity, embedding_size, is_grouped=is_grouped)


def _place(
    rule: Rule,
    ledger: Ledger,
    embedding: Array | None,
    key: Key | None,
    group: Array | None,
    is_start: Array | bool,
) -> tuple[Ledger, Placement]:
    if (group is None) != (ledger.group is None):
        kind = "no groups" if ledger.group is None else "groups"
        raise LofoError(f"the buffer was made with {kind}, got group={group!r}")
    check_kind("is_start", is_start, jnp.bool_)
    embedding = _fit_embedding(ledger, embedding)
    placement = rules.place(rule, ledger, embedding, key, group)
    slot = jnp.where(is_start, placement.slot, ledger.capacity)
    new = ledgers.record(ledger, placement, embedding, is_start, group)
    return new, placement._replace(slot=slot)


def _fit_embedding(ledger: Ledger, embedding: Array | None) -> Array:
    size = ledger.embedding.shape[-2]
    if size == 0:  # a rule without neighbors keeps none
        return jnp.zeros(0, jnp.float32)
    if embedding is None:
        raise LofoError(f"embedding must be float32[{size}], got None")
    check_kind("embedding", embedding, jnp.float32, (size,))
    check_held("embedding", embedding, jnp.float32)
    return jnp.asarray(embedding, jnp.float32)


def _ledger_metrics(ledger: Ledger, age: Array | int | None) -> Metrics:
    metrics: Metrics = {
        "size": ledger.size,
        "capacity": ledger.capacity,
        "overflow": ledger.overflow,
        "evictions": ledger.evictions,
        "mean_near": ledgers.mean_near(ledger),
    }
    return metrics if age is None else metrics | {"older": ledgers.fraction_older(ledger, age)}
