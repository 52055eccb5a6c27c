"""What several files share: a tiny pack of runs, and an agent that only counts."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.agents import DynaQ
from lofo_rl.agents.base import Appetite
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MiniGrid
from lofo_rl.experiments import Buffer, Experiment, Pack, Phase, Schedule, loop, run
from lofo_rl.locality import Handcrafted
from lofo_rl.networks import IDENTITY, MLP
from lofo_rl.records import ROWS

COMPILED = ("init", "switch", "advance", "judge", "picture")  # the programs of one pack


MOST_MAPPINGS = 40_000  # Linux lets a process have 65 530 by default


@pytest.fixture(autouse=True)
def few_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop compiled programs before they use up the memory mappings that a process may have."""
    yield
    if request.node.get_closest_marker("slow"):  # these compile the most
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def few_mappings() -> Iterator[None]:
    """The same after each file of tests, if it is time."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()


def tiny_pack() -> Pack:
    """Two buffers, two seeds, two phases of unequal blocks: all a run does, in a fifth of a second.

    The handcrafted locality is given steps it does not need, so that there are rows of phase 0.
    """
    world = MiniGrid(size=4, time_limit=20)
    agent = DynaQ(
        world.spec.observation_shape,
        world.spec.num_actions,
        encoder=IDENTITY,
        head=MLP((8, 8), "relu"),
        value=MLP((8, 8), "relu"),
        model_learning_rate=2e-3,
        value_learning_rate=1e-3,
        target_period=1,
        num_model_updates=1,
        num_planning_updates=1,
        batch_size=8,
        one_hot_action=True,
        stack_model=False,
    )
    phases = Phase(1, 300, optimum=3.8, stale=3.8), Phase(2, 250, optimum=1.8, stale=0.9)
    schedule = Schedule(warmup=50, evaluate_every=100, episodes=None)
    hand = Handcrafted((1.0,) * world.spec.observation_shape[0])
    buffers = {
        "lofo": Buffer("LoFo", Local(0.5, 3), 200, hand, 64),
        "fifo": Buffer("FIFO", Fifo(), 150),
    }
    return Pack(
        tuple(
            Experiment(f"tiny/{name}", "none", world, agent, buffer, phases, schedule, (0, 1), 2)
            for name, buffer in buffers.items()
        )
    )


@dataclass(frozen=True)
class Walker:
    """An agent that only counts: updates in its state, steps of the episode in its memory."""

    bad_update: int = 0  # from this update on its loss is not a number; 0: it always is
    traits: ClassVar = ("bad_update",)

    @property
    def appetite(self) -> Appetite:
        return Appetite(1, 4)

    def init(self, key: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def begin(self) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(self, state: Any, memory: Any, observation: Any, key: Any, *, explore: bool) -> Any:
        return (memory % 3 if not explore else jax.random.randint(key, (), 0, 3)), memory + 1

    def update(self, state: Any, batches: Any, key: Any) -> Any:
        is_bad = (self.bad_update > 0) & (state + 1 >= self.bad_update)
        return state + 1, {"loss": jnp.where(is_bad, jnp.nan, 1.0)}


def walk(**changes: Any) -> Experiment:
    """A run of the counting agent, two steps to an update."""
    plain = Experiment(
        id="walk/fifo",
        figure="none",
        environment=MiniGrid(size=4, time_limit=7),
        agent=Walker(),
        buffer=Buffer("FIFO", Fifo(), 64),
        phases=(Phase(1, 100, 1.0, 1.0), Phase(2, 60, 1.0, 1.0)),
        schedule=Schedule(warmup=0, evaluate_every=50, episodes=2, steps_per_update=2),
        seeds=(0, 1),
    )
    return replace(plain, **changes)


class Finished(NamedTuple):
    """A run of the tiny pack that nothing interrupted."""

    pack: Pack
    folder: Path  # not to be written to
    compiled: dict[str, int]  # programs that the run compiled, by name


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    pack, folder = tiny_pack(), tmp_path_factory.mktemp("finished")
    before = program_counts()
    run(pack, folder, checkpoint_seconds=0)
    after = program_counts()
    return Finished(pack, folder, {name: after[name] - before[name] for name in COMPILED})


@contextmanager
def compilations() -> Iterator[Counter[str]]:
    """Counts what jax compiles meanwhile, by the function's name."""
    if not hasattr(jax.monitoring, "unregister_event_duration_listener"):
        pytest.skip("this jax does not say which functions it compiles")
    counted: Counter[str] = Counter()

    def count(event: str, _duration: float, **of: Any) -> None:
        if event.endswith("backend_compile_duration"):
            counted[of["fun_name"].removeprefix("jit(").removesuffix(")")] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def program_counts() -> dict[str, int]:
    """How many programs each compiled function of the loop holds."""
    return {name: getattr(loop, name)._cache_size() for name in COMPILED}


def assert_nothing_compiled(before: dict[str, int], finished: Finished) -> None:
    """No program more than before, or than a run needs, should they have been dropped."""
    after = program_counts()
    assert all(after[name] <= max(before[name], finished.compiled[name]) for name in COMPILED), (
        after
    )


def result_lines(folder: Path) -> list[bytes]:
    """The rows as bytes, without what may differ from one execution to the next."""
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    return [x for x in lines if not x.startswith(b'{"header"') and b'"timing/' not in x]


def values(folder: Path) -> dict[tuple[str, int, int, str], float | str | None]:
    """Every row's value by run, seed, step and metric."""
    rows = map(json.loads, result_lines(folder))
    return {(r["run"], r["seed"], r["step"], r["metric"]): r["value"] for r in rows}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
