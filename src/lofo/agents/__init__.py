"""Agents: they act and learn, and know neither buffer nor world."""

from lofo.agents.base import Agent, Appetite
from lofo.agents.dyna_q import DynaQ, DynaQState, Prediction

__all__ = ["Agent", "Appetite", "DynaQ", "DynaQState", "Prediction"]
