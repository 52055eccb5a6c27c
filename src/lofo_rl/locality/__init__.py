"""Where is near: localities, and what their distances look like."""

from lofo_rl.locality.base import Gradual, Locality, Pairs, pairs_of
from lofo_rl.locality.contrastive import Contrastive
from lofo_rl.locality.diagnostics import Suggestion, diagnose, suggest_radius
from lofo_rl.locality.handcrafted import Handcrafted

__all__ = [
    "Contrastive",
    "Gradual",
    "Handcrafted",
    "Locality",
    "Pairs",
    "Suggestion",
    "diagnose",
    "pairs_of",
    "suggest_radius",
]
