"""Where is near: localities, and what their distances look like."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lofo_rl.extras import needs

if TYPE_CHECKING:
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

# A module is imported when a name of it is first used: not all of them need jax.
_HOMES = {
    "contrastive": ("Contrastive",),
    "diagnostics": ("Suggestion", "diagnose", "suggest_radius"),
    "handcrafted": ("Handcrafted",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "base")
    with needs("lab" if name == "Contrastive" else "jax", f"{__name__}.{name}"):
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
