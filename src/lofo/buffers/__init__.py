"""Replay buffers: rules of forgetting, an index that decides where, a storage that holds what."""

from lofo.buffers.check import check_rule
from lofo.buffers.forgetting import Fifo, Forgetting, Local, Reservoir, near
from lofo.buffers.index import Draw, Index, SequenceIndex, SequenceState, TransitionIndex
from lofo.buffers.ledger import Ledger, Placement
from lofo.buffers.objects import ReplayBuffer
from lofo.buffers.replay import Replay, ReplayState
from lofo.buffers.sampling import ByError, ByReward, Sampler, Uniform
from lofo.buffers.storage import DeviceStorage, HostStorage, Storage
from lofo.buffers.trajectory import Trajectory

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
