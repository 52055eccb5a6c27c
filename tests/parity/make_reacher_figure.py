"""Draws MuJoCo's frames beside ours for the documentation.

python tests/parity/make_reacher_figure.py
"""

from pathlib import Path

import jax
import numpy as np
from matplotlib import pyplot as plt

from lofo_rl.environments.raster import draw

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "docs" / "images" / "reacher-parity.png"
PER_WORLD = 3


def main() -> None:
    figure, axes = plt.subplots(3, 2 * PER_WORLD, figsize=(12, 6.3), layout="constrained")
    with np.load(HERE / "reacher_frames.npz", allow_pickle=False) as drawn:
        for world, name in enumerate(("fixed", "randomized")):
            parts = (drawn[f"{name}_{part}"][:PER_WORLD] for part in ("angles", "directions"))
            ours = np.asarray(jax.jit(draw, static_argnums=2)(*parts, name == "randomized"))
            for column, frame in enumerate(drawn[f"{name}_frames"][:PER_WORLD]):
                difference = np.abs(frame.astype(int) - ours[column]).max(axis=-1)
                three = axes[:, world * PER_WORLD + column]
                three[0].imshow(frame)
                three[1].imshow(ours[column])
                image = three[2].imshow(difference, cmap="magma", vmin=0, vmax=255)
            axes[0, world * PER_WORLD + 1].set_title(
                "RandomizedReacherLoCA" if world else "ReacherLoCA"
            )
    for row, label in enumerate(("MuJoCo", "lofo", "difference")):
        axes[row, 0].set_ylabel(label)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(image, ax=axes[2, -1], label="largest of the three channels")
    figure.savefig(OUT, dpi=100)


if __name__ == "__main__":
    main()
