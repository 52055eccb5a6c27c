"""Transitions of parallel environments, under one rule: what the adapters of torch hosts share.

NumPy alone: a host's class adds its tensors.
"""

import contextlib
import copy
import pickle
import warnings
from typing import Any

import numpy as np

from lofo_rl.buffers import Fifo, Local, ReplayBuffer, Rule, serialization
from lofo_rl.buffers.arrays import as_array
from lofo_rl.types import LofoError, LofoWarning

MOST_PENDING = 64  # transitions that are embedded together
AT_ONCE = 512  # observations that are embedded in one call
REFUSED = {
    "optimize_memory_usage": "it keeps the next observation in the next row, and LoFo's rows are "
    "in no order",
    "n_steps": "a reward several steps ahead becomes stale although its first state is never "
    "visited again; train with one step",
    "gamma": "it belongs to n_steps, which this buffer refuses",
    "n_sampled_goal": "hindsight relabels whole episodes, and LoFo forgets single steps of them",
    "goal_selection_strategy": "it belongs to hindsight replay, which this buffer refuses",
    "copy_info_dict": "it belongs to hindsight replay, which this buffer refuses",
}


class TransitionBuffer:
    """The options and the state of an adapter; a host's class adds `sample`.

    `radius` and `limit` are those of `lofo_rl.Local`; or give `rule=`, any rule; or `keep=` and
    `fit_after=`: the first `fit_after` transitions are all kept, then the radius is chosen that
    will hold about `keep` transitions, and the rule is applied to those so far, in their order.
    `locality` turns observations [n, ...] into vectors [n, D]. Without it, the vector is the flat
    observation. A `ContrastiveLocality` that is not yet fitted learns from the first `fit_after`.
    `group_by`: only transitions of the same group are neighbors. "auto" is "action" where actions
    are discrete, else None. It may be a function from an item to an integer.
    `seed`: if None, it is drawn from NumPy's global generator, which a script's own seed sets.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        n_envs: int = 1,
        handle_timeout_termination: bool = True,
        *,
        radius: float | None = None,
        limit: int = 1,
        rule: Rule | None = None,
        locality: Any = None,
        group_by: Any = "auto",
        fit_after: int | None = None,
        keep: int | None = None,
        seed: int | None = None,
        **other: Any,
    ) -> None:
        for name in other:
            if name not in REFUSED:
                raise LofoError(f"{type(self).__name__} has no option {name}")
            raise LofoError(f"{type(self).__name__} refuses {name}: {REFUSED[name]}")
        if (radius is not None) + (rule is not None) + (keep is not None) != 1:
            raise LofoError(
                f"give one of radius=, rule= and keep=, got {radius=}, {rule=}, {keep=}"
            )
        is_fitted = getattr(locality, "is_fitted", None)  # None: there is nothing to learn
        if keep is None and is_fitted is not False:
            if fit_after is not None and is_fitted is None:
                raise LofoError(f"{fit_after=} is for keep= and for a locality that is learned")
            fit_after = None
        elif fit_after is None:
            raise LofoError("keep=, and a locality that is learned, need fit_after=")
        else:
            fewest = max(100, 10 * limit, getattr(locality, "batch_size", 0))
            if not fewest <= fit_after <= buffer_size - n_envs:
                raise LofoError(
                    f"fit_after must be {fewest:,} to {buffer_size - n_envs:,}, which is "
                    f"buffer_size - n_envs: got {fit_after:,}"
                )
        if keep is not None and not 1 <= keep <= buffer_size:
            raise LofoError(f"keep must be 1 to buffer_size={buffer_size:,}, got {keep:,}")
        if not (locality is None or callable(getattr(locality, "embed", locality))):
            raise LofoError(f"locality must be a function of observations, got {locality!r}")
        Local(1.0, limit)  # so that a limit that cannot be is refused now
        self._rule = rule if radius is None else Local(radius, limit)
        is_discrete = hasattr(action_space, "n") and not action_space.shape
        if isinstance(group_by, str) and group_by == "auto":
            is_local = self._rule is None or self._rule.needs_embedding
            group_by = "action" if is_discrete and is_local else None
        elif isinstance(group_by, str) and not (group_by == "action" and is_discrete):
            raise LofoError(
                "group_by must be 'auto', None, a function from an item to an integer, or 'action' "
                f"with discrete actions: got {group_by!r} with {action_space}"
            )
        self.buffer_size, self.n_envs = buffer_size, n_envs
        self.observation_space, self.action_space = observation_space, action_space
        self.handle_timeout_termination = handle_timeout_termination
        self.locality = locality
        self._group_by, self._fit_after, self._keep, self._limit = group_by, fit_after, keep, limit
        self._seed = int(np.random.randint(2**31)) if seed is None else seed  # noqa: NPY002
        self._has_warned = self._lost_locality = False
        self._pending: list[Any] = []  # transitions that wait to be embedded
        self._memory = self._empty_memory()

    @property
    def memory(self) -> ReplayBuffer:
        """The buffer behind this one, with everything that was added."""
        self._store_pending()
        return self._memory

    def __len__(self) -> int:
        return len(self.memory)

    def size(self) -> int:
        """The number of transitions held."""
        return len(self.memory)

    def metrics(self) -> dict[str, int | float]:
        """Occupancy and forgetting: see `lofo_rl.ReplayBuffer.metrics`."""
        return self.memory.metrics()

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any = None
    ) -> None:
        """Store one transition of each environment."""
        num = self.n_envs
        ended = np.array(as_array("done", done), np.float32).reshape(num, 1)
        if self.handle_timeout_termination:
            ended[_are_cut(infos, num)] = 0
        dtype = np.float32 if self.action_space.dtype == np.float64 else self.action_space.dtype
        self._pending.append(
            {
                "observation": self._shaped(obs),
                "action": np.array(as_array("action", action), dtype).reshape(num, -1),
                "next_observation": self._shaped(next_obs),
                "done": ended,
                "reward": np.array(as_array("reward", reward), np.float32).reshape(num, 1),
            }
        )
        waits = callable(self.locality) and self._fit_after is None
        if not waits or len(self._pending) * num >= MOST_PENDING:
            self._store_pending()

    def reset(self) -> None:
        """Forget all transitions. A locality that was learned stays."""
        self._pending.clear()
        self._memory = self._empty_memory()

    @property
    def group_by(self) -> Any:
        """The name of a leaf, a function from an item to an integer, or None."""
        return self._group_by

    @group_by.setter
    def group_by(self, group_by: Any) -> None:
        self._group_by = group_by
        if self._memory.rule.needs_embedding:
            self._memory._group_by = group_by

    def __getstate__(self) -> dict[str, Any]:
        self._store_pending()
        state = dict(self.__dict__)
        if not _is_importable(self.locality):
            state.update(locality=None, _lost_locality=True)
        if not _is_importable(self._group_by):
            state.update(_group_by=_lost_group)
        state["_memory"] = serialization.to_bytes(*self._memory._pack())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with serialization.judged("the pickled buffer"):
            self._memory = self._unpacked(*serialization.from_bytes(state["_memory"]))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._store_pending()
        new = object.__new__(type(self))
        new.__dict__.update({name: copy.deepcopy(x, memo) for name, x in self.__dict__.items()})
        return new

    def _unpacked(self, manifest: dict[str, Any], arrays: serialization.Arrays) -> ReplayBuffer:
        """The buffer of a file, which names no rule and no groups that are the user's own."""
        rule = None if isinstance(manifest["rule"], dict) else self._rule
        is_given = callable(self._group_by) and manifest["is_grouped"]
        group_by = self._group_by if is_given else None
        return ReplayBuffer._unpack(manifest, arrays, rule, None, group_by, None)

    def _empty_memory(self) -> ReplayBuffer:
        rule = Fifo() if self._fit_after is not None else self._rule
        group_by = self._group_by if rule.needs_embedding else None  # type: ignore[union-attr]
        return ReplayBuffer(rule, self.buffer_size, seed=self._seed, group_by=group_by)  # type: ignore[arg-type]

    def _draw(self, batch_size: int) -> list[Any]:
        """The five parts of a uniform sample, as NumPy arrays."""
        items = self.memory.sample(batch_size).items
        if self._fit_after is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{len(self._memory):,} of fit_after={self._fit_after:,} transitions are there and "
                "the agent begins to learn: so the others do not come from a random policy. Let "
                "learning start after fit_after",
                LofoWarning,
                stacklevel=3,
            )
        names = "observation", "action", "next_observation", "done", "reward"
        return [items[name] for name in names]

    def _store_pending(self) -> None:
        """Embed what has waited in one call, and apply the rule to it in its order."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        clock = self._memory._ledger.clock
        try:
            self._store(_joined(pending))
        except Exception as error:
            if len(pending) == 1 or self._memory._ledger.clock != clock:
                raise
            for items in pending:  # one of them is bad: the others are stored
                with contextlib.suppress(type(error)):
                    self._store(items)
            raise
        if self._fit_after is not None and len(self._memory) >= self._fit_after:
            self._fit()

    def _store(self, items: Any) -> None:
        embedding = None
        if self._memory.rule.needs_embedding:
            embedding = self._embed(items["observation"])
        if len(items["reward"]) > 1:
            self._memory.extend(items, embedding=embedding)
        else:  # the same, faster
            point = None if embedding is None else as_array("embedding", embedding)[0]
            item = {k: _rows(x, 0) if isinstance(x, dict) else x[0] for k, x in items.items()}
            self._memory.add(item, embedding=point)

    def _fit(self) -> None:
        """Learn the locality, choose the radius, and apply the rule to all transitions so far."""
        items = self._memory.contents().items
        if not getattr(self.locality, "is_fitted", True):
            pairs = items["observation"], items["next_observation"]
            self.locality.fit(*pairs, seed=self._seed, num_envs=self.n_envs)
        num = len(self._memory)
        parts = [slice(k, k + AT_ONCE) for k in range(0, num, AT_ONCE)]
        points = [as_array("embedding", self._embed(_rows(items["observation"], p))) for p in parts]
        embedding = np.concatenate(points)
        if self._keep is not None:
            groups = None
            if callable(self._group_by):
                groups = [self._group_by(_rows(items, k)) for k in range(num)]
            elif self._group_by is not None:
                groups = items["action"].ravel()
            self._rule = rule = Local.keeping(
                self._keep, embedding, self._limit, groups=groups, nearest=True
            )
            if not 2 / 3 < (rule.expected_size or 0) / self._keep < 3 / 2:
                warnings.warn(
                    f"no radius keeps about {self._keep:,} transitions: {rule} will keep about "
                    f"{rule.expected_size:,}. Another limit keeps another number",
                    LofoWarning,
                    stacklevel=4,
                )
        self._fit_after = None
        self._memory = self._empty_memory()
        self._memory.extend(items, embedding=embedding)

    def _shaped(self, obs: Any) -> Any:
        """A copy of the observations [n_envs, ...]."""
        return shaped("obs", obs, self.observation_space, self.n_envs)

    def _embed(self, observations: Any) -> Any:
        """The embeddings [n, D] of observations [n, ...]."""
        if self._lost_locality and self.locality is None:
            raise LofoError(
                "the locality was a function that cannot be pickled, so the loaded buffer has "
                "none: set its attribute locality, as in model.replay_buffer.locality = function"
            )
        if self.locality is None:
            return observations.reshape(len(observations), -1)
        return getattr(self.locality, "embed", self.locality)(observations)


def shaped(name: str, obs: Any, space: Any, num: int) -> Any:
    """A copy of observations [num, ...]; discrete ones are stored as [num, 1]."""
    given = as_array(name, obs)
    shape = tuple(space.shape)
    if given.shape != (num, *shape):
        raise LofoError(
            f"{name} must have shape {(num, *shape)}, n_envs={num} observations of shape {shape}: "
            f"got {given.shape}"
        )
    return np.array(given, space.dtype).reshape(num, *(shape or (1,)))


def _is_importable(x: Any) -> bool:
    """Whether another program can find it: no lambda, and no function of a script."""
    if getattr(x, "__module__", "") == "__main__" or type(x).__module__ == "__main__":
        return False
    try:
        pickle.dumps(x)
    except Exception:
        return False
    return True


def _lost_group(item: Any) -> int:
    raise LofoError(
        "group_by was a function that cannot be pickled, so the loaded buffer has none: set its "
        "attribute group_by, as in model.replay_buffer.group_by = function"
    )


def _are_cut(infos: Any, num: int) -> Any:
    """Which episodes were ended by a time limit [num]."""
    if not isinstance(infos, list | tuple) or len(infos) != num:
        raise LofoError(
            f"infos must be a list of {num} dicts, got {type(infos).__name__}. With Gymnasium's "
            "vector environments give handle_timeout_termination=False and, as done, terminations"
        )
    return np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])


def _rows(tree: Any, rows: Any) -> Any:
    """Some rows of every array in nested dicts."""
    if isinstance(tree, dict):
        return {name: _rows(part, rows) for name, part in tree.items()}
    return tree[rows]


def _joined(trees: list[Any]) -> Any:
    """One nested dict of the arrays of several."""
    if len(trees) == 1:
        return trees[0]
    if isinstance(trees[0], dict):
        return {name: _joined([tree[name] for tree in trees]) for name in trees[0]}
    return np.concatenate(trees)
