"""The numbers of a survey, in NumPy: by hand, and beside those of the compiled fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.locality import Handcrafted, measure_distances, pairs_of
from lofo_rl.locality.measures import (
    QUANTILES,
    chart_distances,
    mean_gap,
    neighbor_reach,
    quantiles,
    step_and_pair_distances,
)


def test_quantiles_leave_out_what_is_unknown():
    found = quantiles("gap", np.array([np.nan, *range(101), np.nan]))
    assert found == {f"gap_q{q}": float(q) for q in (1, 5, 25, 50, 75, 95, 99)}
    assert quantiles("gap", np.full(3, np.nan)) == {}


def test_distances_of_steps_and_pairs_are_those_of_the_compiled_fit():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4000, 3)).astype(np.float32)
    successors = points + rng.normal(size=(4000, 3)).astype(np.float32) / 10
    found = step_and_pair_distances(points, successors, rng)
    pairs = pairs_of(jnp.asarray(points), jnp.asarray(successors))
    compiled = measure_distances(Handcrafted((1.0, 1.0, 1.0)), (), pairs, jax.random.key(0))
    assert found.keys() == compiled.keys() and len(found) == 2 + 2 * len(QUANTILES)
    for name, value in found.items():
        # the same steps, other random pairs
        rel = 1e-4 if "step" in name else 0.3 if name == "pair_q1" else 0.1
        assert value == pytest.approx(float(compiled[name]), rel=rel), name


def chart():
    """Two looks at each of 3 x 4 cells, 1 apart along a row, 2 along a column; one is missing."""
    rows, columns, looks = np.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing="ij")
    points = np.stack([2.0 * rows, 1.0 * columns, 5.0 * looks], axis=-1)
    points[0, 0] = np.nan
    return points


def test_distances_of_neighboring_cells_and_looks():
    found = chart_distances(chart())
    assert found["look_q1"] == found["look_q99"] == 5
    # of each look: 8 steps along rows and 7 along columns are known
    assert found["cell_q50"] == 1 and found["cell_q75"] == 2
    assert "look_q50" not in chart_distances(chart()[:, :, :1])


def test_the_mean_gap_of_a_cell():
    gaps = mean_gap(chart())
    assert gaps.shape == (3, 4, 2)
    assert gaps[1, 1, 0] == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert gaps[2, 3, 1] == pytest.approx((1 + 2) / 2)
    assert gaps[0, 1, 0] == pytest.approx((1 + 2) / 2)  # its neighbor on the left is missing
    assert np.isnan(gaps[0, 0]).all()


def test_how_many_cells_a_radius_reaches():
    rows, columns = (x.reshape(-1) for x in np.meshgrid(range(5), range(6), indexing="ij"))
    places = np.stack([rows, columns], axis=-1)
    points = 0.5 * places
    in_zone = columns == 0
    alone, sides, far = neighbor_reach(points, places, in_zone, [0.5, 0.6, 1.1], 10**6)
    assert alone == {"zone_neighbors": 0}
    assert sides == {"reach_q50": 1, "reach_q95": 1, "zone_neighbors": pytest.approx(5 / 25)}
    assert far["reach_q95"] == 2 and far["zone_neighbors"] == pytest.approx(10 / 25)
    folded = points.copy()
    folded[:, 1] %= 1.5  # columns three apart are embedded as one
    (found,) = neighbor_reach(folded, places, in_zone, [0.1], 10**6)
    assert found == {"reach_q50": 3, "reach_q95": 3, "zone_neighbors": pytest.approx(5 / 25)}


def test_a_zone_that_is_the_world_has_no_outside():
    points = np.arange(3.0)[:, None]
    places = np.array([(0, 0), (0, 1), (0, 2)])
    (found,) = neighbor_reach(points, places, np.ones(3, bool), [1.5], 10)
    assert found["zone_neighbors"] == 0 and found["reach_q50"] == 1
