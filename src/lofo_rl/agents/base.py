"""What an agent is: learner state and episode memory apart, so evaluation is frozen by its type."""

from typing import NamedTuple, Protocol

from lofo_rl.types import Array, Batch, Key, Metrics, Tree


class Appetite(NamedTuple):
    """What one `update` eats.

    The buffer's sampler chooses the first `num_chosen` batches. The others are uniform: where an
    agent plans from what it draws, its plans should begin everywhere.
    """

    num_batches: int
    batch_size: int
    window: int | None = None  # steps in a row, or None for transitions
    num_chosen: int | None = None  # None: all of them


class Agent(Protocol):
    """Acts and learns; knows no buffer and no world.

    An agent that is a dataclass may also name `traits`: fields that matter to `update` alone, and
    there may be traced numbers, so that runs which differ in them share one program.
    It may have `errors(state, batches)`, the error [num_batches, batch_size] of its
    model on each sample: `Prioritized` needs it, on the batches that it chose.
    It may have `ready(state)`, which acts as the state does and is made once for many steps.
    With `takes_rows` it acts on and learns from `Picked` as well as from pictures.
    """

    @property
    def appetite(self) -> Appetite: ...

    def init(self, key: Key) -> Tree:
        """Draws the learner's state."""
        ...

    def begin(self) -> Tree:
        """The memory an episode starts with."""
        ...

    def act(
        self, state: Tree, memory: Tree, observation: Array, key: Key, *, explore: bool
    ) -> tuple[Array, Tree]:
        """Chooses an action."""
        ...

    def update(self, state: Tree, batches: Batch, key: Key) -> tuple[Tree, Metrics]:
        """Learns from batches with leaves [num_batches, batch_size, ...]."""
        ...
