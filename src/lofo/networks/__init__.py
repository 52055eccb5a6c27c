"""Networks without a framework: `init` and `apply`."""

from lofo.networks.blocks import (
    IDENTITY,
    MLP,
    Chain,
    Initialisation,
    Network,
    Rescale,
    linear,
)
from lofo.networks.pictures import CNN, Pixels, TransposedCNN, check_shape

__all__ = [
    "CNN",
    "IDENTITY",
    "MLP",
    "Chain",
    "Initialisation",
    "Network",
    "Pixels",
    "Rescale",
    "TransposedCNN",
    "check_shape",
    "linear",
]
