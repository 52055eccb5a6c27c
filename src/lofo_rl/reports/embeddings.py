"""A fitted locality over its world: what it takes for alike, and how far a radius reaches."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lofo_rl.reports.curves import save, spell_out


def draw_locality(
    maps: Mapping[str, np.ndarray],
    extent: tuple[float, float, float, float],
    axes: tuple[str, str],
    radius: float,
    title: str,
    path: Path,
) -> None:
    """Draws the maps of a survey, a row for each look at the world."""
    num_looks = maps["gap"].shape[2]
    figure = Figure(figsize=(8.0, 0.8 + 3.1 * num_looks), layout="constrained")
    figure.suptitle(title, fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    panels = figure.subplots(num_looks, 2, squeeze=False, sharex=True, sharey=True)
    left, right, bottom, top = extent
    wide = abs((right - left) / (top - bottom))
    gaps = maps["gap"] / radius
    low, high = np.nanquantile(gaps, (0.01, 0.99))
    norm = LogNorm(max(low, 1e-3), max(high, 1e-2))
    for look, (alike, reach) in enumerate(panels):
        alike.set_title("embedding: alike are near" if look == 0 else "", fontsize=10)
        reach.set_title("distance to the next cells, in radii" if look == 0 else "", fontsize=10)
        colours = maps["colours"][:, :, look]
        is_known = ~np.isnan(colours[..., :1])
        colours = np.concatenate([np.nan_to_num(colours), is_known], axis=-1)
        shown = [(alike, colours, {}), (reach, gaps[:, :, look], {"norm": norm})]
        for panel, values, options in shown:
            drawn = panel.imshow(
                values,
                extent=extent,
                origin="upper" if bottom > top else "lower",
                aspect="equal" if 0.5 <= wide <= 2 else "auto",
                interpolation="nearest",
                **options,
            )
            panel.tick_params(labelsize=8)
            panel.set_xlabel(axes[0] if look == num_looks - 1 else "", fontsize=9)
        alike.set_ylabel(axes[1] if num_looks == 1 else f"look {look + 1}\n{axes[1]}", fontsize=9)
    bar = figure.colorbar(drawn, ax=panels[:, 1], shrink=min(1.0, 1.5 / num_looks), extend="both")
    bar.set_label("below 1: the next cell is a neighbor", fontsize=9)
    spell_out(bar.ax.yaxis)
    save(figure, path)
