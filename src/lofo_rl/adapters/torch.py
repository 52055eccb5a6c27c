"""A LoFo replay buffer for plain torch loops, with the arguments and methods of CleanRL's buffer.

    from lofo_rl.adapters.torch import LoFoReplayBuffer as ReplayBuffer

The transitions of all parallel environments pass one `lofo_rl.ReplayBuffer`, in the order of the
environments. Items are stored as NumPy arrays; samples are tensors on `device`.
"""

import os
from typing import Any, NamedTuple

from lofo_rl.adapters.transitions import TransitionBuffer
from lofo_rl.buffers import ReplayBuffer, serialization
from lofo_rl.extras import needs
from lofo_rl.types import LofoError

with needs("torch", __name__):
    import torch

    from lofo_rl.adapters.torch_contrastive import ContrastiveLocality

__all__ = ["ContrastiveLocality", "LoFoReplayBuffer", "Samples"]


class Samples(NamedTuple):
    """A batch of transitions; `dones` is 0 where a time limit ended the episode."""

    observations: torch.Tensor  # [B, ...]
    actions: torch.Tensor  # [B, A]
    next_observations: torch.Tensor  # [B, ...]
    dones: torch.Tensor  # [B, 1]
    rewards: torch.Tensor  # [B, 1]


class LoFoReplayBuffer(TransitionBuffer):
    """A replay buffer that forgets locally; the options are those of `TransitionBuffer`.

    A `locality` that is a torch module gets tensors, any other function NumPy arrays.
    "contrastive" is a `ContrastiveLocality` for the observations.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        locality: Any = None,
        **options: Any,
    ) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if isinstance(locality, str) and locality == "contrastive":
            locality = ContrastiveLocality(observation_space.shape).to(self.device)
        if optimize_memory_usage:
            options["optimize_memory_usage"] = True
        super().__init__(
            buffer_size, observation_space, action_space, n_envs, handle_timeout_termination,
            locality=locality, **options,
        )  # fmt: skip

    def sample(self, batch_size: int) -> Any:
        """A uniform sample of transitions."""
        return Samples(*map(self._tensors, self._draw(batch_size)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the transitions, and the weights of a locality that is a torch module."""
        manifest, arrays = self.memory._pack()
        if isinstance(self.locality, torch.nn.Module):
            weights = self.locality.state_dict()
            weights = {f"locality.{name}": x for name, x in weights.items()}
            arrays.update({name: x.detach().cpu().numpy() for name, x in weights.items()})
        own = {"kind": type(self).__name__, "fit_after": self._fit_after, "buffer": manifest}
        serialization.write(path, own, arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take the transitions and weights of a file that `save` wrote; nothing is executed."""
        with serialization.judged(path):
            manifest, arrays = serialization.read(path)
            if manifest["kind"] != type(self).__name__:
                raise LofoError(f"it holds a {manifest['kind']}")
            own, fit_after = manifest["buffer"], manifest["fit_after"]
            names = [name for name in arrays if name.startswith("locality.")]
            weights = {name[9:]: torch.from_numpy(arrays.pop(name)) for name in names}
            rule = None if isinstance(own["rule"], dict) else self._rule
            by = self._group_by if callable(self._group_by) else None
            memory = ReplayBuffer._unpack(own, arrays, rule, None, by, None)
            if memory.capacity != self.buffer_size or own["group_by"] not in (None, self._group_by):
                raise LofoError(
                    f"it has buffer_size={memory.capacity}, group_by={own['group_by']!r}, not "
                    f"{self.buffer_size}, {self._group_by!r}"
                )
            if isinstance(self.locality, torch.nn.Module):
                self.locality.load_state_dict(weights)
        self._pending.clear()
        self._memory, self._fit_after = memory, fit_after
        if fit_after is None:
            self._rule = memory.rule

    def _embed(self, observations: Any) -> Any:
        if not isinstance(self.locality, torch.nn.Module):
            return super()._embed(observations)
        with torch.no_grad():
            return self.locality(torch.as_tensor(observations, device=self.device))

    def _tensors(self, x: Any) -> Any:
        return torch.as_tensor(x, device=self.device)  # the sample is a copy already
