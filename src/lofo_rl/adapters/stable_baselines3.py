"""LoFo replay buffers for Stable-Baselines3: `replay_buffer_class=LoFoReplayBuffer`.

Every transition of every parallel environment passes one `lofo_rl.ReplayBuffer`, in the order of
the environments. Values are stored as the environment gave them: with `VecNormalize`, they are
normalized when they are sampled, so a radius in the environment's units stays valid.
"""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from lofo_rl.buffers import Local, ReplayBuffer, Rule
from lofo_rl.extras import needs
from lofo_rl.types import LofoError

with needs("sb3", __name__):
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import BaseBuffer
    from stable_baselines3.common.buffers import ReplayBuffer as HostBuffer
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecNormalize

REFUSED = {
    "optimize_memory_usage": "it stores the next observation in the next row, and LoFo's rows are "
    "in no order",
    "n_steps": "a reward several steps ahead becomes stale although its first state is never "
    "visited again; train with one step",
    "gamma": "it belongs to n_steps, which this buffer refuses",
    "n_sampled_goal": "hindsight relabels whole episodes, and LoFo forgets single steps of them",
    "goal_selection_strategy": "it belongs to hindsight replay, which this buffer refuses",
    "copy_info_dict": "it belongs to hindsight replay, which this buffer refuses",
}


class LoFoReplayBuffer(HostBuffer):
    """A replay buffer of SB3 that forgets locally.

    `radius` and `limit` are those of `lofo_rl.Local`; give `rule=` for any other rule.
    `locality` embeds a batch of observations [n, ...] as vectors [n, D]; for dict observations it
    may be a key. Without it the embedding is the flat observation.
    `group_by` is "action" for discrete actions, or a function from an item to an integer: only
    samples of the same group are neighbors.
    `seed`: without it, drawn from NumPy's global generator, which the algorithm's `seed` sets.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        radius: float | None = None,
        limit: int = 1,
        rule: Rule | None = None,
        locality: Callable[[Any], Any] | str | None = None,
        group_by: Any = None,
        seed: int | None = None,
        **other: Any,
    ) -> None:
        if optimize_memory_usage:
            other["optimize_memory_usage"] = True
        for name in other:
            if name not in REFUSED:
                raise LofoError(f"LoFoReplayBuffer has no option {name}")
            raise LofoError(f"LoFoReplayBuffer refuses {name}: {REFUSED[name]}")
        if (radius is None) == (rule is None):
            raise LofoError(f"give either radius= or rule=, got {radius=} and {rule=}")
        if group_by == "action" and not isinstance(action_space, spaces.Discrete):
            raise LofoError(f"group_by='action' needs discrete actions, got {action_space}")
        # The host's own __init__ would allocate its arrays.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.locality = locality
        self._lost_locality = False
        self._action_dtype = self._maybe_cast_dtype(action_space.dtype)
        self.memory = ReplayBuffer(
            Local(radius, limit) if rule is None else rule,  # type: ignore[arg-type]  # checked above
            buffer_size,
            seed=int(np.random.randint(2**31)) if seed is None else seed,  # noqa: NPY002  # SB3 seeds it
            group_by=group_by,
        )

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Store one transition of each environment."""
        ended = np.asarray(done, np.float32)
        if self.handle_timeout_termination:
            is_cut = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
            ended = ended * ~np.array(is_cut)
        items = {
            "observation": self._shaped(obs),
            "action": np.asarray(action, self._action_dtype).reshape(self.n_envs, self.action_dim),
            "next_observation": self._shaped(next_obs),
            "done": ended.reshape(-1, 1),
            "reward": np.asarray(reward, np.float32).reshape(-1, 1),
        }
        embedding = None
        if self.memory.rule.needs_embedding:
            embedding = self._embed(items["observation"])
        self.memory.extend(items, embedding=embedding)
        self.full = len(self.memory) == self.buffer_size
        self.pos = 0 if self.full else len(self.memory)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """A uniform sample of transitions, as tensors on the buffer's device."""
        items = self.memory.sample(batch_size).items
        return ReplayBufferSamples(
            self._tensors(self._normalize_obs(items["observation"], env)),
            self._tensors(items["action"]),
            self._tensors(self._normalize_obs(items["next_observation"], env)),
            self._tensors(items["done"]),
            self._tensors(self._normalize_reward(items["reward"], env)),
        )

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.memory.clear()

    def metrics(self) -> dict[str, int | float]:
        """Occupancy and forgetting: see `lofo_rl.ReplayBuffer.metrics`."""
        return self.memory.metrics()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if callable(self.locality):
            try:
                pickle.dumps(self.locality)
            except Exception:  # a lambda, or a function of a script
                state |= {"locality": None, "_lost_locality": True}
        return state

    def _shaped(self, obs: Any) -> Any:
        """Observations [n_envs, ...]; discrete ones come as [n_envs]."""
        return np.asarray(obs).reshape(self.n_envs, *self.obs_shape)

    def _embed(self, observations: Any) -> Any:
        if self._lost_locality and self.locality is None:
            raise LofoError(
                "the locality was a function that cannot be pickled, so the saved buffer has none: "
                "set model.replay_buffer.locality to it"
            )
        if callable(self.locality):
            return self.locality(observations)
        if self.locality is not None:
            raise LofoError(f"only dict observations have keys, got locality={self.locality!r}")
        return observations.reshape(self.n_envs, -1)

    def _tensors(self, x: Any) -> Any:
        return self.to_torch(x, copy=False)  # the sample is a copy already


class LoFoDictReplayBuffer(LoFoReplayBuffer):
    """The same for dict observations; `locality` may be the key of the observation to look at."""

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """A uniform sample of transitions, as tensors on the buffer's device."""
        return DictReplayBufferSamples(*super().sample(batch_size, env)[:5])

    def _shaped(self, obs: Any) -> Any:
        shapes: Any = self.obs_shape
        return {key: np.asarray(obs[key]).reshape(self.n_envs, *shapes[key]) for key in shapes}

    def _embed(self, observations: Any) -> Any:
        if isinstance(self.locality, str):
            if self.locality not in observations:
                raise LofoError(f"no key {self.locality!r}: there are {', '.join(observations)}")
            return observations[self.locality].reshape(self.n_envs, -1)
        if self.locality is None and not self._lost_locality:
            flat = [x.reshape(self.n_envs, -1) for x in observations.values()]
            return np.concatenate(flat, axis=-1)
        return super()._embed(observations)

    def _tensors(self, x: Any) -> Any:
        if isinstance(x, dict):
            return {key: super(LoFoDictReplayBuffer, self)._tensors(own) for key, own in x.items()}
        return super()._tensors(x)
