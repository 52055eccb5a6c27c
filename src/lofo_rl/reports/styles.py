"""How runs look, the same in every figure: a family of colours for each rule of forgetting.

Local forgetting is blue, then violet, FIFO runs from yellow to brown, reservoirs are green; within
FIFO and reservoir a larger buffer is darker. A buffer of one name looks the same in every world and
length.
"""

import re
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from matplotlib.colors import LinearSegmentedColormap, to_hex

from lofo_rl.reports.names import last_part
from lofo_rl.reports.runs import Key, Run

# Okabe and Ito's colours, safe for colour-blind readers, and shades around them.
LOCAL = (  # those that are hard to tell from the first come last
    *("#0072B2", "#56B4E9", "#1B2F6B", "#7A6FC7", "#AA4499", "#C39BD3"),
    *("#88CCEE", "#332288"),
)
BY_SIZE = {  # from light to dark; the third stands for a family of one
    "Fifo": ("#F5C77E", "#E69F00", "#D55E00", "#7F2704"),
    "Reservoir": ("#C5DF86", "#7FB800", "#009E73", "#00523B"),
}
OTHERS = ("#CC79A7", "#882255", "#F0E442", "#999933")
LINES: tuple[Any, ...] = (
    *("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1))),
    *((0, (7, 2)), (0, (3, 1)), (0, (9, 2, 2, 2))),
)
FIRST_LINE = {"Local": 0, "Fifo": 1, "Reservoir": 5}
FAMILIES = ("Local", *BY_SIZE)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Style(NamedTuple):
    """A run's line."""

    color: str
    linestyle: Any


def family(run: Run) -> str:
    """The rule of forgetting: runs of one family share a hue."""
    return run.settings["buffer"]["rule"]["is"]


def full_size(run: Run) -> float:
    """The capacity the buffer has, or would have, at the paper's length."""
    return run.settings["buffer"]["capacity"] / run.settings["fraction"]


def by_world(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each panel: local forgetting first, then FIFO and reservoir from the largest.

    Runs of local forgetting whose labels differ in numbers alone go from small to large.
    """
    return {world: _by_numbers(own) for world, own in _by_family(runs).items()}


def _by_family(runs: Sequence[Run]) -> dict[str, list[Run]]:
    worlds: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_order):
        worlds.setdefault(run.world, []).append(run)
    return {world: worlds[world] for world in dict.fromkeys(run.world for run in runs)}


def styles(runs: Sequence[Run]) -> dict[Key, Style]:
    """A look for each run, by its key; ask for all runs at once, even to draw a few of them."""
    numbers: dict[tuple[str, str], int] = {}
    # The fullest panel numbers its buffers by size; the others follow it.
    # Others are numbered as they were named, the plain one (`lofo`, not `lofo-...`) before all.
    for own in sorted(_by_family(runs).values(), key=len, reverse=True):
        keys = [(family(run), run.member) for run in own]
        for run, key in sorted(zip(own, keys, strict=True), key=lambda pair: _size_order(pair[0])):
            taken = {numbers[k] for k in keys if k in numbers and k[0] == family(run)}
            numbers.setdefault(key, next(n for n in count() if n not in taken))
    sizes = {kind: 1 + max(n for (k, _), n in numbers.items() if k == kind) for kind, _ in numbers}
    return {
        run.key: _style(family(run), numbers[family(run), run.member], sizes[family(run)])
        for run in runs
    }


def _by_numbers(runs: list[Run]) -> list[Run]:
    stems = [NUMBER.sub("#", run.label) for run in runs]

    def place(k: int) -> tuple[int, list[float]]:
        if family(runs[k]) in BY_SIZE:
            return k, []
        return stems.index(stems[k]), [float(n) for n in NUMBER.findall(runs[k].label)]

    return [runs[k] for k in sorted(range(len(runs)), key=place)]


def _order(run: Run) -> tuple[int, float]:
    kind = family(run)
    place = FAMILIES.index(kind) if kind in FAMILIES else len(FAMILIES)
    return place, -full_size(run) if kind in BY_SIZE else 0.0


def _size_order(run: Run) -> float:
    return full_size(run) if family(run) in BY_SIZE else float("-" in last_part(run.id))


def _style(kind: str, number: int, num_members: int) -> Style:
    line = LINES[(FIRST_LINE.get(kind, 2) + number) % len(LINES)]
    if kind in BY_SIZE:
        return Style(_shade(BY_SIZE[kind], number, num_members), line)
    colours = LOCAL if kind == "Local" else OTHERS
    return Style(colours[number % len(colours)], line)


def _shade(ramp: tuple[str, ...], number: int, num_members: int) -> str:
    """One of the ramp's own colours while they are enough, else one between them."""
    if num_members > len(ramp):
        between = LinearSegmentedColormap.from_list("shades", ramp)
        return to_hex(between(number / (num_members - 1))).upper()
    first = {1: 2, len(ramp): 0}.get(num_members, 1)
    return ramp[first + number]
