"""World models small enough for pictures of 8 × 8, and parameters that cost nothing to draw."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.agents.losses import HingedKL
from lofo_rl.agents.world_model import WorldModel
from lofo_rl.networks import CNN, MLP, RSSM, Discrete, Gaussian, TransposedCNN

TINY = WorldModel(
    (8, 8, 1),
    1,
    encoder=CNN((8, 16), (4, 3), (2, 1), "elu", "glorot"),
    decoder=TransposedCNN((16, 1), (3, 4), (2, 2), "elu", "glorot"),
    canvas_size=32,
    rssm=RSSM(Discrete(4, 4), deterministic_size=32, hidden_size=32),
    reward_head=MLP((32,), "elu", "glorot"),
)
TINY_PLANET = replace(
    TINY,
    rssm=RSSM(Gaussian(6), 32, 32, "relu", layer_norm=False),
    divergence=HingedKL(),
    reward_weight=10.0,
    num_bits=5,
)
# For programs that run once: most of their time would go into making them fast.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def drawn(init, *args, scale=1.0):
    """What `init(key, *args)` might give, without the seconds that compiling it takes.

    Integers are 0 and vectors small noise, times the scale.
    """
    rng = np.random.default_rng(0)

    def draw(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        size = np.sqrt(np.prod(leaf.shape[:-1])) if len(leaf.shape) > 1 else 10
        return np.float32(scale * rng.normal(size=leaf.shape) / size)

    shapes = jax.eval_shape(lambda: init(jax.random.key(0), *args))
    return jax.tree.map(lambda leaf: jnp.asarray(draw(leaf)), shapes)
