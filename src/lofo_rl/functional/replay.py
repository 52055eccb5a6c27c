"""A replay buffer is an index and rows of items: the one decides where, the other holds what."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.neighbors import LARGEST
from lofo_rl.functional.index import Draw, Index
from lofo_rl.functional.storage import (
    PackedRows,
    check_held,
    check_kind,
    checked_size,
    kind_of,
    leaf_names,
)
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Batch, Key, LofoError, Metrics, Tree


class ReplayState(NamedTuple):
    """Everything that a replay buffer remembers."""

    index: Tree
    rows: PackedRows


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Replay:
    """Pure `init`, `add` and `sample`: all of it runs under jit, scan and vmap.

    `group_by`: the name of a leaf, such as "action", or a function from an item to an integer; only
    samples of the same group are neighbors. In windows, the group is the start's.

    Shapes, dtypes, and items that are numbers of Python or NumPy are checked when a call is traced.
    Other values are not: with `checks_values=True` embeddings must have a norm of at most 2**55,
    errors must be finite and weights must give a distribution, or a LofoError is raised (under jit
    it is the last line of jax's own error). Each check calls back from the device, so use it to
    find a mistake, and not in a long run.
    """

    index: Index
    group_by: str | Callable[[Any], Any] | None = dataclasses.field(
        default=None, metadata={"static": True}
    )
    checks_values: bool = dataclasses.field(default=False, metadata={"static": True})

    def init(self, example: Tree, embedding_size: int = 0) -> ReplayState:
        """An empty buffer for items shaped like the example."""
        is_grouped = self._group(example) is not None
        index = self.index.init(embedding_size, is_grouped=is_grouped)
        num_slots = self.index.num_slots
        assert num_slots is not None  # every index settles it on construction
        return ReplayState(index, PackedRows.empty(num_slots, example))

    def add(
        self,
        state: ReplayState,
        item: Tree,
        embedding: Array | None = None,
        key: Key | None = None,
        *,
        is_start: Array | bool = True,
    ) -> ReplayState:
        """The buffer with one more item, and perhaps one less."""
        return self.place(state, item, embedding, key, is_start=is_start)[0]

    def place(
        self,
        state: ReplayState,
        item: Tree,
        embedding: Array | None = None,
        key: Key | None = None,
        closing: tuple[Tree, Array] | None = None,
        *,
        is_start: Array | bool = True,
    ) -> tuple[ReplayState, Array]:
        """The same, and the ledger row the item took: for samplers, which know the rows.

        In a buffer of windows, `closing` is the closing row of an episode, and whether it is there.
        """
        group, is_closed = self._group(item), None
        if closing is not None:
            for part in (item, closing[0]):  # a stack is jax's, and hides what was given
                state.rows.check(part)
            item = jax.tree.map(lambda *x: jnp.stack(x), item, closing[0])
            is_closed = closing[1]
            check_kind("whether there is a closing row", is_closed, jnp.bool_)
        index, slot, start = self.index.place(
            state.index, embedding, key, group=group, is_start=is_start, is_closed=is_closed
        )
        if self.checks_values and embedding is not None:  # of a shape and kind that is checked now
            jax.debug.callback(_check_embedding, embedding, is_start)
        return ReplayState(index, state.rows.write(slot, item)), start

    def sample(self, state: ReplayState, num: int, key: Key, weight: Array | None = None) -> Batch:
        """A batch, drawn uniformly or in proportion to a weight [C] of the ledger rows."""
        num = checked_size("num", num)
        if weight is not None:
            capacity = self.index.ledger(state.index).capacity
            check_kind("weight", weight, jnp.float32, (capacity,))
        is_possible = self.can_sample(state)
        if not isinstance(is_possible, jax.core.Tracer) and not is_possible.all():
            raise LofoError("nothing to sample yet: add items until can_sample(state) is true")
        if self.checks_values:
            drawable = self.index.drawable(state.index)
            jax.debug.callback(_check_weight, drawable if weight is None else weight, drawable)
        return self._read(state, self.index.draw(state.index, num, key, weight))

    def read(self, state: ReplayState, starts: Array) -> Batch:
        """The batch of ledger rows that were drawn elsewhere."""
        return self._read(state, self.index.find(state.index, starts))

    def _read(self, state: ReplayState, drawn: Draw) -> Batch:
        items = state.rows.read(drawn.slots)
        if drawn.is_again is not None:  # a recurrent state must not run on into the repetition
            items = items._replace(is_first=items.is_first | drawn.is_again)
        stamps = self.index.ledger(state.index).stamp[drawn.starts]
        return Batch(items, drawn.known, drawn.starts, stamps)

    def items(self, state: ReplayState) -> Tree:
        """What the slots hold [num_slots, ...]; free slots hold anything."""
        return state.rows.items()

    def can_sample(self, state: ReplayState) -> Array:
        """Whether there is anything to draw; under jit, sampling before that gives nonsense."""
        return self.index.can_draw(state.index)

    def metrics(self, state: ReplayState, age: Array | int | None = None) -> Metrics:
        """Scalars about occupancy and forgetting."""
        return self.index.metrics(state.index, age)

    def _group(self, item: Tree) -> Array | None:
        """The group of an item, None where there are no groups."""
        if self.group_by is None:
            return None
        if isinstance(self.group_by, str):
            names = leaf_names(item)
            if self.group_by not in names:
                raise LofoError(
                    f"items have no leaf {self.group_by!r}: theirs are {', '.join(names)}"
                )
            group = jax.tree.leaves(item)[names.index(self.group_by)]
        else:
            group = self.group_by(item)
        name = self.group_by if isinstance(self.group_by, str) else "a group"
        shape, dtype = kind_of(name, group)
        if shape or not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)):
            raise LofoError(f"a group must be one integer, got {dtype}{[*shape]}")
        check_held(name, group, dtype, "number the groups from 0")
        return jnp.asarray(group).astype(jnp.int32)


def _check_embedding(embedding: Any, is_start: Any) -> None:
    given = np.asarray(embedding)
    exact = given.astype(np.float64)  # whose squares cannot overflow
    if is_start and not np.sum(exact**2) <= LARGEST**2:  # so that NaN is refused too
        raise LofoError(f"embedding must be finite, its norm at most {LARGEST:.0e}, got {given}")


def _check_weight(weight: Any, drawable: Any) -> None:
    own = np.asarray(weight)[np.asarray(drawable)]
    if not len(own):
        raise LofoError("nothing to sample yet: add items until can_sample(state) is true")
    is_right = (np.isfinite(own) & (own >= 0)).all()
    if not (is_right and 0 < own.sum(dtype=np.float64) <= np.finfo(np.float32).max):
        raise LofoError(
            "weight must be finite, at least 0, and more than 0 in some row that can be drawn, "
            f"got {own}"
        )
