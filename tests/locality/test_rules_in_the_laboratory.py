"""`Local.keeping` beyond the base: its prediction is no setting of a run and no leaf of a tree."""

import jax
import numpy as np

from lofo_rl import Local
from lofo_rl.experiments import find
from lofo_rl.experiments.experiment import configuration, difference
from lofo_rl.experiments.overrides import override

RULE = Local.keeping(50, np.random.default_rng(0).random((500, 2)), 2)


def test_configurations_do_not_hold_it():
    assert RULE.expected_size is not None
    named = {"is": "Local", "radius": RULE.radius, "limit": 2}
    assert configuration(RULE) == configuration(Local(RULE.radius, 2)) == named
    assert not difference(named, configuration(RULE))


def test_the_command_line_does_not_set_it():
    experiment = find("demo/lofo")
    changed = override(experiment, ["--buffer.rule.radius", "0.25"])
    assert changed.buffer.rule == Local(0.25, experiment.buffer.rule.limit)


def test_it_is_neither_a_leaf_nor_structure():
    assert jax.tree.leaves(RULE) == [RULE.radius, 2]
    assert jax.tree.structure(RULE) == jax.tree.structure(Local(0.5, 1))
    same = jax.tree.map(lambda x: x, RULE)
    assert same == RULE and same.expected_size is None
    stacked = jax.tree.map(lambda *x: np.stack(x), RULE, Local(0.5, 1))
    assert stacked.radius.shape == (2,)
    assert jax.jit(lambda rule: rule.radius)(RULE) == np.float32(RULE.radius)
