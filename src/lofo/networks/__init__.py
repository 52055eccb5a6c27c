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
from lofo.networks.distributions import Discrete, Gaussian, Latent, Statistics
from lofo.networks.pictures import CNN, Pixels, TransposedCNN, check_shape
from lofo.networks.rssm import RSSM, RSSMState

__all__ = [
    "CNN",
    "IDENTITY",
    "MLP",
    "RSSM",
    "Chain",
    "Discrete",
    "Gaussian",
    "Initialisation",
    "Latent",
    "Network",
    "Pixels",
    "RSSMState",
    "Rescale",
    "Statistics",
    "TransposedCNN",
    "check_shape",
    "linear",
]
