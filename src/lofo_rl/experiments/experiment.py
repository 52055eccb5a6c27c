"""An experiment is a frozen dataclass: a world, an agent, a buffer, two phases and a schedule."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lofo_rl.agents import Agent, DynaQ
from lofo_rl.buffers import Fifo, Prioritized, Reservoir
from lofo_rl.buffers.rules import Rule
from lofo_rl.environments import Environment
from lofo_rl.functional import (
    Replay,
    Sampler,
    SequenceIndex,
    TransitionIndex,
    Uniform,
    samplers,
)
from lofo_rl.locality import Gradual, Locality
from lofo_rl.types import LofoError

LABELS = ("figure", "name")  # settings that change no number


@dataclass(frozen=True)
class Phase:
    """A stretch of training on one task."""

    number: int
    steps: int
    optimum: float  # the optimal policy's evaluation return
    stale: float  # what the phase-1-optimal policy scores here


@dataclass(frozen=True)
class Schedule:
    """When things happen, in environment steps."""

    warmup: int  # uniformly random steps before any update; they count towards phase 1
    evaluate_every: int
    episodes: int | None  # of one evaluation; None: one from every possible start
    steps_per_update: int = 1
    updates: int = 1  # as often as that
    pretraining: int = 0  # further updates before the first step that learns


@dataclass(frozen=True)
class Buffer:
    """What is remembered, by which rule it is forgotten, and what of it is drawn."""

    name: str  # as figures call it
    rule: Rule
    capacity: int
    locality: Locality | None = None
    locality_steps: int = 0  # random steps that fit the locality: neither counted nor stored
    sampler: Sampler | Prioritized = Uniform()
    window: int | None = None  # steps in a row, for agents that learn from sequences
    num_slots: int | None = None  # of the steps behind the starts; None: all that can be needed
    repeats: bool = False  # windows still growing are drawn too, begun again where they end
    group_by: str | None = None  # a leaf of an item: only samples alike in it are neighbors

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise LofoError(f"the capacity of {self.name} must be at least 1, got {self.capacity}")
        batch_size = getattr(self.locality, "batch_size", 0)
        if self.locality_steps and self.locality_steps < batch_size:
            raise LofoError(
                f"locality_steps of {self.name} must fill a batch of {batch_size}, "
                f"got {self.locality_steps}"
            )
        if isinstance(self.locality, Gradual) and not self.locality_steps:
            raise LofoError(
                f"the locality of {self.name} must learn first: give --buffer.locality-steps, "
                "random steps to fit it to"
            )
        if self.rule.needs_embedding and self.locality is None:
            raise LofoError(
                f"{self.rule} measures distance: give the buffer {self.name} a locality"
            )
        if self.group_by and not self.rule.needs_embedding:
            raise LofoError(
                f"groups divide neighbors, and {self.rule} of {self.name} looks at none: leave out "
                "group_by"
            )
        if isinstance(self.sampler, Prioritized) and self.sampler.beta != 0:
            raise LofoError(
                f"the losses of an experiment are not weighted, so the sampler of {self.name} must "
                f"have beta 0, got {self.sampler.beta}"
            )

    @property
    def replay(self) -> Replay:
        if self.window:
            sizes = self.capacity, self.window, self.num_slots
            return Replay(SequenceIndex(self.rule, *sizes, repeats=self.repeats), self.group_by)
        return Replay(TransitionIndex(self.rule, self.capacity), self.group_by)

    @property
    def embedding_size(self) -> int:
        if not (self.rule.needs_embedding and self.locality):
            return 0
        return self.locality.size


@dataclass(frozen=True)
class Experiment:
    """One named run; everything that decides its numbers is in here."""

    id: str
    figure: str  # where the paper shows it
    environment: Environment
    agent: Agent
    buffer: Buffer
    phases: tuple[Phase, ...]
    schedule: Schedule
    seeds: tuple[int, ...] = tuple(range(10))
    judged: int = 10  # the last evaluations of a phase whose mean is the result
    fraction: float = 1.0  # length over the paper's

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise LofoError(f"seeds must be distinct and at least one, got {self.seeds}")
        if not 0 <= self.schedule.warmup <= self.phases[0].steps:
            raise LofoError(
                f"warm-up of {self.schedule.warmup} steps does not fit into "
                f"phase 1 of {self.phases[0].steps}: choose a smaller --schedule.warmup"
            )
        own, true = getattr(self.agent, "discount", None), self.environment.spec.discount
        if true < 1 and own not in (None, true):  # a sum without discount is nobody's objective
            raise LofoError(f"the agent discounts by {own}, the world by {true}: make them agree")
        wanted = self.agent.appetite.window
        if wanted != self.buffer.window:
            raise LofoError(
                f"the agent learns from windows of {wanted}, the buffer {self.buffer.name} gives "
                f"{self.buffer.window}: set buffer.window to {wanted}"
            )
        if wanted is not None and self.schedule.warmup < wanted:
            raise LofoError(
                f"a warm-up of {self.schedule.warmup} steps completes no window of {wanted}, so "
                "there would be nothing to learn from: lengthen schedule.warmup"
            )
        if self.buffer.group_by == "action" and self.environment.spec.action_size:
            raise LofoError(
                f"group_by of {self.buffer.name} needs actions that can be counted, those of "
                f"{type(self.environment).__name__} are continuous"
            )
        if samplers.needs_errors(self.buffer.sampler) and not hasattr(self.agent, "errors"):
            raise LofoError(
                f"{self.buffer.sampler} needs the agent's errors, but "
                f"{type(self.agent).__name__} has no method `errors`"
            )
        self._check_counts()

    def _check_counts(self) -> None:
        """Every stretch is a whole number of cycles, so that no step is lost."""
        schedule = self.schedule
        stretches = {f"phase {p.number}": p.steps for p in self.phases}
        stretches |= {"evaluate_every": schedule.evaluate_every}
        counts = {"steps_per_update": schedule.steps_per_update, "judged": self.judged}
        counts |= {"updates": schedule.updates}
        counts |= {} if schedule.episodes is None else {"episodes": schedule.episodes}
        for name, value in (counts | stretches).items():
            if value < 1:
                raise LofoError(f"{name} must be at least 1, got {value}")
        for name, value in (stretches | {"warm-up": schedule.warmup}).items():
            if value % schedule.steps_per_update:
                raise LofoError(
                    f"{name} must be a multiple of the {schedule.steps_per_update} steps "
                    f"per update, got {value}"
                )

    @property
    def common(self) -> tuple[Any, ...]:
        """What experiments must share to run in one program."""
        traits = dict.fromkeys(getattr(self.agent, "traits", ()), None)
        agent = dataclasses.replace(self.agent, **traits) if traits else self.agent  # type: ignore[type-var]  # a protocol cannot say that it is a dataclass
        return self.environment, agent, self.phases, self.schedule


def shorten(experiment: Experiment, fraction: float, *, keep_limit: bool = False) -> Experiment:
    """The experiment at a fraction of its length: phases, FIFO and reservoir capacities, limit.

    A neighborhood that keeps few samples may hold none of an action its policy does not favour;
    where that matters, `keep_limit` leaves the limit as it is. Evaluations come more often if the
    judged ones would else fill more than half of a phase, and judge how it was learnt as well.
    """
    if not 0 < fraction <= 1:
        raise LofoError(f"a fraction lies in (0, 1], got {fraction}")
    cycle = experiment.schedule.steps_per_update
    phases = tuple(
        dataclasses.replace(p, steps=cycle * max(1, round(p.steps * fraction / cycle)))
        for p in experiment.phases
    )
    buffer = experiment.buffer
    if isinstance(buffer.rule, Fifo | Reservoir):
        capacity = max(1, round(buffer.capacity * fraction))
        name = f"{buffer.name} x {fraction:g}"  # else a "FIFO 3e4" would hold fewer than 3e4
        buffer = dataclasses.replace(buffer, name=name, capacity=capacity)
    elif hasattr(buffer.rule, "limit"):  # Local's, or that of one's own rule
        limit = max(1, round(int(buffer.rule.limit) * (1 if keep_limit else fraction)))
        # a step and perhaps a closing row each: more slots are never needed
        most = max(buffer.window or 1, 2 * sum(p.steps for p in phases))
        num_slots = buffer.num_slots and min(buffer.num_slots, most)
        rule = dataclasses.replace(buffer.rule, limit=limit)  # type: ignore[type-var]  # a protocol cannot say that it is a dataclass
        buffer = dataclasses.replace(buffer, rule=rule, num_slots=num_slots)
    schedule, shortest = experiment.schedule, min(p.steps for p in phases)
    often = cycle * max(1, shortest // (2 * experiment.judged * cycle))
    schedule = dataclasses.replace(schedule, evaluate_every=min(schedule.evaluate_every, often))
    total = experiment.fraction * fraction
    return dataclasses.replace(
        experiment, phases=phases, buffer=buffer, schedule=schedule, fraction=total
    )


def configuration(value: Any) -> Any:
    """Plain data that says everything about a frozen dataclass, for records and comparison."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {name: configuration(getattr(value, name)) for name in names}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [configuration(v) for v in value]
    if isinstance(value, np.generic):  # a number all the same
        return value.item()
    return value


