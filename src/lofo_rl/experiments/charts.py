"""Maps of a phase, on the chart of its world: arrays in a file, and the rows that name it."""

from pathlib import Path

import jax
import numpy as np

from lofo_rl.experiments import loop
from lofo_rl.experiments.pack import Pack, Runs
from lofo_rl.experiments.timeline import Block
from lofo_rl.records import ALL_SEEDS, Row, write_arrays


def write_maps(pack: Pack, runs: Runs, block: Block, folder: Path) -> list[Row]:
    """Draws the phase as it stands, over what was drawn of it before; the rows name the files."""
    environment = pack.lead.environment
    task = environment.train_task(block.phase)
    maps = jax.tree.map(np.asarray, loop.picture(pack, runs, task))
    chart = environment.chart()
    in_zone = jax.vmap(environment.in_t1_zone)(chart.states)  # as many looks at every cell
    frame = {
        "extent": np.asarray(chart.extent),
        "axes": np.asarray(chart.axes),
        "t1_zone": np.asarray(in_zone).reshape(*chart.shape, -1).any(-1),
    }
    rows = []
    for k, experiment in enumerate(pack.experiments):
        name = f"{experiment.id.replace('/', '-')}-phase{block.phase}"
        file = write_arrays(folder, name, pack.part(maps, k) | frame)
        rows.append(Row(experiment.id, ALL_SEEDS, block.phase, block.last_step, "maps", file))
    return rows
