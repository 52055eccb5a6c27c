"""LoFo replay buffers for Stable-Baselines3: `replay_buffer_class=LoFoReplayBuffer`.

Values are stored as the environment gave them. With `VecNormalize` they are normalized when they
are sampled, so a radius in the environment's units stays valid.
"""

from typing import Any

import numpy as np

from lofo_rl.adapters import torch as plain
from lofo_rl.adapters.transitions import shaped
from lofo_rl.extras import needs
from lofo_rl.types import LofoError

with needs("sb3", __name__):
    from gymnasium import spaces
    from stable_baselines3.common.buffers import BaseBuffer
    from stable_baselines3.common.buffers import ReplayBuffer as HostBuffer
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecNormalize


class LoFoReplayBuffer(plain.LoFoReplayBuffer, HostBuffer):
    """A replay buffer of SB3 that forgets locally.

    Give the options of `lofo_rl.adapters.torch.LoFoReplayBuffer` as `replay_buffer_kwargs`.
    """

    _kind: Any = ReplayBufferSamples

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        *arguments: Any,
        **options: Any,
    ) -> None:
        if isinstance(observation_space, spaces.Dict) != isinstance(self, LoFoDictReplayBuffer):
            name = "LoFoDictReplayBuffer" if type(self) is LoFoReplayBuffer else "LoFoReplayBuffer"
            raise LofoError(f"for observations {observation_space} take {name}")
        # The host's own __init__ would allocate its arrays.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = False
        plain.LoFoReplayBuffer.__init__(
            self,
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            *arguments,
            **options,
        )

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any = None
    ) -> None:
        """Store one transition of each environment."""
        super().add(obs, next_obs, action, reward, done, infos)
        self.full = len(self._memory) == self.buffer_size
        self.pos = 0 if self.full else len(self._memory)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """A uniform sample of transitions, normalized as `env` says."""
        obs, action, next_obs, done, reward = self._draw(batch_size)
        parts = (
            self._normalize_obs(obs, env),
            action,
            self._normalize_obs(next_obs, env),
            done,
            self._normalize_reward(reward, env),
        )
        return self._kind(*map(self._tensors, parts))

    def reset(self) -> None:
        """Forget all transitions. A locality that was learned stays."""
        self.pos, self.full = 0, False
        super().reset()


class LoFoDictReplayBuffer(LoFoReplayBuffer):
    """The same for dict observations; `locality` is a function of the dict, or one of its keys."""

    _kind: Any = DictReplayBufferSamples

    def __init__(self, buffer_size: int, observation_space: Any, *arguments: Any, **options: Any):
        locality = options.get("locality")
        self._key = locality if isinstance(locality, str) else None
        if self._key is not None:
            if self._key not in observation_space.spaces:
                there = ", ".join(observation_space.spaces)
                raise LofoError(f"no key {self._key!r}: there are {there}")
            options["locality"] = None
        elif hasattr(locality, "state_dict"):
            raise LofoError(
                "a torch module as locality needs one observation: give a function of the dict, "
                "such as lambda observations: module(torch.as_tensor(observations['image']))"
            )
        super().__init__(buffer_size, observation_space, *arguments, **options)

    def _shaped(self, obs: Any) -> Any:
        parts = self.observation_space.spaces
        return {key: shaped(key, obs[key], parts[key], self.n_envs) for key in parts}

    def _embed(self, observations: Any) -> Any:
        if self._key is not None:
            own = observations[self._key]
            return own.reshape(len(own), -1)
        if self.locality is None and not self._lost_locality:
            flat = [x.reshape(len(x), -1) for x in observations.values()]
            return np.concatenate(flat, axis=-1)
        return super()._embed(observations)

    def _tensors(self, x: Any) -> Any:
        if isinstance(x, dict):
            return {key: super(LoFoDictReplayBuffer, self)._tensors(own) for key, own in x.items()}
        return super()._tensors(x)
