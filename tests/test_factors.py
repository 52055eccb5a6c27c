"""A step by the factors of a gradient is the step by the gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo.agents import descent, dyna_q
from lofo.agents.dyna_q import DynaQ
from lofo.networks import CNN, MLP, Chain, Pixels, TransposedCNN, factors, linear
from lofo.networks.factors import Factors, take_factors
from lofo.types import Batch, Transition

KEY = jax.random.key(0)
KNOWN = (
    Chain((MLP((8,), "relu", "torch"), linear(3))),
    TransposedCNN((4, 2), (3, 4), (1, 2)),
)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(two).max()) or 1.0
        np.testing.assert_allclose(one / scale, two / scale, atol=tolerance)


@pytest.mark.parametrize("network", KNOWN)
def test_factors_multiply_to_the_gradient(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for networks side by side, and rows on several axes."""
    monkeypatch.setattr(factors, "LEAST", 20)
    params = jax.vmap(lambda key: network.init(key, (6,))[0])(jax.random.split(KEY))
    x = jax.random.normal(KEY, (5, 2, 6))

    def ask(params: Any) -> Any:
        return jax.grad(lambda p: (network.apply(p, x) ** 2).sum())(params)

    def multiply(leaf: Any, weight: jax.Array) -> jax.Array:
        if isinstance(leaf, Factors):
            return (leaf.inputs.mT @ leaf.slopes).reshape(weight.shape)
        return leaf

    found = take_factors(jax.vmap(lambda p: ask(network.make_room(p, 10)))(params))
    is_factors = lambda x: isinstance(x, Factors)  # noqa: E731
    leaves = jax.tree.leaves(found, is_leaf=is_factors)
    assert sum(map(is_factors, leaves)) == (2 if isinstance(network, Chain) else 1)
    whole = jax.tree.map(multiply, found, params, is_leaf=is_factors)
    assert_close(whole, jax.vmap(ask)(params))


def test_rows_must_be_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "LEAST", 1)
    network = KNOWN[0]
    params = network.make_room(network.init(KEY, (6,))[0], 4)
    with pytest.raises(ValueError, match="shape"):
        jax.grad(lambda p: network.apply(p, jnp.ones((5, 6))).sum())(params)


@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("num_rows", [32, 24])  # whole tiles, and not
def test_a_step_by_factors_is_that_of_optax(
    stack: tuple[int, ...], num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent, "TILE", (16, 32, 16))
    monkeypatch.setattr(descent, "LARGEST", 64)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(3, *stack, *shape)), jnp.float32)

    optimiser = optax.adam(0.01, eps=1e-5)
    params = {"weight": draw(32, 4, 16), "bias": draw(16)}  # as a layer that draws has them
    ours = theirs = params, jax.vmap(optimiser.init)(params)
    together = jax.jit(jax.vmap(lambda *x: descent.descend_together(*x, 0.01, 1e-5, True)))

    @jax.jit
    @jax.vmap
    def plainly(params: Any, gradient: Any, state: Any) -> Any:
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, change), state

    for _ in range(2):
        parts = Factors(draw(num_rows, 32), draw(num_rows, 64))
        weight = (parts.inputs.mT @ parts.slopes).reshape(params["weight"].shape)
        gradient = {"weight": weight, "bias": draw(16)}
        ours = together(ours[0], gradient | {factors.ROOM: parts}, ours[1])
        theirs = plainly(theirs[0], gradient, theirs[1])
    assert_close(ours, theirs)


@pytest.mark.parametrize("is_stacked", [True, False])
def test_a_pixel_agent_learns_the_same_by_factors(
    is_stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, head = CNN((4,), (4,), (3,)), MLP((16,), "relu", "torch")
    agent = DynaQ(
        (10, 10, 3),
        3,
        scaling=Pixels(),
        encoder=encoder,
        decoder=TransposedCNN((4, 3), (3, 6), (1, 2)),
        head=head,
        value=Chain((encoder, head)),
        num_model_updates=1,
        num_planning_updates=1,
        batch_size=8,
        one_hot_action=True,
        stack_model=is_stacked,
    )
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, 2, 8, 10, 10, 3)).astype(np.uint8)
    actions, rewards = rng.integers(0, 3, (2, 8)), rng.normal(size=(2, 8)).astype(np.float32)
    terminated = rng.random((2, 8)) < 0.3
    items = Transition(pictures[0], actions, rewards, terminated, pictures[1])
    batches = Batch(items, np.ones((2, 8), bool), np.zeros(8, np.int32))
    state = agent.init(KEY)
    expected, _ = jax.jit(agent.update)(state, batches, KEY)
    seen: list[int] = []

    def descend(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(arguments[1], is_leaf=lambda x: isinstance(x, Factors))
        seen.append(sum(isinstance(leaf, Factors) for leaf in leaves))
        return descent.descend_together(*arguments, interpret=True)

    monkeypatch.setattr(factors, "LEAST", 500)
    monkeypatch.setattr(descent, "LARGEST", 500)
    monkeypatch.setattr(
        dyna_q, "with_room", lambda network, *rest: network and network.make_room(*rest)
    )
    monkeypatch.setattr(dyna_q, "descend", descend)
    found, _ = jax.jit(agent.update)(state, batches, KEY)
    assert seen == [2 if is_stacked else 3, 1]  # the decoder and the heads; the Q-network
    assert_close((found.model, found.value), (expected.model, expected.value), 1e-4)
    moments = [s.model_optimiser[0].mu for s in (found, expected)]
    assert_close(*moments)
