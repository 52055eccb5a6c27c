"""Agents: they act and learn, and know neither buffer nor world."""

from lofo_rl.extras import needs

with needs("lab", __name__):
    from lofo_rl.agents.base import Agent, Appetite
    from lofo_rl.agents.dreamer import Dreamer, DreamerState
    from lofo_rl.agents.dyna_q import DynaQ, DynaQState, Prediction
    from lofo_rl.agents.dyna_q_onchip import DynaQOnChip
    from lofo_rl.agents.planet import PlaNet, PlaNetState
    from lofo_rl.agents.world_model import WorldModel
    from lofo_rl.networks.onchip import is_supported

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
