"""Replay buffers in NumPy: rules of forgetting, and the object `ReplayBuffer`."""

from lofo_rl.buffers.calibration import Suggestion, suggest_radius
from lofo_rl.buffers.diagnosis import Candidate, Diagnosis, diagnose
from lofo_rl.buffers.priorities import Prioritized
from lofo_rl.buffers.replay_buffer import ReplayBuffer
from lofo_rl.buffers.rules import Fifo, LedgerView, Local, Placement, Reservoir, Rule

__all__ = [
    "Candidate",
    "Diagnosis",
    "Fifo",
    "LedgerView",
    "Local",
    "Placement",
    "Prioritized",
    "ReplayBuffer",
    "Reservoir",
    "Rule",
    "Suggestion",
    "diagnose",
    "suggest_radius",
]
