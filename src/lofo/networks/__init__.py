"""Networks without a framework: `init` and `apply`."""

from lofo.networks.blocks import (
    CNN,
    IDENTITY,
    MLP,
    Chain,
    Initialisation,
    Network,
    Pixels,
    Rescale,
    linear,
)

__all__ = [
    "CNN",
    "IDENTITY",
    "MLP",
    "Chain",
    "Initialisation",
    "Network",
    "Pixels",
    "Rescale",
    "linear",
]
