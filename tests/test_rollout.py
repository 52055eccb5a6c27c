"""The kernels that imagine steps mean what the recurrence means; here interpreted."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo.agents import PlaNet
from lofo.networks import MLP, RSSM, Gaussian, RSSMState, rssm
from lofo.networks.blocks import widen
from lofo.networks.rollout import Rollout

KEY = jax.random.key(0)


def recurrence(deterministic: int, hidden: int, latent: int) -> RSSM:
    sizes = {"deterministic_size": deterministic, "hidden_size": hidden}
    choices = {"activation": "relu", "layer_norm": False, "own_kernels": True}
    return RSSM(Gaussian(latent, min_std=0.1), **sizes, **choices)


def draw(model: RSSM, action_size: int):
    """Layers in bfloat16, with biases that are not 0."""
    rng = np.random.default_rng(0)
    params = model.init(KEY, action_size, 7)
    params = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.ndim > 1 else x, params)


@pytest.mark.parametrize(
    ("sizes", "action_size", "num"),
    [((9, 11, 3), 1, 5), ((70, 68, 30), 2, 70)],
    ids=["tiny", "several tiles"],
)
def test_a_step_by_kernels_is_a_step_of_the_recurrence(sizes, action_size, num):
    """Two models side by side, beside products of the same bfloat16 numbers in float32."""
    model, kernels = recurrence(*sizes), Rollout(*sizes, 0.1, interpret=True)
    params = draw(model, action_size)
    both = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), params)
    rng = np.random.default_rng(1)
    shapes = (num, sizes[0]), (num, sizes[2]), (num, action_size), (num, sizes[2])
    given = [jnp.float32(rng.uniform(-1, 1, (2, *shape))) for shape in shapes]

    def roll(params, deterministic, stochastic, action, noise):
        layers = model.ahead(params)
        deterministic = kernels.advance(layers, deterministic, widen(stochastic, 1), action)
        return deterministic, kernels.guess(layers, deterministic, noise)

    def imagine(params, deterministic, stochastic, action, noise):
        exact = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        state = RSSMState(deterministic, stochastic)
        return model.imagine_by(exact, state, action, noise)[0]

    found, expected = (jax.jit(jax.vmap(f))(both, *given) for f in (roll, imagine))
    np.testing.assert_array_equal(found[1][..., sizes[2] :], 0.0)
    samples = found[1][..., : sizes[2]]
    # numbers of 8 bits that are added up: each step of the way loses some
    for ours, theirs in ((found[0], expected[0]), (samples, expected[1])):
        assert np.abs(ours - theirs).max() < 0.01 * np.abs(theirs).max()
        assert np.abs(ours - theirs).mean() < 0.002 * np.abs(theirs).mean()


def test_where_there_are_kernels_plans_imagine_by_them(monkeypatch):
    small = PlaNet.small((64, 64, 3), 2, window=4)
    changes = {"rssm": recurrence(33, 20, 17), "reward_head": MLP((8,), "relu", "glorot")}
    agent = replace(small, model=replace(small.model, compute_dtype="bfloat16", **changes))
    state = jax.jit(agent.init)(KEY)
    seen = jax.tree.map(lambda x: x + 0.3, agent.begin().state)
    actions = jax.random.uniform(KEY, (20, 3, 2), minval=-1)
    plain = jax.jit(agent.imagined_returns)(state, seen, actions, KEY)
    used = []

    class Interpreted(Rollout):
        def guess(self, *given):
            used.append(self)
            return super().guess(*given)

    monkeypatch.setattr(rssm, "is_supported", lambda: True)
    monkeypatch.setattr(rssm, "Rollout", partial(Interpreted, interpret=True))
    anew = partial(agent.imagined_returns)  # else the program compiled before would be taken
    found = jax.jit(anew)(state, seen, actions, KEY)
    assert used
    # candidates must be told apart: what counts is how far their returns lie from each other
    np.testing.assert_allclose(found, plain, rtol=0, atol=0.1 * np.std(plain))
    exact = replace(agent, model=replace(agent.model, compute_dtype="float32"))
    used.clear()
    jax.eval_shape(exact.imagined_returns, state, seen, actions, KEY)
    assert not used  # in float32 no digit may be lost


def test_a_recurrence_too_large_for_a_program_is_left_to_the_compiler():
    assert Rollout(256, 256, 256, 0.1).is_small
    for sizes in ((257, 200, 30), (200, 257, 30), (200, 200, 257)):
        assert not Rollout(*sizes, 0.1).is_small


@pytest.mark.skipif(
    jax.version.__version_info__ >= (0, 11),
    reason="it compiles kernels as it lowers them, for which it wants the plugin for GPUs",
)
def test_planets_own_sizes_are_lowered_for_cuda():
    """As far as a machine without a GPU can go: the rest is the GPU's compiler."""
    model, kernels = recurrence(200, 200, 30), Rollout(200, 200, 30, 0.1)

    def roll(params, deterministic, stochastic, action, noise):
        layers = model.ahead(params)
        deterministic = kernels.advance(layers, deterministic, widen(stochastic, 1), action)
        return kernels.guess(layers, deterministic, noise)

    shapes = (1000, 200), (1000, 30), (1000, 2), (1000, 30)
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    trusted = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    lower = jax.export.export(jax.jit(roll), platforms=["cuda"], disabled_checks=trusted)
    text = lower(draw(model, 2), *given).mlir_module()
    assert text.count("__gpu$xla.gpu.triton") == 2
