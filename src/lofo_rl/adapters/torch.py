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

    from lofo_rl.adapters.torch_contrastive import ContrastiveLocality, embedded

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
        for name, x in self._weights().items():
            arrays[f"locality.{name}"] = x.detach().cpu().numpy()
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
            memory = self._unpacked(own, arrays)
            mine = self._weights()
            if {k: x.numel() for k, x in weights.items()} != {
                k: x.numel() for k, x in mine.items()
            }:
                raise LofoError("it has the weights of another locality than this buffer")
            self._check_fits(memory, fit_after)
        if weights:
            own = {name: x.reshape(mine[name].shape) for name, x in weights.items()}
            self.locality.load_state_dict(own)
        self._pending, self._memory, self._fit_after = [], memory, fit_after
        if fit_after is None:
            self._rule = memory.rule

    def _check_fits(self, memory: ReplayBuffer, fit_after: int | None) -> None:
        """Refuse a file of a buffer with other settings."""
        group_by = None if fit_after is not None else self._group_by
        found: dict[str, tuple[Any, Any]] = {  # what it has, what this buffer has
            "buffer_size": (memory.capacity, self.buffer_size),
            "group_by": (memory._group_by, group_by),
            "groups": (bool(memory._is_grouped), group_by is not None),
        }
        if fit_after is None and self._keep is None:
            found["rule"] = memory.rule, self._rule
        if memory._spec is not None and self.observation_space.shape is not None:
            shape = memory._spec.shapes[memory._spec.index("observation")]
            found["observations of shape"] = shape, tuple(self.observation_space.shape) or (1,)
        for name, (theirs, ours) in found.items():
            if theirs != ours:
                raise LofoError(f"it has {name} {theirs!r}, this buffer {ours!r}")

    def _weights(self) -> dict[str, Any]:
        is_module = isinstance(self.locality, torch.nn.Module)
        return dict(self.locality.state_dict()) if is_module else {}

    def _embed(self, observations: Any) -> Any:
        if isinstance(self.locality, torch.nn.Module):
            return embedded(self.locality, observations)
        return super()._embed(observations)

    def _tensors(self, x: Any) -> Any:
        return torch.as_tensor(x, device=self.device)  # the sample is a copy already
