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
from lofo.networks.gallery import Gallery, Picked, Pictures, pixels_of, see_through
from lofo.networks.pictures import CNN, Pixels, TransposedCNN, check_shape, reads_pictures

__all__ = [
    "CNN",
    "IDENTITY",
    "MLP",
    "Chain",
    "Gallery",
    "Initialisation",
    "Network",
    "Picked",
    "Pictures",
    "Pixels",
    "Rescale",
    "TransposedCNN",
    "check_shape",
    "linear",
    "pixels_of",
    "reads_pictures",
    "see_through",
]
