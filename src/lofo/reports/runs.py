"""The runs of some folders as arrays: what every table and figure is made from.

Invariant: the numbers of one seed of one run come from one folder. Folders that hold different
seeds of the same run are put together; anything else under the same id is refused.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lofo.records import Row, read
from lofo.types import LofoError

# What T1 and T2 truly pay in each phase: the LoCA tasks A and B, the same in every world.
TRUE_REWARDS = {1: (4.0, 2.0), 2: (1.0, 2.0)}

UNKNOWN = "-"  # stands in tables where there is no number


class Stretch(NamedTuple):
    """A phase as the settings plan it, in steps since the run began."""

    number: int
    start: int
    end: int
    optimum: float
    stale: float  # what the phase-1-optimal policy scores here
    evaluations: tuple[int, ...]  # the steps at which a finished run was evaluated


class Curve(NamedTuple):
    """One metric of one run over one phase."""

    steps: np.ndarray  # [E] int, since the run began
    values: np.ndarray  # [S, E] float, NaN where a number is missing or was not finite

    @property
    def mean(self) -> np.ndarray:
        return mean_of_known(self.values, axis=0)

    @property
    def standard_error(self) -> np.ndarray:
        """Over seeds; zero where only one is known, so that a band can be drawn."""
        known = np.isfinite(self.values).sum(axis=0)
        squares = np.where(np.isfinite(self.values), (self.values - self.mean) ** 2, 0.0)
        return np.sqrt(squares.sum(axis=0) / np.maximum(known - 1, 1) / np.maximum(known, 1))


@dataclass(frozen=True)
class Run:
    """One experiment with all its seeds."""

    settings: dict[str, Any]  # the experiment's configuration
    world: str  # the panel it belongs to
    name: str  # its buffer, told apart from the others of that world
    seeds: tuple[int, ...]
    curves: dict[tuple[int, str], Curve]  # by phase and metric
    maps: dict[int, tuple[tuple[Path, str], ...]]  # by phase: folder and array file

    @property
    def id(self) -> str:
        return self.settings["id"]

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(_stretches(self.settings))

    @property
    def label(self) -> str:
        return label(self.settings)

    def curve(self, phase: int, metric: str) -> Curve:
        empty = Curve(np.zeros(0, int), np.zeros((len(self.seeds), 0)))
        return self.curves.get((phase, metric), empty)


class _Part(NamedTuple):
    """What one folder knows of one run."""

    folder: Path
    settings: dict[str, Any]
    rows: list[Row]


def load(folders: Iterable[Path]) -> list[Run]:
    """Every run of the folders, in the order of their first mention."""
    parts: dict[str, list[_Part]] = {}
    for folder in dict.fromkeys(Path(f).resolve() for f in folders):
        for part in _parts(folder):
            parts.setdefault(part.settings["id"], []).append(part)
    if not parts:
        raise LofoError("no run folders given: name at least one that holds rows")
    for several in parts.values():
        _refuse_conflict(several)
    everyone = [several[0].settings for several in parts.values()]
    return [_join(several, everyone) for several in parts.values()]


def mean_of_known(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean of what is finite; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    count = known.sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def compact(count: float) -> str:
    """A count with a suffix: 950, 4.96k, 1.5M."""
    if not np.isfinite(count):
        return UNKNOWN
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def label(settings: dict[str, Any]) -> str:
    """A buffer's name with the numbers that set it apart."""
    buffer = settings["buffer"]
    rule = buffer["rule"]
    # The capacity of local forgetting is head room, never reached: its limit and radius say more.
    if rule["is"] == "Local":
        details = [f"limit {rule['limit']:g}", f"radius {rule['radius']:g}"]
    else:
        details = [compact(buffer["capacity"])]
    if settings["fraction"] != 1:
        details.append(f"{100 * settings['fraction']:.3g} % length")
    return f"{buffer['name']} ({', '.join(details)})"


def _parts(folder: Path) -> Iterator[_Part]:
    headers, rows = read(folder)
    settings: dict[str, dict[str, Any]] = {}
    for header in headers:
        for experiment in header.get("experiments", []):
            if settings.setdefault(experiment["id"], experiment) != experiment:
                raise LofoError(f"{folder} gives {experiment['id']} with two different settings")
    if not rows or not settings:
        what = "rows" if settings else "header that names its experiments"
        raise LofoError(f"{folder} holds no {what}: start the run, or name another folder")
    sorted_rows: dict[str, list[Row]] = {name: [] for name in settings}
    for row in rows:
        if row.run not in sorted_rows:
            raise LofoError(f"{folder} holds rows of {row.run}, which none of its headers names")
        sorted_rows[row.run].append(row)
    beside = folder.parent if folder.suffix == ".jsonl" else folder  # where array files lie
    return (_Part(beside, settings[name], sorted_rows[name]) for name in settings)


