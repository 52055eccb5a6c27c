"""Replay buffers: rules of forgetting, an index that decides where, a storage that holds what."""

from lofo_rl.buffers.check import check_rule
from lofo_rl.buffers.forgetting import Fifo, Forgetting, Local, Reservoir, near
from lofo_rl.buffers.index import Draw, Index, SequenceIndex, SequenceState, TransitionIndex
from lofo_rl.buffers.ledger import Ledger, Placement
from lofo_rl.buffers.objects import ReplayBuffer
from lofo_rl.buffers.replay import Replay, ReplayState
from lofo_rl.buffers.sampling import ByError, ByReward, Sampler, Uniform
from lofo_rl.buffers.storage import DeviceStorage, HostStorage, Storage
from lofo_rl.buffers.trajectory import Trajectory

__all__ = [
    "ByError",
    "ByReward",
    "DeviceStorage",
    "Draw",
    "Fifo",
    "Forgetting",
    "HostStorage",
    "Index",
    "Ledger",
    "Local",
    "Placement",
    "Replay",
    "ReplayBuffer",
    "ReplayState",
    "Reservoir",
    "Sampler",
    "SequenceIndex",
    "SequenceState",
    "Storage",
    "Trajectory",
    "TransitionIndex",
    "Uniform",
    "check_rule",
    "near",
]
