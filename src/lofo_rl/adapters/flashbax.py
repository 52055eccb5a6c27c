"""Local forgetting behind flashbax's functions `init`, `add`, `sample` and `can_sample`.

    buffer = make_lofo_buffer(
        max_length=30_000, min_length=256, sample_batch_size=256, radius=0.1, limit=2,
        embed=lambda item: item.obs, add_batches=True,
    )

All functions are pure and run under jit, vmap, scan and pmap. Items of a batch are added one after
the other, in their order, because each may replace one of those before it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from lofo_rl.buffers import Reservoir, Rule
from lofo_rl.buffers.rules import either_rule
from lofo_rl.extras import needs
from lofo_rl.types import LofoError

with needs("flashbax", __name__):
    import jax
    import jax.numpy as jnp
    from flashbax.buffers.trajectory_buffer import TrajectoryBuffer, TrajectoryBufferSample

    from lofo_rl.functional import Replay, SequenceIndex, TransitionIndex

Embed = Callable[[Any], Any]


class MaskedSample(NamedTuple):
    """Sequences [B, T, ...], and which of their rewards are known [B, T].

    False where the start of a step was forgotten, so that its reward may be stale: multiply the
    reward loss by it.
    """

    experience: Any
    reward_known: Any


def make_lofo_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
    *,
    radius: float | None = None,
    limit: int = 1,
    rule: Rule | None = None,
    embed: Embed | None = None,
    group_by: Any = None,
) -> Any:
    """In place of `flashbax.make_item_buffer`: single items, of which the rule keeps some.

    The first five arguments are flashbax's. `radius` and `limit` are those of `lofo_rl.Local`; or
    give `rule=`. `embed` turns an item into a vector; without it, that is the flat `obs` or
    `observation` of the item. `group_by` is the name of a leaf, such as "action", or a function
    from an item to an integer: only items of the same group are neighbors.
    Under pmap each device has a buffer, and neighbors, of its own.
    """
    if not 0 < min_length <= max_length:
        raise LofoError(f"min_length must be 1 to max_length={max_length}, got {min_length}")
    replay = Replay(TransitionIndex(_rule(radius, limit, rule), max_length), group_by)
    num_axes = add_batches + add_sequences

    def add(state: Any, items: Any) -> Any:
        if not num_axes:
            return _add(replay, state, items, embed)
        if num_axes == 2:  # [B, T]: what happened first comes first
            items = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items)
            items = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
        return jax.lax.scan(lambda s, item: (_add(replay, s, item, embed), None), state, items)[0]

    return TrajectoryBuffer(
        init=lambda item: _init(replay, item, embed),
        add=add,
        sample=lambda state, key: TrajectoryBufferSample(
            experience=replay.sample(state, sample_batch_size, key).items
        ),
        can_sample=lambda state: state.index.size >= min_length,
    )


def make_lofo_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    max_starts: int,
    *,
    min_starts: int = 1,
    max_steps: int | None = None,
    radius: float | None = None,
    limit: int = 1,
    rule: Rule | None = None,
    embed: Embed | None = None,
    group_by: Any = None,
) -> Any:
    """In place of `flashbax.make_trajectory_buffer`: sequences, of whose starts some are kept.

    `add` takes [add_batch_size, T, ...]. Each of the `add_batch_size` environments has a buffer,
    and neighbors, of its own: with up to `max_starts` starts and `max_steps` steps. A sample has
    as many sequences of each environment, so `sample_batch_size` is a multiple of their number.
    `sample(state, key)` is a `MaskedSample`. `can_sample` waits for `min_starts` complete sequences
    of each environment. The other arguments are those of `make_lofo_buffer`.
    """
    if sample_batch_size % add_batch_size:
        raise LofoError(
            f"sample_batch_size={sample_batch_size} must be a multiple of "
            f"add_batch_size={add_batch_size}"
        )
    num_each = sample_batch_size // add_batch_size
    own = _rule(radius, limit, rule)
    replay = Replay(
        SequenceIndex(own, max_starts, sample_sequence_length, num_slots=max_steps), group_by
    )

    def init(item: Any) -> Any:
        one = _init(replay, item, embed)
        return jax.tree.map(lambda x: jnp.repeat(x[None], add_batch_size, 0), one)

    def add(state: Any, items: Any) -> Any:
        def extend(own: Any, steps: Any) -> Any:
            return jax.lax.scan(lambda s, x: (_add(replay, s, x, embed), None), own, steps)[0]

        return jax.vmap(extend)(state, items)

    def sample(state: Any, key: Any) -> MaskedSample:
        keys = jax.random.split(key, add_batch_size)
        batch = jax.vmap(lambda s, k: replay.sample(s, num_each, k))(state, keys)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return MaskedSample(flat.items, flat.reward_known)

    def can_sample(state: Any) -> Any:
        num = jax.vmap(lambda s: jnp.sum(replay.index.drawable(s.index)))(state)
        return jnp.all(num >= min_starts)

    return TrajectoryBuffer(init=init, add=add, sample=sample, can_sample=can_sample)


def metrics(state: Any) -> dict[str, Any]:
    """Occupancy and forgetting of a state of either buffer, as arrays."""
    ledger = getattr(state.index, "ledger", state.index)
    return {"size": ledger.size, "evictions": ledger.evictions, "overflow": ledger.overflow}


def _rule(radius: float | None, limit: int, rule: Rule | None) -> Rule:
    found = either_rule(radius, limit, rule)
    if isinstance(found, Reservoir):
        raise LofoError(
            "Reservoir draws at random, and flashbax's add has no key: use lofo_rl.Replay, whose "
            "add has one"
        )
    return found


def _embedding(item: Any, embed: Embed | None) -> Any:
    """The embedding [D] of an item."""
    if embed is None:
        for name in ("obs", "observation"):
            part = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
            if part is not None:
                return jnp.asarray(part, jnp.float32).reshape(-1)
        raise LofoError("the item has no obs and no observation: give embed=, item to vector")
    return jnp.asarray(embed(item), jnp.float32).reshape(-1)


def _init(replay: Replay, item: Any, embed: Embed | None) -> Any:
    size = 0
    if replay.index.rule.needs_embedding:  # type: ignore[attr-defined]  # both kinds have one
        size = jax.eval_shape(lambda x: _embedding(x, embed), item).shape[0]
    return replay.init(item, size)


def _add(replay: Replay, state: Any, item: Any, embed: Embed | None) -> Any:
    point = None
    if replay.index.rule.needs_embedding:  # type: ignore[attr-defined]
        point = _embedding(item, embed)
    return replay.add(state, item, point)
