"""DreamerV2's windows observed forth and back, by the compiler's kernels and by our own.

    python benchmarks/observing.py [--batch 16] [--window 50] [--embedding 1536]

Prints milliseconds of each, how often both drew the same classes, and how far the gradients of all
layers are apart (a class drawn otherwise, which rounding may do, changes all that follows). Without
a GPU both are the compiler's.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.networks import RSSM

NUM_CLASSES = 32
REPEATS = 20


def main(batch: int, window: int, embedding: int) -> None:
    rng = np.random.default_rng(0)
    shape = batch, window
    plain = RSSM(own_kernels=False)
    params = plain.init(jax.random.key(0), 2, embedding)
    actions = jnp.asarray(rng.uniform(-1, 1, (*shape, 2)), jnp.float32)
    embeddings = jnp.asarray(rng.normal(size=(*shape, embedding)), jnp.float32)
    is_first = jnp.asarray(rng.random(shape) < 0.03).at[:, 0].set(True)
    sizes = (plain.deterministic_size,), (plain.latent.size,), *[(32, NUM_CLASSES)] * 2
    wanted = [jnp.asarray(rng.normal(size=(*shape, *size)), jnp.float32) for size in sizes]

    def loss(model, params):
        cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.ndim > 1 else x, params)
        observe = model.observe_window
        states, *guesses = observe(cast, actions, embeddings, is_first, jax.random.key(7))
        found = [states.deterministic, states.stochastic, *jax.tree.leaves(guesses)]
        pairs = zip(wanted, found, strict=True)
        return sum(jnp.sum(w * x.reshape(w.shape)) for w, x in pairs), states

    print(f"device: {jax.devices()[0].device_kind}, jax {jax.__version__}")
    told = []
    for name, model in (("compiler's", plain), ("our own", replace(plain, own_kernels=True))):
        began = time.perf_counter()
        run = jax.jit(jax.grad(partial(loss, model), has_aux=True)).lower(params).compile()
        compiled = time.perf_counter() - began
        told.append(jax.device_get(run(params)))
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(run(params))
            times.append(time.perf_counter() - began)
        print(f"{name}: {1e3 * min(times):.3f} ms, compiled in {compiled:.1f} s", flush=True)

    (gradients, states), (others, other_states) = told
    drawn = [
        s.stochastic.reshape(*shape, -1, NUM_CLASSES).argmax(-1) for s in (states, other_states)
    ]
    print(f"classes drawn alike: {np.mean(drawn[0] == drawn[1]):.4%}")
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    for (path, one), other in zip(leaves, jax.tree.leaves(others), strict=True):
        apart = np.linalg.norm(one - other) / np.linalg.norm(one)
        print(f"gradient of {jax.tree_util.keystr(path)}: {apart:.2%} of its length apart")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--embedding", type=int, default=1536)
    main(**vars(parser.parse_args()))
