"""Many worlds of ours side by side as one Gymnasium environment: a step is one compiled call."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from lofo_rl.adapters.choices import Played, Stage, action_of, choose, find_view
from lofo_rl.adapters.drawing import picture
from lofo_rl.adapters.loca_env import FRAMES_PER_SECOND
from lofo_rl.adapters.programs import Carry, Report, Reset, key_of
from lofo_rl.environments import World

MODES = tuple(mode.value for mode in AutoresetMode)


class LocaVectorEnv(gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """The same episodes as so many `LocaEnv` with the seeds `seed`, `seed + 1` and so on.

    By default a row that ended begins its next episode in the following step, whose action it
    ignores: Gymnasium's `AutoresetMode.NEXT_STEP`. All rows play the same phase.
    """

    def __init__(
        self,
        world: str | World = "MountainCarLoCA",
        num_envs: int = 1,
        *,
        phase: int = 1,
        evaluation: bool = False,
        observation: str | None = None,
        render_mode: str | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        device: str | None = "cpu",
        **settings: Any,
    ) -> None:
        super().__init__()
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        view = find_view(world, observation, settings)
        if max_episode_steps is not None:
            view = view._replace(world=_shortened(view.world, max_episode_steps))
        self.world = view.world
        self.num_envs = num_envs
        self._stage = Stage(view, Played(phase, evaluation), device)
        self.single_observation_space = self._stage.observation_space
        self.single_action_space = self._stage.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        if not isinstance(autoreset_mode, AutoresetMode):
            autoreset_mode = AutoresetMode(choose("autoreset_mode", autoreset_mode, MODES))
        self.autoreset_mode = autoreset_mode
        self.render_mode = choose("render_mode", render_mode, (None, "rgb_array"))
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_SECOND,
            "autoreset_mode": autoreset_mode,
        }
        self._carry: Carry | None = None  # before the first reset
        self._ended = np.zeros(num_envs, bool)

    @property
    def phase(self) -> int:
        """The phase of coming episodes; of the running ones, too, unless they are to be cut."""
        return self._stage.coming.phase

    @property
    def evaluation(self) -> bool:
        """Whether coming episodes start where evaluation does."""
        return self._stage.coming.evaluation

    def set_phase(self, phase: int, evaluation: bool | None = None) -> None:
        """Switches the phase of all rows, and, if told, where their episodes start.

        Running episodes are cut: their next step still pays what it did and comes back truncated.
        """
        self._stage.ask(phase, evaluation)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins all episodes, or those of the option `reset_mask`; see also `LocaEnv.reset`."""
        seed = int(seed) if isinstance(seed, np.integer) else seed
        super().reset(seed=seed if isinstance(seed, int) else None)
        stage = self._stage
        mask, wished = self._mask(options), stage.coming
        stage.ask_options(options, others=("reset_mask",))
        if stage.is_cutting and not mask.all():
            stage.coming = wished
            raise ValueError("a phase holds for all rows: reset them all, without reset_mask")
        stage.switch()
        keys, reseeded = self._keys(seed)
        if mask.all() and reseeded.all():
            begun = stage.programs.begin_all(stage.task, stage.put(keys))
        elif self._carry is None:
            raise ResetNeeded("no episodes are running: call reset() without reset_mask first")
        else:
            reset = Reset(*map(stage.put, (mask, reseeded, keys)))
            begun = stage.programs.begin_some(stage.task, self._carry, reset)
        self._carry, observation, packed = begun
        self._ended = self._ended & ~mask
        info = self._info(Report.unpack(packed), fresh=mask)
        return self._host(observation), _masked(info, mask)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Acts once in every row that runs; the autoreset mode says what the others do."""
        if self._carry is None:
            raise ResetNeeded("no episodes are running: call reset() first")
        stage, act = self._stage, self._stage.programs
        actions = action_of(self.action_space, actions)
        arguments = stage.task, self._carry, actions, np.bool_(stage.is_cutting)
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            self._carry, observation, after, code, packed = act.act_anew(*arguments)
            report = Report.unpack(packed)
            ended = np.asarray(report.terminated | report.truncated)
            infos = _masked(self._info(Report.unpack(after), fresh=ended))
            infos |= self._finals(code, report, ended)
        else:
            is_next = self.autoreset_mode == AutoresetMode.NEXT_STEP
            if not is_next and self._ended.any():
                rows = np.flatnonzero(self._ended).tolist()
                raise ResetNeeded(f"rows {rows} have ended: reset them, with reset_mask")
            program = act.act_on if is_next else act.act_all
            self._carry, observation, packed = program(*arguments)
            report = Report.unpack(packed)
            infos = _masked(self._info(report, fresh=self._ended))
            self._ended = np.asarray(report.terminated | report.truncated)
        stage.switch()  # whoever ran was cut
        reward, terminated, truncated = map(np.asarray, report[:3])
        return self._host(observation), reward, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """One picture a row, under `rgb_array`."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() draws only if made with render_mode='rgb_array'")
            return None
        if self._carry is None:
            raise ResetNeeded("there is nothing to draw yet: call reset() first")
        physical = jax.device_get(self._carry.state.physical)
        rows = (jax.tree.map(lambda leaf: leaf[row], physical) for row in range(self.num_envs))  # noqa: B023
        return tuple(picture(self.world, row) for row in rows)

    def _mask(self, options: dict[str, Any] | None) -> np.ndarray:
        """Which rows a reset means."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(
                f"reset_mask must be {self.num_envs} bools, at least one of them true; got {mask}"
            )
        return mask

    def _keys(self, seed: int | Sequence[int | None] | None) -> tuple[np.ndarray, np.ndarray]:
        """New chains of keys [n, 2], and which rows take them."""
        num = self.num_envs
        seeds = [None] * num if seed is None else seed
        seeds = [seeds + row for row in range(num)] if isinstance(seeds, int) else list(seeds)
        if len(seeds) != num:
            raise ValueError(f"there must be {num} seeds, got {len(seeds)}")
        if self._carry is None:
            drawn = self.np_random.integers(2**63, size=num).tolist()
            seeds = [d if own is None else own for own, d in zip(seeds, drawn, strict=True)]
        keys = np.zeros((num, 2), np.uint32)
        for row, own in enumerate(seeds):
            if own is not None:
                keys[row] = key_of(own)
        return keys, np.array([own is not None for own in seeds])

    def _host(self, observation: Any) -> np.ndarray:
        """An array of the caller's own."""
        return np.array(observation, self.observation_space.dtype)

    def _info(self, report: Report, fresh: np.ndarray) -> dict[str, np.ndarray]:
        """As `LocaEnv` has it, a row each; `fresh` rows began and play what comes."""
        running, coming = self._stage.running, self._stage.coming
        return {
            "phase": np.where(fresh, coming.phase, running.phase),
            "evaluation": np.where(fresh, coming.evaluation, running.evaluation),
            "reached_t1": np.asarray(report.reached_t1),
            "reached_t2": np.asarray(report.reached_t2),
            "in_t1_zone": np.asarray(report.in_t1_zone),
        }

    def _finals(self, code: Any, report: Report, ended: np.ndarray) -> dict[str, Any]:
        """The last observation and info of the rows that ended in this very step."""
        if not ended.any():
            return {}
        last = self._host(self._stage.programs.observe(code))
        observations = np.full(self.num_envs, None, object)
        for row in np.flatnonzero(ended):
            observations[row] = last[row]
        info = _masked(self._info(report, fresh=np.zeros_like(ended)), ended)
        marks = {"_final_obs": ended.copy(), "_final_info": ended.copy()}
        return {"final_obs": observations, "final_info": info, **marks}


def _masked(info: dict[str, np.ndarray], mask: np.ndarray | None = None) -> dict[str, Any]:
    """Gymnasium's form: beside each key, which rows have it; the others are zero."""
    masked: dict[str, Any] = {}
    for name, values in info.items():
        has = np.ones(len(values), bool) if mask is None else mask.copy()
        masked[name] = np.where(has, values, np.zeros_like(values))
        masked["_" + name] = has
    return masked


def _shortened(world: World, num_steps: int) -> World:
    """A world of shorter episodes; like Gymnasium's wrapper, this cannot make them longer."""
    limit = world.spec.time_limit
    unit = world.time_limit // limit  # type: ignore[attr-defined]  # it may count inner steps
    return replace(world, time_limit=min(num_steps, limit) * unit)  # type: ignore[type-var]
