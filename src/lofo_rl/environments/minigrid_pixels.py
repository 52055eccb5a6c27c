"""MiniGridLoCA, seen as pictures: those that the MiniGrid package draws, pixel by pixel.

A code stays a pose's number, so a buffer of a million frames holds a million small integers, and
`decode` looks the picture up. Every picture is put together from a few tiles, which are data:
`tests/parity/minigrid_tiles.py` takes them from the package and writes them beside this file.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.base import Spec
from lofo_rl.environments.minigrid import COLUMN_AHEAD, NUM_HEADINGS, ROW_AHEAD, MiniGrid
from lofo_rl.types import Array

TILES = Path(__file__).with_name("minigrid_tiles.npy")  # [plain or lit, kinds, side, side, 3] uint8
TILE_SIDE = 8  # pixels
EMPTY, WALL, GOAL = 0, 1, 2
AGENT, AGENT_AT_GOAL = 3, 3 + NUM_HEADINGS  # and the heading
VIEW_SIDE = 7  # cells that the agent sees: so many ahead, its own row included, and across


@dataclass(frozen=True)
class MiniGridPixels(MiniGrid):
    """The room with its walls from above, 8 pixels to a cell: 80 × 80 for the paper's."""

    highlight: bool = False  # lightens what lies in the agent's view, as some releases did

    @property
    def side(self) -> int:
        """Pixels of a picture's side, the walls included."""
        return (self.size + 2) * TILE_SIDE

    @property
    def spec(self) -> Spec:
        """The code is a pose's number, the observation a picture."""
        return replace(
            super().spec,
            name="minigrid_pixels",
            observation_shape=(self.side, self.side, 3),
            observation_dtype=np.dtype(np.uint8),
        )

    def decode(self, code: Array) -> Array:
        """The picture of a pose."""
        # The barrier keeps the compiler from working out, while it compiles, all that a network
        # makes of a table that it knows.
        table = jax.lax.optimization_barrier(jnp.asarray(_table(self)))
        return table[code]


def draw_frames(world: MiniGridPixels) -> np.ndarray:
    """Every pose's picture [codes, side, side, 3] in the order of the codes, uint8."""
    codes = np.arange(world.num_codes)
    kinds, lit = _kinds(world, codes), _lit(world, codes) & world.highlight
    tiles = np.load(TILES, allow_pickle=False)[lit.astype(int), kinds]  # [codes, y, x, side, ...]
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(len(codes), world.side, world.side, 3)


@lru_cache(maxsize=8)
def _table(world: MiniGridPixels) -> np.ndarray:
    """The frames, drawn once for each world; nobody may write into them."""
    frames = draw_frames(world)
    frames.flags.writeable = False
    return frames


def _kinds(world: MiniGridPixels, codes: np.ndarray) -> np.ndarray:
    """Which tile lies where [codes, rows, columns], the walls included."""
    room = np.full((world.size, world.size), EMPTY)
    for column, row in world.goals:
        room[row, column] = GOAL
    kinds = np.repeat(np.pad(room, 1, constant_values=WALL)[None], len(codes), axis=0)
    columns, rows, headings = _poses(world, codes)
    agent = np.where(kinds[codes, rows, columns] == GOAL, AGENT_AT_GOAL, AGENT)
    kinds[codes, rows, columns] = agent + headings
    return kinds


def _lit(world: MiniGridPixels, codes: np.ndarray) -> np.ndarray:
    """Whether a tile lies in the agent's view [codes, rows, columns]; walls hide nothing here."""
    column, row, heading = (part[:, None, None] for part in _poses(world, codes))
    y, x = np.indices((world.size + 2, world.size + 2))
    across, down = x - column, y - row
    ahead = across * COLUMN_AHEAD[heading] + down * ROW_AHEAD[heading]
    aside = down * COLUMN_AHEAD[heading] - across * ROW_AHEAD[heading]
    return (ahead >= 0) & (ahead < VIEW_SIDE) & (np.abs(aside) <= VIEW_SIDE // 2)


def _poses(world: MiniGridPixels, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column, row and heading of codes, cells counted with the walls."""
    cells, heading = codes // NUM_HEADINGS, codes % NUM_HEADINGS
    return cells % world.size + 1, cells // world.size + 1, heading
