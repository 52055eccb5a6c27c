"""Local forgetting for rejax: a replay buffer with its `extend` and `sample`.

    class LoFoDQN(DQN):
        @register_init
        def initialize_replay_buffer(self, rng):
            spaces = self.obs_space, self.action_space
            return {"replay_buffer": LoFoReplayBuffer.empty(self.buffer_size, *spaces, radius=0.1)}

Without the decorator `rejax.algos.algorithm.register_init` rejax does not call the method.
"""

from typing import Any

from lofo_rl.buffers import Rule
from lofo_rl.buffers.rules import either_rule
from lofo_rl.extras import needs

with needs("rejax", __name__):
    import jax
    import jax.numpy as jnp
    from flax import struct
    from rejax.buffers import Minibatch

    from lofo_rl.functional import Replay, ReplayState, TransitionIndex


class LoFoReplayBuffer(struct.PyTreeNode):
    """A buffer of transitions that forgets locally; make it with `empty`."""

    replay: Replay = struct.field(pytree_node=False)
    state: ReplayState
    scale: Any  # [D] or []

    @classmethod
    def empty(
        cls,
        size: int,
        obs_space: Any,
        action_space: Any,
        *,
        radius: float | None = None,
        limit: int = 1,
        rule: Rule | None = None,
        scale: Any = 1.0,
        group_by: Any = "auto",
    ) -> "LoFoReplayBuffer":
        """An empty buffer; the embedding is the flat observation times `scale`.

        `group_by="auto"`: only transitions with the same action are neighbors if actions are
        discrete.
        """
        rule = either_rule(radius, limit, rule)
        if isinstance(group_by, str) and group_by == "auto":
            is_discrete = jnp.issubdtype(action_space.dtype, jnp.integer) and not action_space.shape
            group_by = "action" if is_discrete and rule.needs_embedding else None
        obs = jnp.zeros(obs_space.shape, obs_space.dtype)
        action = jnp.zeros(action_space.shape, action_space.dtype)
        example = Minibatch(obs, action, jnp.zeros(()), jnp.zeros((), bool), obs)
        replay = Replay(TransitionIndex(rule, size), group_by)
        state = replay.init(example, obs.size if rule.needs_embedding else 0)
        return cls(replay=replay, state=state, scale=jnp.asarray(scale, jnp.float32))

    @property
    def num_entries(self) -> Any:
        """The transitions that are held."""
        return self.state.index.size

    def metrics(self) -> Any:
        """Occupancy and forgetting, as arrays."""
        return self.replay.metrics(self.state)

    def append(self, item: Any) -> "LoFoReplayBuffer":
        """The buffer with one more transition, and perhaps one less."""
        point = jnp.asarray(item.obs, jnp.float32).reshape(-1) * self.scale
        return self.replace(state=self.replay.add(self.state, item, point))

    def extend(self, batch: Any) -> "LoFoReplayBuffer":
        """The buffer with a batch of transitions, added in their order."""
        return jax.lax.scan(lambda buffer, item: (buffer.append(item), None), self, batch)[0]

    def sample(self, num: int, rng: Any) -> Any:
        """A uniform sample, with replacement."""
        return Minibatch(*self.replay.sample(self.state, num, rng).items)
