"""One kernel for many arrays of a network does what optax and `where` do."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo_rl.agents import descent


@pytest.mark.parametrize(
    ("limit", "decay"),
    [(None, 0.0), (12.0, 0.01), (None, 0.01)],
    ids=["free", "clipped", "decayed"],
)
@pytest.mark.parametrize(
    "take", [descent.descend, partial(descent.descend_together, interpret=True)], ids=["cpu", "gpu"]
)
def test_steps_are_those_of_optax(
    take: Any, limit: float | None, decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm of 12 holds back some gradients and not others."""
    monkeypatch.setattr(descent, "NUM_WORDS", 16)
    monkeypatch.setattr(descent, "LARGEST", 64)
    rng = np.random.default_rng(0)
    draw = lambda: {  # noqa: E731
        name: jnp.asarray(rng.normal(size=(2, *shape)), jnp.float32)
        for name, shape in {"a": (3,), "b": (5, 8), "between, large": (9, 8), "c": (4, 4)}.items()
    }
    optimiser = optax.adam(0.01, eps=1e-5)
    clip = optax.identity() if limit is None else optax.clip_by_global_norm(limit)
    optimiser = optax.chain(clip, optimiser, optax.add_decayed_weights(-decay))
    params = draw()
    ours = params, jax.vmap(descent.remember)(params)
    structure = jax.tree.structure(ours)
    theirs = params, jax.vmap(optimiser.init)(params)
    rate = jnp.float32(0.01)  # as data
    options = rate, 1e-5, limit, decay
    together = jax.jit(jax.vmap(lambda *x: take(*x, *options)))

    @jax.jit
    @jax.vmap
    def plainly(params, gradient, state):
        change, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, change), state

    for _ in range(3):
        gradient = draw()
        ours, theirs = together(ours[0], gradient, ours[1]), plainly(theirs[0], gradient, theirs[1])
    assert jax.tree.structure(ours) == structure
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-6, atol=1e-7)


def test_a_gpu_is_given_all_that_a_step_is(monkeypatch: pytest.MonkeyPatch) -> None:
    params, gradient = {"a": jnp.array([4.0, -8.0])}, {"a": jnp.array([30.0, 40.0])}
    given = params, gradient, descent.remember(params), 0.01, 1e-5, 5.0, 0.25
    expected = descent.descend(*given)
    monkeypatch.setattr(descent.onchip, "is_supported", lambda: True)
    together = partial(descent.descend_together, interpret=True)
    monkeypatch.setattr(descent, "descend_together", together)
    found = descent.descend(*given)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected)
    np.testing.assert_allclose(found[1][0].mu["a"], [0.3, 0.4], rtol=1e-6)  # a tenth of 3 and 4


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
