"""What flows through `jit`: NamedTuples, which are pytrees, and what makes a dataclass one."""

import dataclasses
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax.tree_util import GetAttrKey

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # a random key, consumed once
Tree: TypeAlias = Any  # an arbitrary pytree of arrays
Metrics: TypeAlias = dict[str, Any]  # name -> scalar array
Class = TypeVar("Class", bound=type)


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


class LofoError(ValueError):
    """A mistake its user can mend: one sentence that names the bad value and the fix."""


def register_dataclass(cls: Class) -> Class:
    """Makes a dataclass a pytree; fields with the metadata `{"static": True}` are its structure.

    Not `jax.tree_util.register_dataclass`: the structures it gives compare equal across classes
    with as many fields (jax 0.10), and `jit` may then answer one class with another's program.
    """
    fields = dataclasses.fields(cls)
    if made := [field.name for field in fields if not field.init]:
        raise TypeError(f"{cls.__name__} makes {made[0]} itself: every field must be given to init")
    static = [field.name for field in fields if field.metadata.get("static")]
    dynamic = [field.name for field in fields if field.name not in static]
    keys = [GetAttrKey(name) for name in dynamic]

    def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(node, name) for name in dynamic], tuple(
            getattr(node, name) for name in static
        )

    def flatten_with_keys(node: Any) -> tuple[Any, tuple[Any, ...]]:
        children, structure = flatten(node)
        return list(zip(keys, children, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], children: Any) -> Any:
        return cls(
            **dict(zip(static, structure, strict=True)), **dict(zip(dynamic, children, strict=True))
        )

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
