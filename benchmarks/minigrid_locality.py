"""How far apart the learned locality of MiniGridLoCA puts the 248 start states.

    python benchmarks/minigrid_locality.py --seeds 0 1 2

The fit is that of the named run, seed for seed, with one difference: the 256 pictures share almost
all of their patches, so each distinct patch goes through a layer once. The distances are then
measured with the locality itself. A fit takes about a minute on two CPU cores, in place of half an hour.
"""

import argparse
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.minigrid_pixels import draw_frames
from lofo_rl.experiments import REGISTRY, Pack
from lofo_rl.experiments.fitting import collect_pairs
from lofo_rl.experiments.paper_minigrid import MINIGRID, MINIGRID_ENCODER, MINIGRID_LOCALITY
from lofo_rl.locality import Contrastive, measure_distances
from lofo_rl.types import Array, Tree

LOFO = REGISTRY["minigrid/dyna_q/lofo"]


class Mosaic(NamedTuple):
    """The distinct patches of all pictures, layer by layer."""

    pixels: np.ndarray  # [distinct, k · k · channels] float32, what the first layer sees
    deeper: tuple[np.ndarray, ...]  # [distinct, k · k] rows of the layer before
    places: np.ndarray  # [pictures, height, width] rows of the last layer


@lru_cache(maxsize=1)
def mosaic() -> Mosaic:
    """Of the paper's pictures under the paper's encoder."""
    frames = draw_frames(MINIGRID)
    kernels, strides = MINIGRID_ENCODER.kernels, MINIGRID_ENCODER.strides
    patches = _patches(frames, kernels[0], strides[0])
    pixels, places = _distinct(patches.reshape(*patches.shape[:3], -1))
    deeper = []
    for kernel, stride in zip(kernels[1:], strides[1:], strict=True):
        rows, places = _distinct(_patches(places, kernel, stride))
        deeper.append(rows)
    return Mosaic(pixels.astype(np.float32) / 255, tuple(deeper), places)


def _patches(x: np.ndarray, kernel: int, stride: int) -> np.ndarray:
    """[N, H, W, ...] to [N, h, w, k · k, ...]."""
    side = (x.shape[1] - kernel) // stride + 1
    ends = [slice(i, i + stride * (side - 1) + 1, stride) for i in range(kernel)]
    return np.stack([x[:, rows, columns] for rows in ends for columns in ends], axis=3)


def _distinct(patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = patches.reshape(-1, patches.shape[-1])
    rows, inverse = np.unique(flat, axis=0, return_inverse=True)
    return rows, inverse.reshape(patches.shape[:-1])


@dataclass(frozen=True)
class FittedByPatches(Contrastive):
    """Embeds the table of all pictures from their distinct patches."""

    def _encode(self, params: Tree, observation: Array) -> Array:
        if len(observation) != MINIGRID.num_codes:
            return super()._encode(params, observation)
        _, encoder, hidden, last = params
        _, _, dense, linear = self.encoder.parts
        return linear.apply(last, dense.apply(hidden, embed_all(encoder)))


def embed_all(encoder: Tree) -> Array:
    """What the paper's encoder makes of all pictures, [codes, features]."""
    pixels, deeper, places = mosaic()
    first, *rest = encoder
    x = _layer(first, jnp.asarray(pixels))
    for layer, rows in zip(rest, deeper, strict=True):
        x = _layer(layer, x[rows].reshape(len(rows), -1))
    return x[places].reshape(len(places), -1)


def _layer(layer: dict[str, Array], patches: Array) -> Array:
    weight = layer["weight"]
    # The patches hold channels last, the weight has them first.
    flat = jnp.moveaxis(weight, 0, 2).reshape(-1, weight.shape[-1])
    return jax.nn.relu(patches @ flat + layer["bias"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    quick = FittedByPatches(**vars(MINIGRID_LOCALITY))
    starts = np.flatnonzero(MINIGRID.evaluation_start())
    for seed in seeds:
        pack = Pack((replace(LOFO, seeds=(seed,)),))
        key_init, key_collect, key_fit, key_diagnose = jax.random.split(pack.streams.locality[0], 4)
        pairs = collect_pairs(pack, LOFO.buffer.locality_steps, key_collect)
        pairs = pairs._replace(table=MINIGRID.decode(pairs.table))
        params, metrics = jax.jit(quick.fit)(quick.init(key_init), pairs, key_fit)
        points = np.asarray(MINIGRID_LOCALITY.embed(params, pairs.table))
        assert np.allclose(points, quick.embed(params, pairs.table), atol=1e-6)
        points = points[starts]
        gaps = np.linalg.norm(points[:, None] - points, axis=-1)[np.triu_indices(len(points), 1)]
        told = measure_distances(MINIGRID_LOCALITY, params, pairs, key_diagnose)
        print(
            f"seed {seed}: closest {gaps.min():.5f}, median {np.median(gaps):.3f}, median of a step "
            f"{told['step_q50']:.4f}, loss {metrics['loss']:.3f}; pairs closer than "
            + ", ".join(f"{r:g}: {(gaps < r).sum()}" for r in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)),
            flush=True,
        )


if __name__ == "__main__":
    main()
