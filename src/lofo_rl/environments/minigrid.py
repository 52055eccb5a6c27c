"""MiniGridLoCA, seen as symbols: a walled square room, T1 in one corner, T2 in the opposite.

`MiniGridPixels` shows the same room as pictures; the physics are here and nowhere else.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.base import Chart, Spec, Task, World, check_horizon
from lofo_rl.types import Array, Key

NUM_HEADINGS = 4  # 0 right, 1 down, 2 left, 3 up
TURN_LEFT, TURN_RIGHT, FORWARD = 0, 1, 2
SMALLEST_ZONE = 2  # cells a side: one alone would be T1 and leave no start
COLUMN_AHEAD = np.array([1, 0, -1, 0], np.int32)  # by heading
ROW_AHEAD = np.array([0, 1, 0, -1], np.int32)  # by heading; rows count downwards


class Pose(NamedTuple):
    """The physical state; cells are counted inside the walls."""

    column: Array  # [] int32, x
    row: Array  # [] int32, y
    heading: Array  # [] int32


@dataclass(frozen=True)
class MiniGrid(World):
    """The room of the paper, or one of another size with its goals elsewhere.

    The T1-zone is a square with T1 in its middle, or as near to it as the walls allow.
    A start distribution is a weight for every code, [size * size * 4] float32.
    """

    size: int = 8
    zone_size: int = 2
    time_limit: int = 100
    discount: float = 0.99
    t1_cell: tuple[int, int] = (0, 0)  # column, row
    t2_cell: tuple[int, int] | None = None  # None: the last column and row

    def __post_init__(self) -> None:
        check_horizon(self.time_limit, self.discount)
        if self.size < 3:
            raise ValueError(f"size must be at least 3 (a zone, T2 and a way), got {self.size}")
        if not SMALLEST_ZONE <= self.zone_size < self.size:
            raise ValueError(
                f"zone_size must lie in {SMALLEST_ZONE}..{self.size - 1}, so that the T1-zone has "
                f"starts and does not cover T2; got {self.zone_size}"
            )
        for name, cell in (("t1_cell", self.t1_cell), ("t2_cell", self.goals[1])):
            if len(cell) != 2 or not all(0 <= part < self.size for part in cell):
                last = self.size - 1
                raise ValueError(
                    f"{name} must be a column and a row of the room, each in 0..{last}, got {cell}"
                )
        self._check_zone()

    def _check_zone(self) -> None:
        t2 = self.goals[1]
        if not self._zone_covers(t2, self.zone_size):
            return
        left, top = self.zone_corner
        right, bottom = left + self.zone_size - 1, top + self.zone_size - 1
        smaller = range(self.zone_size - 1, SMALLEST_ZONE - 1, -1)
        fitting = next((s for s in smaller if not self._zone_covers(t2, s)), None)
        raise ValueError(
            f"the T1-zone covers columns {left}..{right} and rows {top}..{bottom}, and so "
            f"t2_cell {t2}: put T2 outside of them"
            + (f", or choose a zone_size of at most {fitting}" if fitting else "")
        )

    def _zone_covers(self, cell: tuple[int, int], zone_size: int) -> bool:
        corner = _corner(self.t1_cell, zone_size, self.size)
        return all(0 <= part - low < zone_size for part, low in zip(cell, corner, strict=True))

    @property
    def goals(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The cells of T1 and T2, each as column and row."""
        last = self.size - 1
        return self.t1_cell, (last, last) if self.t2_cell is None else self.t2_cell

    @property
    def zone_corner(self) -> tuple[int, int]:
        """The first column and row of the T1-zone."""
        return _corner(self.t1_cell, self.zone_size, self.size)

    @property
    def num_codes(self) -> int:
        """How many poses there are, the two goals included."""
        return self.size * self.size * NUM_HEADINGS

    @property
    def spec(self) -> Spec:
        """The code is a pose's number, the observation one-hot column, row and heading."""
        return Spec(
            name="minigrid",
            code_shape=(),
            code_dtype=np.dtype(np.int32),
            observation_shape=(2 * self.size + NUM_HEADINGS,),
            observation_dtype=np.dtype(np.float32),
            observation_low=None,
            observation_high=None,
            num_actions=3,
            time_limit=self.time_limit,
            discount=self.discount,
        )

    def train_start(self, phase: int) -> Array:
        """Uniform over all non-goal poses in phase 1, over those in the T1-zone in phase 2."""
        everywhere = self.evaluation_start()
        if phase == 1:
            return everywhere
        return everywhere * self.in_t1_zone(self.pose(jnp.arange(self.num_codes)))

    def evaluation_start(self) -> Array:
        """Uniform over all non-goal poses."""
        at_t1, at_t2 = self._reached(self.pose(jnp.arange(self.num_codes)))
        return (~(at_t1 | at_t2)).astype(jnp.float32)

    def draw_start(self, start: Array, key: Key) -> Pose:
        """A pose by its weight: the first code whose cumulative weight reaches a lot."""
        heights = jnp.cumsum(start)
        lot = (1.0 - jax.random.uniform(key)) * heights[-1]  # in (0, total]: no weight, no chance
        return self.pose(jnp.argmax(heights >= lot))

    def starts(self, task: Task) -> Task:
        """One task per start of positive weight; the weights must be concrete."""
        weights = np.asarray(task.start)
        codes = np.flatnonzero(weights > 0.0)
        only = jnp.asarray(np.eye(weights.size, dtype=np.float32)[codes])
        reward_t1, reward_t2 = (jnp.broadcast_to(reward, codes.shape) for reward in task[:2])
        return Task(reward_t1, reward_t2, only)

    def advance(self, physical: Pose, action: Array) -> tuple[Pose, Array, Array]:
        """A turn or a step ahead; neither the walls nor the zone's rim can be crossed outwards."""
        column, row, heading = physical
        ahead = (action == FORWARD).astype(jnp.int32)
        column = column + ahead * jnp.asarray(COLUMN_AHEAD)[heading]
        row = row + ahead * jnp.asarray(ROW_AHEAD)[heading]
        turn = (action == TURN_RIGHT).astype(jnp.int32) - (action == TURN_LEFT).astype(jnp.int32)
        turned = (heading + turn) % NUM_HEADINGS
        moved = Pose(jnp.clip(column, 0, self.size - 1), jnp.clip(row, 0, self.size - 1), turned)
        leaving = self.in_t1_zone(physical) & ~self.in_t1_zone(moved)
        pose = Pose(
            jnp.where(leaving, physical.column, moved.column),
            jnp.where(leaving, physical.row, moved.row),
            turned,
        )
        return pose, *self._reached(pose)

    def in_t1_zone(self, physical: Pose) -> Array:
        """Within the square of `zone_size` cells around T1."""
        left, top = self.zone_corner
        across, down = physical.column - left, physical.row - top
        inside = (across >= 0) & (across < self.zone_size)
        return inside & (down >= 0) & (down < self.zone_size)

    def encode(self, physical: Pose) -> Array:
        """A pose's number."""
        cell = physical.row * self.size + physical.column
        return (cell * NUM_HEADINGS + physical.heading).astype(jnp.int32)

    def pose(self, code: Array) -> Pose:
        """The pose of a number: `encode` backwards."""
        cell, heading = code // NUM_HEADINGS, code % NUM_HEADINGS
        parts = cell % self.size, cell // self.size, heading
        return Pose(*(part.astype(jnp.int32) for part in parts))

    def decode(self, code: Array) -> Array:
        """One-hot column, one-hot row, one-hot heading."""
        column, row, heading = self.pose(code)
        extents = (column, self.size), (row, self.size), (heading, NUM_HEADINGS)
        hot = [jax.nn.one_hot(part, size, dtype=jnp.float32) for part, size in extents]
        return jnp.concatenate(hot, axis=-1)

    def probe_states(self) -> Pose:
        """Every non-goal pose."""
        return self.pose(jnp.flatnonzero(self.evaluation_start()))

    def codes(self) -> Array:
        """Every pose's number, the goals' included."""
        return jnp.arange(self.num_codes, dtype=jnp.int32)

    def chart(self) -> Chart:
        """The room; in each cell, the four headings under going straight, summed."""
        codes = self.codes()
        at_t1, at_t2 = self._reached(self.pose(codes[::NUM_HEADINGS]))
        return Chart(
            shape=(self.size, self.size),
            extent=(-0.5, self.size - 0.5, self.size - 0.5, -0.5),
            axes=("column", "row"),
            states=self.pose(codes),
            actions=jnp.full(codes.shape, FORWARD, jnp.int32),
            weight=1.0,
            blank=at_t1 | at_t2,
        )

    def cell(self, code: Array) -> Array:
        """Cells are numbered row by row, as codes are."""
        return code // NUM_HEADINGS

    def _reached(self, pose: Pose) -> tuple[Array, Array]:
        """Whether a pose is at T1, and whether at T2."""
        at_t1, at_t2 = ((pose.column == x) & (pose.row == y) for x, y in self.goals)
        return at_t1, at_t2


def _corner(t1_cell: tuple[int, int], zone_size: int, size: int) -> tuple[int, int]:
    """The first column and row of a zone with T1 in its middle, moved inwards at a wall."""
    before, last = (zone_size - 1) // 2, size - zone_size
    column, row = (min(max(part - before, 0), last) for part in t1_cell)
    return column, row
