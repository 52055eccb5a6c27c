"""Learners; they know no buffer and no world."""

import jax

from lofo.agents.base import Agent, Appetite
from lofo.agents.dyna_q import DynaQ, DynaQState, Prediction
from lofo.agents.dyna_q_onchip import DynaQOnChip

__all__ = ["Agent", "Appetite", "DynaQ", "DynaQState", "Prediction", "on_chip"]


def on_chip(agent: Agent) -> DynaQOnChip | None:
    """The agent's hand-written kernels, where it has some and the device can run them."""
    if jax.default_backend() == "gpu" and isinstance(agent, DynaQ) and DynaQOnChip.fits(agent):
        return DynaQOnChip(agent)
    return None
