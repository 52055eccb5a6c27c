"""Pictures of a state in plain NumPy, for people to look at: nobody learns from them.

A world whose observation is a picture shows that picture, larger; one of which nothing is known
here shows the cell of its chart.
"""

from functools import lru_cache
from typing import Any

import jax
import numpy as np

from lofo_rl.adapters.kinds import is_picture, views
from lofo_rl.environments import Car, MiniGrid, MountainCar, Pose, World
from lofo_rl.environments.minigrid import COLUMN_AHEAD, ROW_AHEAD
from lofo_rl.environments.mountaincar import HIGH, LOW, T2_CENTRE, T2_RADIUS, ZONE_LOW
from lofo_rl.types import Tree

PAPER, INK = (250, 250, 247), (60, 60, 70)
GROUND, WALL, LINE = (205, 203, 196), (110, 110, 115), (228, 227, 222)
T1, T2, ZONE = (196, 78, 82), (85, 138, 90), (240, 208, 205)
AGENT = (48, 98, 160)

CAR_SIZE = 400, 600  # height, width
CAR_RADIUS, CAR_LIFT = 13, 13  # pixels
ARROW = 1200.0  # pixels for a unit of velocity
TILE = 40  # pixels
CHART_CELL = 24  # pixels
WANTED = 384  # pixels: small observations are enlarged to about this


def picture(world: World, physical: Tree) -> np.ndarray:
    """A state as [height, width, 3] uint8; leaves of `physical` are NumPy arrays of one state."""
    if isinstance(world, MountainCar):
        return _car(physical)
    if isinstance(world, MiniGrid):
        return _room(world, physical)
    observe, cell = _programs(world)
    if observe is None:
        return _chart(world, int(cell(physical)))
    seen = np.asarray(observe(physical))
    times = max(1, round(WANTED / seen.shape[0]))
    return seen.repeat(times, axis=0).repeat(times, axis=1)


def _car(car: Car) -> np.ndarray:
    """A disc on the hill, with an arrow as long as it is fast."""
    frame = _hill().copy()
    row, column = _hill_point(float(car.position))
    rows, columns = np.indices(CAR_SIZE)
    row -= CAR_LIFT
    reach = ARROW * float(car.velocity)
    along = (columns - column) / reach if reach else np.full(CAR_SIZE, -1.0)
    frame[(along > 0.0) & (along < 1.0) & (abs(rows - row) < 3)] = INK
    frame[(rows - row) ** 2 + (columns - column) ** 2 < CAR_RADIUS**2] = AGENT
    return frame


@lru_cache(maxsize=1)
def _hill() -> np.ndarray:
    """The slope, with the T1-zone up on the right and T2 in the valley."""
    height, width = CAR_SIZE
    frame = np.full((height, width, 3), PAPER, np.uint8)
    columns = np.arange(width)
    position = LOW[0] + (HIGH[0] - LOW[0]) * columns / (width - 1)
    depth = np.arange(height)[:, None] - _hill_point(position)[0]
    in_zone, in_t2 = position >= ZONE_LOW[0], abs(position - T2_CENTRE) <= T2_RADIUS
    frame[depth >= 0.0] = GROUND
    frame[(depth >= 0.0) & in_zone] = ZONE
    frame[(depth >= 0.0) & (depth < 10.0) & in_t2] = T2
    frame[(depth >= 0.0) & (columns >= width - 8)] = T1
    frame[(depth >= 0.0) & (depth < 3.0) & ~in_t2] = INK
    return frame


def _hill_point(position: Any) -> tuple[Any, Any]:
    """Row and column of a position: the height whose slope is the car's gravity."""
    height, width = CAR_SIZE
    row = height * (0.62 - 0.33 * np.sin(3.0 * position))
    return row, (position - LOW[0]) / (HIGH[0] - LOW[0]) * (width - 1)


def _room(world: MiniGrid, pose: Pose) -> np.ndarray:
    """A triangle in a walled room."""
    frame = _empty_room(world).copy()
    top, left = (TILE * (1 + int(place)) for place in (pose.row, pose.column))
    tile = frame[top : top + TILE, left : left + TILE]
    rows, columns = (np.indices((TILE, TILE)) + 0.5) / TILE - 0.5
    heading = int(pose.heading)
    ahead = columns * COLUMN_AHEAD[heading] + rows * ROW_AHEAD[heading]
    aside = columns * ROW_AHEAD[heading] - rows * COLUMN_AHEAD[heading]
    tile[(ahead > -0.36) & (abs(aside) < 0.4 * (0.38 - ahead))] = AGENT
    return frame


@lru_cache(maxsize=8)
def _empty_room(world: MiniGrid) -> np.ndarray:
    num = world.size + 2
    cells = np.full((num, num, 3), WALL, np.uint8)
    cells[1:-1, 1:-1] = PAPER
    across, down = (slice(1 + first, 1 + first + world.zone_size) for first in world.zone_corner)
    cells[down, across] = ZONE
    for (column, row), colour in zip(world.goals, (T1, T2), strict=True):
        cells[1 + row, 1 + column] = colour
    frame = cells.repeat(TILE, axis=0).repeat(TILE, axis=1)
    inner = slice(TILE, -TILE)
    frame[TILE:-TILE:TILE, inner] = frame[inner, TILE:-TILE:TILE] = LINE
    return frame


def _chart(world: World, cell: int) -> np.ndarray:
    """The cells of a world's chart, with the one that the state lies in."""
    chart = world.chart()
    blank = np.asarray(chart.blank).reshape(chart.shape)
    cells = np.where(blank[..., None], GROUND, PAPER).astype(np.uint8)
    cells.reshape(-1, 3)[cell] = AGENT
    if chart.extent[2] < chart.extent[3]:  # the first row of cells is the lowest
        cells = cells[::-1]
    frame = cells.repeat(CHART_CELL, axis=0).repeat(CHART_CELL, axis=1)
    frame[::CHART_CELL] = frame[:, ::CHART_CELL] = LINE
    return frame


@lru_cache(maxsize=16)
def _programs(world: World) -> tuple[Any, Any]:
    """State to picture, if the world has one, and state to the cell of the chart, compiled once."""
    seen = [view.world for view in views(world).values() if is_picture(view.world)]
    observe = (lambda physical: seen[0].decode(seen[0].encode(physical))) if seen else None
    cell = jax.jit(lambda physical: world.cell(world.encode(physical)))
    return observe and jax.jit(observe), cell
