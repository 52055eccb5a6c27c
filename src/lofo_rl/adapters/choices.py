"""What one may ask of a Gymnasium environment of ours, and what a wrong wish is answered.

Nothing here runs an episode: a world by its name, the kinds of observation it has, its spaces, and
the phase that is played now and next.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from lofo_rl import environments
from lofo_rl.adapters.kinds import View, is_picture, setting_names, views
from lofo_rl.adapters.programs import PHASES, Programs, programs
from lofo_rl.environments import Task, World

RESET_OPTIONS = ("phase", "evaluation")
# name in the id -> its classes in lofo_rl.environments, each with kinds of observation of its own
NAMES = {
    "MountainCarLoCA": ("MountainCar",),
    "MiniGridLoCA": ("MiniGrid", "MiniGridPixels"),
    "ReacherLoCA": ("Reacher",),
    "RandomizedReacherLoCA": ("RandomizedReacher",),
}


class Played(NamedTuple):
    """Which task: the rewards of a phase, and the starts of training or of evaluation."""

    phase: int
    evaluation: bool


class Stage:
    """The task that is played and the one that comes; a switch cuts the episodes that run."""

    def __init__(self, view: View, played: Played, device: str | None) -> None:
        self.device = device_of(device)
        self.programs: Programs = programs(*view, self.device)
        self.observation_space = observation_space(view)
        self.action_space = action_space(view.world)
        self.running = self.coming = Played(1, False)
        self.ask(*played)
        self.switch()

    def ask(self, phase: int | None = None, evaluation: bool | None = None) -> None:
        """Wishes another task; None leaves that half as it is."""
        phase = self.coming.phase if phase is None else choose("phase", phase, PHASES)
        evaluation = self.coming.evaluation if evaluation is None else evaluation
        self.coming = Played(int(phase), bool(choose("evaluation", evaluation, (False, True))))

    def ask_options(self, options: dict[str, Any] | None, others: tuple[str, ...] = ()) -> None:
        """Wishes what the options of a reset say."""
        for name in options or ():
            choose("an option of reset", name, RESET_OPTIONS + others)
        self.ask(**{name: (options or {}).get(name) for name in RESET_OPTIONS})

    @property
    def is_cutting(self) -> bool:
        """Whether another task is waiting for the running episodes to be cut."""
        return self.running != self.coming

    @property
    def task(self) -> Task:
        """The rewards of the episodes that run, and the starts of those that come."""
        task = self.programs.tasks[self.running]
        if not self.is_cutting:
            return task
        return task._replace(start=self.programs.tasks[self.coming].start)

    def switch(self) -> None:
        """The coming task is played from now on."""
        self.running = self.coming

    def put(self, array: np.ndarray) -> jax.Array:
        """An array where the programs run: an array elsewhere would make jax compile again."""
        return jax.device_put(array, self.device)


def find_view(world: str | World, observation: str | None, settings: dict[str, Any]) -> View:
    """A world by the name in its id, or the world itself, under a kind of observation."""
    if isinstance(world, str):
        kinds = kinds_of(choose("world", world, available()))
        kind = (
            next(iter(kinds)) if observation is None else choose("observation", observation, kinds)
        )
        for setting in settings:
            choose(f"a setting of {world}", setting, setting_names(kinds[kind]))
        return views(kinds[kind](**settings))[kind]
    if settings:
        raise TypeError(f"a world brings its own settings, so {sorted(settings)} cannot be set")
    own = views(world)
    return own[next(iter(own)) if observation is None else choose("observation", observation, own)]


def kinds_of(name: str) -> dict[str, type[World]]:
    """The kinds of observation of a world by its name, the default first, and who gives them."""
    kinds: dict[str, type[World]] = {}
    for giver in classes_of(name):
        for kind in views(giver()):
            kinds.setdefault(kind, giver)
    return kinds


def classes_of(name: str) -> list[type[World]]:
    """The classes of a world that this version has."""
    return [getattr(environments, kind) for kind in NAMES[name] if hasattr(environments, kind)]


def available() -> list[str]:
    """The names of the worlds that this version has."""
    return [name for name in NAMES if classes_of(name)]


def observation_space(view: View) -> gymnasium.Space[Any]:
    """The space of observations; a fresh one each time, because spaces carry a generator."""
    if view.is_code:
        return gymnasium.spaces.Discrete(_num_codes(view.world))
    low, high = _bounds(view.world)
    return gymnasium.spaces.Box(low, high, dtype=low.dtype.type)


@cache
def _num_codes(world: World) -> int:
    return len(np.asarray(world.codes()))


@cache
def _bounds(world: World) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest observation, each with the shape of an observation."""
    spec, codes = world.spec, world.codes()
    low: Any = -1.0  # what needs no scaling lies between these
    high: Any = 1.0
    if is_picture(world):
        low, high = 0, 255
    elif spec.observation_low is not None and spec.observation_high is not None:
        low, high = spec.observation_low, spec.observation_high
    elif codes is not None:
        every = np.asarray(world.decode(codes))
        low, high = every.min(axis=0), every.max(axis=0)
    full = np.zeros(spec.observation_shape, spec.observation_dtype)
    return full + np.asarray(low, full.dtype), full + np.asarray(high, full.dtype)


def action_space(world: World) -> gymnasium.Space[Any]:
    """Numbered actions, or vectors in [-1, 1]."""
    spec = world.spec
    if spec.action_size:
        return gymnasium.spaces.Box(-1.0, 1.0, (spec.action_size,), np.float32)
    return gymnasium.spaces.Discrete(spec.num_actions)


def action_of(space: gymnasium.Space[Any], action: Any) -> np.ndarray | np.generic:
    """An action, or a batch of them, as worlds want it; a wrong one is named."""
    if type(action) in (int, np.int64) and action in space:
        return np.int32(action)  # the usual case, ten times as fast as the rest
    given = np.asarray(action)
    if given.shape != space.shape:
        raise ValueError(f"actions must have the shape {space.shape}, got {given.shape}")
    if isinstance(space, gymnasium.spaces.Box):
        if not np.isfinite(given).all():
            raise ValueError(f"actions must be finite, got {action!r}")
        return np.clip(given, space.low, space.high).astype(np.float32)
    assert isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
    num = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec[0]
    highest = int(num) - 1
    if given.dtype.kind not in "iu" or (given < 0).any() or (given > highest).any():
        raise ValueError(f"actions must be integers from 0 to {highest}, got {action!r}")
    return given.astype(np.int32)


def device_of(name: str | None) -> jax.Device | None:
    """The first device of a platform; None leaves the choice to jax."""
    if name is None:
        return None
    try:
        return jax.devices(name)[0]
    except RuntimeError:
        found = sorted({"cpu", *(device.platform for device in jax.devices())})
        return choose("device", name, found)


def choose(what: str, value: Any, valid: Iterable[Any]) -> Any:
    """The value, if it is one of the valid ones, which an error names."""
    valid = list(valid)
    if value not in valid:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, valid))}; got {value!r}")
    return value
