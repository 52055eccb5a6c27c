"""One kernel for many arrays of a network does what optax and `where` do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo.agents import descent


def test_steps_are_those_of_optax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "NUM_WORDS", 16)
    monkeypatch.setattr(descent, "LARGEST", 64)
    rng = np.random.default_rng(0)
    draw = lambda: {  # noqa: E731
        name: jnp.asarray(rng.normal(size=(2, *shape)), jnp.float32)
        for name, shape in {"a": (3,), "b": (5, 8), "between, large": (9, 8), "c": (4, 4)}.items()
    }
    optimiser = optax.adam(0.01, eps=1e-5)
    params = draw()
    ours = theirs = params, jax.vmap(optimiser.init)(params)
    rate = jnp.float32(0.01)  # as data
    together = jax.jit(jax.vmap(lambda *x: descent.descend_together(*x, rate, 1e-5, True)))

    @jax.jit
    @jax.vmap
    def plainly(params, gradient, state):
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, change), state

    for _ in range(3):
        gradient = draw()
        ours, theirs = together(ours[0], gradient, ours[1]), plainly(theirs[0], gradient, theirs[1])
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-6, atol=1e-7)


def test_networks_follow_where_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "NUM_WORDS", 16)
    shapes = {"a": (3,), "b": (5, 8)}
    leader, follower = (
        {name: jnp.full((2, *shape), value) for name, shape in shapes.items()}
        for value in (1.0, 0.0)
    )
    is_due = jnp.array([False, True])
    together = jax.vmap(lambda *x: descent.follow_together(*x, True))
    found, plain = (
        together(leader, follower, is_due),
        jax.vmap(descent.follow)(leader, follower, is_due),
    )
    assert jax.tree.map(np.array_equal, found, plain) == {"a": True, "b": True}
    assert found["b"][0].max() == 0 and found["b"][1].min() == 1
