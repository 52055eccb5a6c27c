"""Networks without a framework: `init` and `apply`."""

from lofo_rl.extras import needs

with needs("lab", __name__):
    from lofo_rl.networks.blocks import (
        IDENTITY,
        MLP,
        Chain,
        Initialisation,
        Network,
        Rescale,
        linear,
    )
    from lofo_rl.networks.distributions import Discrete, Gaussian, Latent, Statistics
    from lofo_rl.networks.gallery import Gallery, Picked, Pictures, pixels_of, see_through
    from lofo_rl.networks.pictures import CNN, Pixels, TransposedCNN, check_shape, reads_pictures
    from lofo_rl.networks.rssm import RSSM
    from lofo_rl.networks.states import RSSMState

__all__ = [
    "CNN",
    "IDENTITY",
    "MLP",
    "RSSM",
    "Chain",
    "Discrete",
    "Gallery",
    "Gaussian",
    "Initialisation",
    "Latent",
    "Network",
    "Picked",
    "Pictures",
    "Pixels",
    "RSSMState",
    "Rescale",
    "Statistics",
    "TransposedCNN",
    "check_shape",
    "linear",
    "pixels_of",
    "reads_pictures",
    "see_through",
]
