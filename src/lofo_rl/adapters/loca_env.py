"""One world of ours as a Gymnasium environment."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.error import ResetNeeded

from lofo_rl.adapters.choices import Played, Stage, action_of, choose, find_view
from lofo_rl.adapters.drawing import picture
from lofo_rl.adapters.programs import Carry, Report, key_of
from lofo_rl.adapters.screen import Window, has_screen
from lofo_rl.environments import World

FRAMES_PER_SECOND = 30
RENDER_MODES = ("rgb_array", "human")


class LocaEnv(gymnasium.Env[Any, Any]):
    """A LoCA world: a phase sets what the goals pay and where episodes start, and nothing else.

    `set_phase` and the options of `reset` switch the phase; nothing is compiled anew.
    """

    # what can be asked for; an instance states what this machine can do, so that checkers try no
    # window where there is no screen
    metadata: dict[str, Any] = {  # noqa: RUF012, Gymnasium's own form
        "render_modes": list(RENDER_MODES),
        "render_fps": FRAMES_PER_SECOND,
    }

    def __init__(
        self,
        world: str | World = "MountainCarLoCA",
        *,
        phase: int = 1,
        evaluation: bool = False,
        observation: str | None = None,
        render_mode: str | None = None,
        device: str | None = "cpu",
        **settings: Any,
    ) -> None:
        view = find_view(world, observation, settings)
        self.world = view.world
        self._stage = Stage(view, Played(phase, evaluation), device)
        self.observation_space = self._stage.observation_space
        self.action_space = self._stage.action_space
        modes = [mode for mode in RENDER_MODES if mode != "human" or has_screen()]
        self.metadata = LocaEnv.metadata | {"render_modes": modes}
        self.render_mode = choose("render_mode", render_mode, (None, *RENDER_MODES))
        title = f"{self.world.spec.name} (LoCA)"
        self._window = Window(title, FRAMES_PER_SECOND) if render_mode == "human" else None
        self._carry: Carry | None = None  # before the first reset
        self._is_running = False

    @property
    def phase(self) -> int:
        """The phase of the next episode; of the running one, too, unless it is about to be cut."""
        return self._stage.coming.phase

    @property
    def evaluation(self) -> bool:
        """Whether the next episode starts where evaluation does."""
        return self._stage.coming.evaluation

    def set_phase(self, phase: int, evaluation: bool | None = None) -> None:
        """Switches the phase, and, if told, between the starts of training and evaluation.

        A running episode is cut: its next step still pays what it did and comes back truncated.
        """
        self._stage.ask(phase, evaluation)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; the options `phase` and `evaluation` hold from now on."""
        super().reset(seed=seed)
        stage = self._stage
        stage.ask_options(options)
        stage.switch()
        if seed is not None or self._carry is None:
            drawn = int(self.np_random.integers(2**63)) if seed is None else seed
            key = stage.put(key_of(drawn))
        else:
            key = self._carry.key
        self._carry, observation, packed = stage.programs.begin(stage.task, key)
        self._is_running = True
        self._show()
        return self._host(observation), self._info(Report.unpack_one(packed))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Acts once."""
        if not self._is_running:
            raise ResetNeeded("no episode is running: call reset() first")
        stage = self._stage
        action = action_of(self.action_space, action)
        self._carry, observation, packed = stage.programs.act(stage.task, self._carry, action)
        report = Report.unpack_one(packed)
        terminated = bool(report.terminated)
        truncated = not terminated and (stage.is_cutting or bool(report.truncated))
        self._is_running = not (terminated or truncated)
        self._show()
        answer = self._host(observation), float(report.reward), terminated, truncated
        return *answer, self._info(report)

    def render(self) -> np.ndarray | None:
        """The present picture under `rgb_array`; under `human` the window shows it already."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() draws only if made with a render_mode")
        return self._draw() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Closes the window, if there is one."""
        if self._window is not None:
            self._window.close()

    def _host(self, observation: Any) -> Any:
        """An array of the caller's own, or a number where observations are numbered."""
        return np.array(observation, self.observation_space.dtype)[()]

    def _info(self, report: Report) -> dict[str, Any]:
        """Where the episode is; the phase is that of the episode, also when another waits."""
        return {
            **self._stage.running._asdict(),
            "reached_t1": report.reached_t1,
            "reached_t2": report.reached_t2,
            "in_t1_zone": report.in_t1_zone,
        }

    def _draw(self) -> np.ndarray:
        if self._carry is None:
            raise ResetNeeded("there is nothing to draw yet: call reset() first")
        return picture(self.world, jax.device_get(self._carry.state.physical))

    def _show(self) -> None:
        if self._window is not None:
            self._window.show(self._draw())