def difference(old: Any, new: Any, path: str = "") -> str:
    """The first place where two configurations differ, in words; empty if they do not."""
    if isinstance(old, dict) and isinstance(new, dict):
        # What came later and is off changes nothing.
        lonely = sorted(n for n in old.keys() ^ new.keys() if old.get(n) or new.get(n))
        if lonely:
            return f"{f'{path}.{lonely[0]}'.lstrip('.')} is known to one side only"
        names = (name for name in old if name in new and name not in LABELS)
        parts = (difference(old[name], new[name], f"{path}.{name}") for name in names)
        return next(filter(None, parts), "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        parts = (difference(o, n, f"{path}[{i}]") for i, (o, n) in pairs)
        return next(filter(None, parts), "")
    return "" if old == new else f"{path.lstrip('.') or 'it'} was {old}, now {new}"


def doubt(experiment: Experiment) -> str | None:
    """What a run cannot show, whatever its buffer: known before it begins.

    A bootstrapped value that nothing supports any more fades only by the discount with each copy of
    the target network where an agent can wait: a turn on the spot is worth nearly what the spot is.
    The promises nearest to T1 take twice as long as the mean one.
    """
    agent, schedule = experiment.agent, experiment.schedule
    if not isinstance(agent, DynaQ) or len(experiment.phases) < 2:
        return None
    before, after = experiment.phases[:2]
    if not 0 < after.optimum < before.optimum or not 0 < agent.discount < 1:
        return None
    num_updates = after.steps // schedule.steps_per_update * schedule.updates
    num_copies = num_updates // agent.target_period
    needed = math.ceil(math.log(before.optimum / after.optimum) / -math.log(agent.discount))
    if num_copies >= 2 * needed:
        return None
    return (
        f"phase {after.number} copies the target network only {num_copies} times. Values that "
        f"phase {before.number} left take {needed} to {2 * needed} copies to fall below what there "
        f"is now, so this run may look as if it did not adapt, whatever its buffer. Choose a "
        f"smaller --agent.target-period than {agent.target_period}, such as "
        f"{max(1, num_updates // (4 * needed))}."
    )
