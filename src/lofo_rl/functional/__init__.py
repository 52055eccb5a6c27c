"""Replay buffers as pure functions under jit, scan and vmap: an index decides where an item goes,
rows hold it, a sampler draws it."""

from lofo_rl.extras import needs

with needs("jax", __name__):
    from lofo_rl.buffers import Prioritized
    from lofo_rl.functional import samplers
    from lofo_rl.functional.index import Draw, Index, SequenceIndex, SequenceState, TransitionIndex
    from lofo_rl.functional.ledger import Ledger, Placement
    from lofo_rl.functional.replay import Replay, ReplayState
    from lofo_rl.functional.rules import near, place
    from lofo_rl.functional.samplers import ByReward, Sampler, Uniform
    from lofo_rl.functional.sequences import Trajectory
    from lofo_rl.functional.storage import PackedRows

__all__ = [
    "ByReward",
    "Draw",
    "Index",
    "Ledger",
    "PackedRows",
    "Placement",
    "Prioritized",
    "Replay",
    "ReplayState",
    "Sampler",
    "SequenceIndex",
    "SequenceState",
    "Trajectory",
    "TransitionIndex",
    "Uniform",
    "near",
    "place",
    "samplers",
]
