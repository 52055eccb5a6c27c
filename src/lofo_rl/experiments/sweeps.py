"""A sweep: one named run under many settings of its buffer, all of them in one program."""

import dataclasses
import itertools
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any

from lofo_rl.buffers import Local
from lofo_rl.experiments.experiment import Buffer, Experiment
from lofo_rl.types import LofoError


@dataclass(frozen=True)
class Axis:
    """A field of the buffer and the values it takes."""

    name: str  # in ids and in figures
    field: str  # of the buffer, with dots: rule.radius
    values: tuple[float, ...]


@dataclass(frozen=True)
class Sweep:
    """A run of the registry under every combination of the values."""

    id: str
    figure: str  # where the paper shows it
    base: str  # the id of the run that it varies
    axes: tuple[Axis, ...]

    def expand(self, base: Experiment) -> tuple[Experiment, ...]:
        """The experiments, which differ in the buffer alone, the last axis varying fastest."""
        return tuple(
            self._at(base, point) for point in itertools.product(*(a.values for a in self.axes))
        )

    def check_kept(self, run: Experiment, changed: Experiment) -> None:
        """Refuses a change of what the sweep varies: the run's id would tell another value."""
        for axis in self.axes:
            was, now = (attrgetter(axis.field)(e.buffer) for e in (run, changed))
            if was != now:
                raise LofoError(
                    f"{run.id} has {axis.name} {was:g}, got {now:g}: name another run of the "
                    f"sweep, or change {self.base}"
                )

    def __len__(self) -> int:
        """How many experiments."""
        return prod(len(axis.values) for axis in self.axes)

    def _at(self, base: Experiment, point: tuple[float, ...]) -> Experiment:
        buffer = base.buffer
        for axis, value in zip(self.axes, point, strict=True):
            buffer = _set(buffer, axis.field.split("."), value)
        named = [(axis.name, value) for axis, value in zip(self.axes, point, strict=True)]
        words = ", ".join(f"{name} {value:g}" for name, value in named)
        buffer = dataclasses.replace(
            buffer,
            name=f"{base.buffer.name}, {words}",
            capacity=base.buffer.capacity * _growth(base.buffer, buffer),
        )
        parts = (f"{name}-{value:g}" for name, value in named)
        return dataclasses.replace(
            base, id="/".join((self.id, *parts)), figure=self.figure, buffer=buffer
        )


def _set(value: Any, path: list[str], new: Any) -> Any:
    """A copy of nested dataclasses with one field changed."""
    first, *rest = path
    if rest:
        new = _set(getattr(value, first), rest, new)
    return dataclasses.replace(value, **{first: new})


def _growth(base: Buffer, buffer: Buffer) -> int:
    """How many times as many samples a buffer may come to hold: a larger limit needs room.

    Every neighborhood fills up to the limit, so occupancy grows at most as the limit does; the
    capacity of a base with the finest radius of the sweep then suffices everywhere.
    """
    if not isinstance(base.rule, Local) or not isinstance(buffer.rule, Local):
        return 1
    return -(-int(buffer.rule.limit) // int(base.rule.limit))
