"""A replay buffer is an index times a storage: the one decides where, the other holds what."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.functional.index import Draw, Index
from lofo_rl.functional.storage import DeviceStorage, Storage
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Batch, Key, Metrics, Tree


class ReplayState(NamedTuple):
    """Everything that a replay buffer remembers."""

    index: Tree
    rows: Tree  # the storage's own form: `Replay.items` gives leaves [T, ...]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Replay:
    """Pure `init`, `add`, `sample`: on the device all of it runs under jit, scan and vmap.

    With a storage on the host, `add` consumes its argument: rows are written in place, and the
    buffers of the index are donated to the compiled decision.
    """

    index: Index
    storage: Storage = dataclasses.field(default_factory=DeviceStorage)

    def init(self, example: Tree, embedding_size: int = 0) -> ReplayState:
        """An empty buffer for items shaped like the example."""
        num_slots = self.index.num_slots
        assert num_slots is not None  # every index settles it on construction
        return ReplayState(self.index.init(embedding_size), self.storage.init(num_slots, example))

    def add(
        self,
        state: ReplayState,
        item: Tree,
        embedding: Array | None = None,
        key: Key | None = None,
        *,
        is_start: Array | bool = True,
        stream: Array | int = 0,
    ) -> ReplayState:
        """The buffer with one more item, and perhaps one less."""
        return self.place(state, item, embedding, key, is_start=is_start, stream=stream)[0]

    def place(
        self,
        state: ReplayState,
        item: Tree,
        embedding: Array | None = None,
        key: Key | None = None,
        closing: tuple[Tree, Array] | None = None,
        **step: Any,
    ) -> tuple[ReplayState, Array]:
        """The same, and the ledger row the item took: for samplers, who keep a book of rows.

        In a buffer of windows, `closing` is the closing row of an episode, and whether it is there.
        """
        if closing is not None:
            item = jax.tree.map(lambda *x: jnp.stack(x), item, closing[0])
            step |= {"is_closed": closing[1]}
        place = (
            functools.partial(_place_compiled, self.index)
            if self.storage.is_host
            else self.index.place
        )
        index, slot, start = place(state.index, embedding, key, **step)
        return ReplayState(index, self.storage.write(state.rows, slot, item)), start

    def sample(self, state: ReplayState, num: int, key: Key, weight: Array | None = None) -> Batch:
        """A batch, drawn uniformly or in proportion to a weight for each ledger row."""
        is_possible = self.can_sample(state)
        if not isinstance(is_possible, jax.core.Tracer) and not is_possible.all():
            raise ValueError("nothing to sample yet: add items until can_sample(state) is true")
        draw = (
            functools.partial(_draw_compiled, self.index)
            if self.storage.is_host
            else self.index.draw
        )
        return self._read(state, draw(state.index, num, key, weight))

    def read(self, state: ReplayState, starts: Array) -> Batch:
        """The batch of ledger rows that were drawn elsewhere."""
        return self._read(state, self.index.find(state.index, starts))

    def _read(self, state: ReplayState, drawn: Draw) -> Batch:
        items = self.storage.read(state.rows, drawn.slots)
        if drawn.is_again is not None:  # a recurrent state must not run on into the repetition
            items = items._replace(is_first=items.is_first | drawn.is_again)
        return Batch(items, drawn.known, drawn.starts)

    def items(self, state: ReplayState) -> Tree:
        """What the slots hold [num_slots, ...]; those that nobody has hold remains."""
        return self.storage.items(state.rows)

    def can_sample(self, state: ReplayState) -> Array:
        """Whether there is anything to draw; within jit, sampling before that gives nonsense."""
        return self.index.can_draw(state.index)

    def metrics(self, state: ReplayState, age: Array | int | None = None) -> Metrics:
        """Scalars that tell how the buffer fares."""
        return self.index.metrics(state.index, age)


@functools.partial(jax.jit, donate_argnums=1)
def _place_compiled(
    index: Index, state: Tree, embedding: Array | None, key: Key | None, **step: Any
) -> tuple[Tree, Array, Array]:
    return index.place(state, embedding, key, **step)


@functools.partial(jax.jit, static_argnums=2)
def _draw_compiled(index: Index, state: Tree, num: int, key: Key, weight: Array | None) -> Draw:
    return index.draw(state, num, key, weight)
