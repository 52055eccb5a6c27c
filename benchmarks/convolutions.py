"""The two directions of the picture networks, as patches and as convolutions, forward and backward.

python benchmarks/convolutions.py --runs 1 3
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from lofo_rl.experiments.paper_minigrid import MINIGRID_AGENT, MINIGRID_ENCODER
from lofo_rl.networks import CNN, TransposedCNN
from lofo_rl.types import Array, Key, Tree

LAYOUT = ("NHWC", "HWIO", "NHWC")
BATCH = 128
REPEATS = 5
# The named run draws in bfloat16; a ratio wants both in float32.
DECODER = replace(MINIGRID_AGENT.decoder, dtype="float32")


def read_with_lax(network: CNN, params: Tree, x: Array) -> Array:
    """`CNN.apply` with the convolution of jax."""
    for layer, stride in zip(params, network.strides, strict=True):
        strides, weight = (stride, stride), inputs_third(layer["weight"])
        x = jax.lax.conv_general_dilated(x, weight, strides, "VALID", dimension_numbers=LAYOUT)
        x = jax.nn.relu(x + layer["bias"])
    return x.reshape(len(x), -1)


def draw_with_lax(network: TransposedCNN, params: Tree, x: Array) -> Array:
    """`TransposedCNN.apply` with the transposed convolution of jax."""
    x = x[:, None, None]
    for k, (layer, stride) in enumerate(zip(params, network.strides, strict=True)):
        # jax lays a kernel down the other way round
        turned = inputs_third(layer["weight"])[::-1, ::-1]
        strides = (stride, stride)
        x = jax.lax.conv_transpose(x, turned, strides, "VALID", dimension_numbers=LAYOUT)
        x = x + layer["bias"]
        x = jax.nn.relu(x) if k < len(params) - 1 else x
    return x


def inputs_third(weight: Array) -> Array:
    """A weight [inputs, k, k, outputs] as convolutions of jax want it."""
    return jnp.moveaxis(weight, 0, 2)


def milliseconds(apply: Callable[[Tree, Array], Array], params: Tree, x: Array) -> float:
    """The fastest of some gradients of all runs together."""
    gradient = jax.jit(jax.vmap(jax.grad(lambda p, v: jnp.sum(apply(p, v) ** 2))))
    jax.block_until_ready(gradient(params, x))
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(gradient(params, x))
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 3])
    counts = parser.parse_args().runs
    networks = [
        ("encoder", MINIGRID_ENCODER, (80, 80, 3), read_with_lax),
        ("decoder", DECODER, (1027,), draw_with_lax),
    ]
    print(f"milliseconds for a gradient with {BATCH} samples a run, on {jax.devices()[0]}")
    for name, network, shape, with_lax in networks:
        for runs in counts:
            keys = jax.random.split(jax.random.key(0), runs)

            def draw(key: Key, network: CNN | TransposedCNN = network, shape=shape) -> Tree:
                return network.init(key, shape)[0]

            params = jax.vmap(draw)(keys)
            x = jax.random.uniform(jax.random.key(1), (runs, BATCH, *shape))
            ours = milliseconds(network.apply, params, x)
            theirs = milliseconds(lambda p, v, n=network, f=with_lax: f(n, p, v), params, x)
            print(
                f"{name}, {runs} runs: patches {ours:.0f}, lax {theirs:.0f}, {theirs / ours:.1f}x"
            )


if __name__ == "__main__":
    main()
