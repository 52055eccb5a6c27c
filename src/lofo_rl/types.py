"""The records that flow through the library: NamedTuples, which jax takes as pytrees."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import jax

    Array: TypeAlias = jax.Array
    Key: TypeAlias = jax.Array  # a random key, consumed once
else:  # the base runs without jax
    Array = Key = Any
Tree: TypeAlias = Any  # an arbitrary pytree of arrays
Metrics: TypeAlias = dict[str, Any]  # name -> scalar array


class TimeStep(NamedTuple):
    """What the world answers to one action."""

    observation: Array  # [...] the one to act on next (already reset if the episode ended)
    successor: Array  # [...] the true s_{t+1}; equals observation except at an episode's end
    reward: Array  # [] float32, of (s_t, a_t)
    terminated: Array  # [] bool, reached T1 or T2
    truncated: Array  # [] bool, reached the time limit; never mixed with the above


class Transition(NamedTuple):
    """One sample of a transition buffer."""

    observation: Array  # [...]
    action: Array  # [...]
    reward: Array  # [] float32
    terminated: Array  # [] bool
    next_observation: Array  # [...] the true successor, also at an episode's end


class Step(NamedTuple):
    """One row of a trajectory; `reward` belongs to (observation, action)."""

    observation: Array  # [...]
    action: Array  # [...]
    reward: Array  # [] float32
    terminated: Array  # [] bool
    is_first: Array  # [] bool, the first of its episode: a recurrent state resets here
    is_last: Array  # [] bool, the closing row: the episode's final observation, never a start


class Batch(NamedTuple):
    """What a buffer hands to an agent."""

    items: Tree  # leaves [B, ...], or [B, N, ...] for windows
    reward_known: Array  # [B] or [B, N] bool; False where the paper writes None
    starts: Array  # [B] int32, the ledger rows the items were drawn from
    stamps: Array | None = None  # [B] int64, which sample each row held: see update_priorities
    weights: Array | None = None  # [B] float32, importance weights of a prioritized sample


class LofoError(ValueError):
    """A mistake the user can correct: one sentence that names the bad value and the fix."""


class LofoWarning(UserWarning):
    """A setting that defeats itself."""
