"""When a run does what: blocks between evaluations, and the tasks of each evaluation."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.environments import Task
from lofo_rl.experiments.pack import Pack
from lofo_rl.types import LofoError


class Block(NamedTuple):
    """A stretch between two evaluations."""

    phase: int  # 1, 2, …
    first_step: int
    warmup: int
    learning: int
    opens: bool  # the phase begins here
    closes: bool  # the phase ends here

    @property
    def last_step(self) -> int:
        return self.first_step + self.warmup + self.learning


def plan(pack: Pack) -> Iterator[Block]:
    """The blocks of a run, in order: a function of the schedule alone."""
    schedule, step, warmup_left = pack.lead.schedule, 0, pack.lead.schedule.warmup
    for phase in pack.lead.phases:
        end = step + phase.steps
        opens = True
        while step < end:
            size = min(schedule.evaluate_every - step % schedule.evaluate_every, end - step)
            warmup = min(warmup_left, size)
            yield Block(phase.number, step, warmup, size - warmup, opens, step + size == end)
            step, warmup_left, opens = step + size, warmup_left - warmup, False


def evaluation_tasks(pack: Pack, phase: int) -> Task:
    """The tasks of one evaluation [E]: every start the world lists, or so many draws."""
    task = pack.lead.environment.evaluation_task(phase)
    episodes = pack.lead.schedule.episodes
    if episodes is not None:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *jnp.shape(x))), task)
    starts = pack.lead.environment.starts(task)
    if starts is None:
        raise LofoError("this world cannot list its starts: give schedule.episodes a number")
    return starts
