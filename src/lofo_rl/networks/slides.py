"""A kernel that slides over pictures: its geometry, and how programs of a GPU share the work."""

from dataclasses import dataclass
from typing import NamedTuple

SMALLEST = 16  # no side of a product on tensor cores may be shorter


class Plan(NamedTuple):
    """How a kernel is run: it changes the time alone."""

    places: int = 64  # that a program takes at a time
    warps: int = 4
    stages: int = 1  # steps that are fetched ahead; 1: no loop, and the compiler orders them
    columns: int = 128  # numbers of a drawn block that a program takes
    programs: int = 132  # that share the places of one gradient


# By kernel, stride, depth and size: what the paper's MiniGrid wants other than the defaults.
PLANS = {
    ("read", 2, 1, 32, 32): Plan(128),
    ("read", 2, 1, 48, 32): Plan(128),
    ("draw", 2, 1, 32, 32): Plan(128),
    ("draw", 6, 4, 32, 64): Plan(128, 8, 3),
}
DEFAULTS = {"read": Plan(stages=3), "draw": Plan(), "learn": Plan(stages=3)}


@dataclass(frozen=True)
class Slide:
    """A square kernel that slides over pictures, and the numbers that belong to its places."""

    pictures: tuple[int, ...]  # count, height, width, depth
    kernel: int
    stride: int
    size: int  # numbers of a place
    interpret: bool = False  # run the kernels' meaning on any device, slowly

    @property
    def places(self) -> tuple[int, int, int]:
        """Count, rows and columns of places."""
        count, *sides, _ = self.pictures
        rows, columns = ((n - self.kernel) // self.stride + 1 for n in sides)
        return count, rows, columns

    @property
    def reach(self) -> int:
        """Blocks of `stride` that a kernel covers."""
        return -(-self.kernel // self.stride)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Count, rows and columns of the blocks that pictures are drawn of."""
        count, height, width, _ = self.pictures
        return count, -(-height // self.stride), -(-width // self.stride)

    @property
    def run(self) -> int:
        """Numbers of one row under the kernel: they lie side by side in a picture."""
        return self.kernel * self.pictures[-1]

    @property
    def piece(self) -> int:
        """Numbers of such a row that are fetched at a time."""
        power = self.run & -self.run  # the largest that goes into it
        return min(power, 64) if power >= SMALLEST else min(padded(self.run), 64)

    def plan(self, kind: str) -> Plan:
        """For reading, drawing or learning."""
        shape = self.kernel, self.stride, self.pictures[-1], self.size
        return PLANS.get((kind, *shape), DEFAULTS[kind])


def padded(size: int) -> int:
    """The power of two that a program makes of a size."""
    return max(SMALLEST, 1 << (size - 1).bit_length())
