"""Takes the tiles of MiniGridLoCA from the MiniGrid package; run it to write the data file anew.

    python tests/parity/minigrid_tiles.py

A tile is what the package draws in one cell: empty floor, wall, goal, and the agent under its four
headings on the floor and on a goal; each plain and lightened by the agent's view.
"""

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Goal, Wall
from minigrid.minigrid_env import MiniGridEnv

from lofo_rl.environments.minigrid import NUM_HEADINGS, MiniGrid
from lofo_rl.environments.minigrid_pixels import TILE_SIDE, TILES


class Room(MiniGridEnv):
    """A room of the package with the walls and goals of a world of ours."""

    def __init__(self, world: MiniGrid) -> None:
        self.world = world
        side = world.size + 2
        mission = MissionSpace(lambda: "")
        super().__init__(mission, width=side, height=side, max_steps=10**6)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        for column, row in self.world.goals:
            self.put_obj(Goal(), column + 1, row + 1)
        self.mission = ""
        self.put_agent(0)

    def put_agent(self, code: int) -> None:
        """Puts the agent into the pose of a code."""
        cell, self.agent_dir = divmod(code, NUM_HEADINGS)
        row, column = divmod(cell, self.world.size)
        self.agent_pos = np.array((column + 1, row + 1))

    def agent_code(self) -> int:
        """The code of the agent's pose."""
        column, row = (int(part) - 1 for part in self.agent_pos)
        return (row * self.world.size + column) * NUM_HEADINGS + int(self.agent_dir)

    def picture(self, code: int, highlight: bool) -> np.ndarray:
        """What the package shows of the whole room with the agent in a pose."""
        self.put_agent(code)
        return self.get_frame(highlight=highlight, tile_size=TILE_SIDE)


def take_tiles() -> np.ndarray:
    """The tiles in the order that the world expects, [plain or lit, kinds, side, side, 3] uint8."""
    headings = range(NUM_HEADINGS)
    kinds = [(None, None), (Wall(), None), (Goal(), None)]
    kinds += [(None, heading) for heading in headings] + [(Goal(), heading) for heading in headings]
    tiles = [
        [
            Grid.render_tile(thing, heading, highlight=lit, tile_size=TILE_SIDE)
            for thing, heading in kinds
        ]
        for lit in (False, True)
    ]
    return np.array(tiles).astype(np.uint8)  # the package truncates the means of a tile likewise


if __name__ == "__main__":
    np.save(TILES, take_tiles(), allow_pickle=False)
