"""The demo's bar, on seeds that were not used to choose its settings."""

import dataclasses

import pytest

from lofo_rl.experiments import DEMO, Pack, run
from lofo_rl.reports import summarise


def test_the_demo_compares_equals():
    """Everything but the buffer is the same, and the small FIFO has LoFo's size."""
    assert len({e.common for e in DEMO}) == 1
    lofo, everything, small = (e.buffer for e in DEMO)
    assert everything.capacity == sum(p.steps for p in DEMO[0].phases)
    assert small.capacity == 248 * lofo.rule.limit
    assert all(len(e.seeds) >= 3 and e.judged == 5 for e in DEMO)


@pytest.mark.slow
def test_the_demo_meets_its_bar(tmp_path):
    """All near-optimal in phase 1; in phase 2 LoFo alone, each FIFO failing for its own reason."""
    seeds = tuple(range(3, 10))
    run(Pack(tuple(dataclasses.replace(e, seeds=seeds) for e in DEMO)), tmp_path)
    summaries = {(s.id, s.phase): s for s in summarise([tmp_path])}
    for experiment in DEMO:
        assert summaries[experiment.id, 1].fraction_of_optimum >= 0.85
    lofo, everything, small = (summaries[e.id, 2] for e in DEMO)
    assert lofo.fraction_of_optimum >= 0.85
    assert everything.fraction_of_optimum <= lofo.fraction_of_optimum - 0.30
    assert small.fraction_of_optimum <= lofo.fraction_of_optimum - 0.30
    assert lofo.why.predicted_t1 == pytest.approx(1.0, abs=0.1)
    assert lofo.why.predicted_t2 == pytest.approx(2.0, abs=0.1)
    assert everything.why.predicted_t1 > 1.3 and everything.why.stale_rows > 100
    assert small.why.stale_rows == 0
    lost_t2 = small.why.predicted_t2 < 1.5
    lost_dynamics = small.why.model_error_outside > 3 * lofo.why.model_error_outside
    assert lost_t2 or lost_dynamics
