"""Where is near: localities, and what their distances look like."""

from lofo.locality.base import Gradual, Locality, Pairs, pairs_of
from lofo.locality.contrastive import Contrastive
from lofo.locality.diagnostics import Suggestion, diagnose, suggest_radius
from lofo.locality.handcrafted import Handcrafted

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