def _refuse_conflict(parts: list[_Part]) -> None:
    """One run in several folders: the same settings, each seed in one of them only."""
    first, *others = parts
    owner = dict.fromkeys(first.settings["seeds"], first.folder)
    for part in others:
        if difference := sorted(_different(first.settings, part.settings) - {"seeds"}):
            raise LofoError(
                f"{first.folder} and {part.folder} both hold {part.settings['id']} but differ in "
                f"{', '.join(difference)}: report them apart, or give one another id"
            )
        for seed in part.settings["seeds"]:
            if seed in owner:
                raise LofoError(
                    f"seed {seed} of {part.settings['id']} is in {owner[seed]} and in "
                    f"{part.folder}: name only one of them"
                )
            owner[seed] = part.folder


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _join(parts: list[_Part], everyone: list[dict[str, Any]]) -> Run:
    settings = parts[0].settings
    seeds = tuple(seed for part in parts for seed in part.settings["seeds"])
    neighbours = [s for s in everyone if _world_key(s) == _world_key(settings)]
    return Run(
        settings=settings | {"seeds": list(seeds)},
        world=_world(settings, everyone),
        name=_name(settings, neighbours),
        seeds=seeds,
        curves=_curves([row for part in parts for row in part.rows], seeds),
        maps=_maps(parts),
    )


def _curves(rows: list[Row], seeds: tuple[int, ...]) -> dict[tuple[int, str], Curve]:
    """Rows as arrays; rows of seeds that no settings name (such as timings) are left out."""
    number = {seed: i for i, seed in enumerate(seeds)}
    cells: dict[tuple[int, str], dict[tuple[int, int], float]] = {}
    for row in rows:
        if row.seed in number and not isinstance(row.value, str):
            value = np.nan if row.value is None else row.value
            cells.setdefault((row.phase, row.metric), {})[number[row.seed], row.step] = value
    return {key: _curve(values, len(seeds)) for key, values in cells.items()}


def _curve(cells: dict[tuple[int, int], float], num_seeds: int) -> Curve:
    steps = sorted({step for _, step in cells})
    column = {step: i for i, step in enumerate(steps)}
    values = np.full((num_seeds, len(steps)), np.nan)
    for (seed, step), value in cells.items():
        values[seed, column[step]] = value
    return Curve(np.asarray(steps), values)


def _maps(parts: list[_Part]) -> dict[int, tuple[tuple[Path, str], ...]]:
    """The array files that are there: a published record may leave them out."""
    found: dict[int, dict[tuple[Path, str], None]] = {}
    for part in parts:
        for row in part.rows:
            if row.metric == "maps" and (part.folder / str(row.value)).exists():
                found.setdefault(row.phase, {})[part.folder, str(row.value)] = None
    return {phase: tuple(files) for phase, files in found.items()}


def _stretches(settings: dict[str, Any]) -> Iterator[Stretch]:
    every, start = settings["schedule"]["evaluate_every"], 0
    for phase in settings["phases"]:
        end = start + phase["steps"]
        regular = range((start // every + 1) * every, end, every)
        evaluations = (*regular, end)
        yield Stretch(phase["number"], start, end, phase["optimum"], phase["stale"], evaluations)
        start = end


def _world_key(settings: dict[str, Any]) -> str:
    shared = settings["environment"], settings["agent"]["is"], settings["phases"]
    return json.dumps(shared, sort_keys=True)


def _world(settings: dict[str, Any], everyone: list[dict[str, Any]]) -> str:
    """World and agent; where that fits two panels, what sets them apart."""
    title = _title(settings)
    alike = [s for s in everyone if _title(s) == title and _world_key(s) != _world_key(settings)]
    mine = settings["environment"]
    names = {n for s in alike for n in _different(mine, s["environment"])}
    words = [f"{n} {mine.get(n)}" for n in sorted(names)]
    if any(s["phases"] != settings["phases"] for s in alike):
        words.append(" + ".join(compact(p["steps"]) for p in settings["phases"]) + " steps")
    return f"{title} ({', '.join(words)})" if words else title


def _title(settings: dict[str, Any]) -> str:
    return f"{settings['environment']['is']}, {settings['agent']['is']}"


def _name(settings: dict[str, Any], neighbours: list[dict[str, Any]]) -> str:
    """The shortest of name, label and label with id that no neighbour has too."""
    name = settings["buffer"]["name"]
    others = [s for s in neighbours if s["id"] != settings["id"]]
    if all(s["buffer"]["name"] != name for s in others):
        return name
    if all(label(s) != label(settings) for s in others):
        return label(settings)
    return f"{label(settings)}, {settings['id']}"
