"""Agents: they act and learn, and know neither buffer nor world."""

from lofo.agents.base import Agent, Appetite
from lofo.agents.dreamer import Dreamer, DreamerState
from lofo.agents.dyna_q import DynaQ, DynaQState, Prediction
from lofo.agents.dyna_q_onchip import DynaQOnChip
from lofo.agents.planet import PlaNet, PlaNetState
from lofo.agents.world_model import WorldModel
from lofo.networks.onchip import is_supported

__all__ = [
    "Agent",
    "Appetite",
    "Dreamer",
    "DreamerState",
    "DynaQ",
    "DynaQState",
    "PlaNet",
    "PlaNetState",
    "Prediction",
    "WorldModel",
    "on_chip",
]


def on_chip(agent: Agent) -> DynaQOnChip | None:
    """The agent's hand-written kernels, where it has some and the device can run them."""
    if isinstance(agent, DynaQ) and DynaQOnChip.fits(agent) and is_supported():
        return DynaQOnChip(agent)
    return None
