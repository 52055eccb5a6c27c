"""The world model against hand-computed numbers, a plain re-implementation, and one batch."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo_rl import devices
from lofo_rl.agents.losses import BalancedKL, HingedKL
from lofo_rl.agents.world_model import arrive
from lofo_rl.networks import (
    Discrete,
    Gaussian,
    blaming,
    dreaming,
    recurrence,
    rssm,
    watching,
    watching_back,
)
from lofo_rl.networks.ahead import NUM_PARTS, parts
from lofo_rl.networks.blocks import draw_layer, times
from lofo_rl.networks.distributions import (
    FEW,
    MOST_CLASSES,
    Normal,
    TruncatedNormal,
    categorical_kl,
    gaussian_kl,
    straight_through,
    truncated_normal,
)
from lofo_rl.networks.gru import gate
from lofo_rl.types import LofoError, Step
from models import TINY, TINY_PLANET, drawn, jit

KEY = jax.random.key(0)
KINDS = pytest.mark.parametrize("model", [TINY, TINY_PLANET], ids=["dreamer", "planet"])


def windows(num=3, length=5, seed=0):
    """Random rows, some of them the first of an episode."""
    rng = np.random.default_rng(seed)
    shape = num, length
    items = Step(
        observation=rng.integers(0, 256, (*shape, 8, 8, 1)).astype(np.uint8),
        action=rng.uniform(-1, 1, (*shape, 1)).astype(np.float32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=np.zeros(shape, bool),
        is_first=rng.random(shape) < 0.2,
        is_last=np.zeros(shape, bool),
    )
    return jax.tree.map(jnp.asarray, items)


@partial(jit, static_argnums=0)
def loss_and_slope(model, params, items, known, key):
    return jax.value_and_grad(model.loss, has_aux=True)(params, items, known, key)


def assert_close(tree, other, rtol=1e-4, atol=1e-5):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), tree, other)


def test_glorot_counts_the_pixels_of_a_kernel_in_both_fans():
    layer = draw_layer(KEY, (5, 5, 7, 9), 5 * 5 * 7, "elu", "glorot")
    bound = math.sqrt(6 / (25 * 7 + 25 * 9))
    assert 0.95 * bound < jnp.abs(layer["weight"]).max() <= bound
    assert not layer["bias"].any()


def test_a_straight_through_sample_is_one_hot_with_the_gradient_of_the_probabilities():
    logits, noise = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.array([0.0, 3.0, 0.0])
    np.testing.assert_array_equal(straight_through(logits, noise), [0, 1, 0])
    weight = jnp.array([1.0, 2.0, 4.0])  # of mean 0.5 + 0.6 + 0.8 = 1.9
    gradient = jax.grad(lambda x: straight_through(x, noise) @ weight)(logits)
    assert_close(gradient, np.array([0.5 * -0.9, 0.3 * 0.1, 0.2 * 2.1]))


@pytest.mark.parametrize("shape", [(3, 4), (FEW, 4), (3, MOST_CLASSES + 1)])
def test_samples_of_any_number_have_the_gradients_of_their_probabilities(shape):
    logits, weight = (jax.random.normal(k, shape) for k in jax.random.split(KEY))
    gradient = jit(jax.grad(lambda x: jnp.sum(straight_through(x, 0.0 * x) * weight)))(logits)
    expected = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * weight))(logits)
    assert_close(gradient, expected)


@pytest.mark.parametrize("latent", [Discrete(3, 5), Gaussian(4)], ids=["discrete", "gaussian"])
def test_a_code_stands_for_its_sample(latent):
    raw, noise = jax.random.normal(KEY, (2, 6, latent.raw_size)), latent.noise(KEY, (2, 6))
    weight = jax.random.normal(KEY, (latent.size, 7))
    statistics = latent.statistics(raw)
    code, sample = latent.code(statistics, noise), latent.sample(statistics, noise)
    np.testing.assert_array_equal(latent.decode(code), sample)
    assert_close(latent.look_up(weight, code), sample @ weight)
    blank = latent.blank((2, 6))
    assert blank.shape == code.shape and blank.dtype == code.dtype
    assert not latent.decode(blank).any() and not latent.look_up(weight, blank).any()


def test_a_straight_through_sample_comes_as_often_as_its_probability():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    noise = Discrete(1, 3).noise(KEY, (20_000,))
    assert_close(straight_through(logits, noise).mean((0, 1)), [0.5, 0.3, 0.2], atol=0.02)


def test_the_policy_has_the_spread_of_dreamer():
    policy = truncated_normal(jnp.array([0.3, -2.0, 0.0, 1.0]))
    assert_close(policy.mean, np.tanh([0.3, -2.0]))
    assert_close(policy.std, [1.1, 2 / (1 + math.exp(-0.5)) + 0.1])


def test_a_truncated_sample_lies_where_its_lot_says():
    mean, std, lot = 0.4, 0.7, 0.3
    sample = float(TruncatedNormal(jnp.array([mean]), jnp.array([std])).sample(jnp.array([lot]))[0])
    share = [0.5 * (1 + math.erf((x - mean) / std / math.sqrt(2))) for x in (-1, sample, 1)]
    assert (share[1] - share[0]) / (share[2] - share[0]) == pytest.approx(lot, abs=1e-5)


def test_truncated_samples_stay_inside_and_keep_their_gradient():
    def sample(mean, lot):
        return TruncatedNormal(jnp.tanh(mean), jnp.full(mean.shape, 0.1)).sample(lot)

    means, lots = jnp.array([0.0, 9.0, -9.0, 1.0]), jnp.array([0.0, 0.0, 1 - 1e-7, 1 - 1e-7])
    assert (jnp.abs(sample(means, lots)) < 1).all()
    slope = jax.grad(lambda m: sample(m, lots).sum())(means)
    assert jnp.isfinite(slope).all() and slope[0] > 0.5  # though its sample was clipped


def test_the_entropy_of_a_truncated_normal_is_its_integral():
    mean, std = 0.4, 0.7
    x = np.linspace(-1, 1, 20_001)
    density = np.exp(-0.5 * ((x - mean) / std) ** 2)
    density /= density.sum() * (x[1] - x[0])
    by_hand = -(density * np.log(density)).sum() * (x[1] - x[0])
    entropy = TruncatedNormal(jnp.array([mean]), jnp.array([std])).entropy()
    assert entropy == pytest.approx(by_hand, abs=1e-4)


def test_divergences_by_hand():
    kl = categorical_kl(jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.75])))
    assert kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)
    normal = Normal(jnp.array([1.0, 0.0]), jnp.array([2.0, 1.0]))
    standard = Normal(jnp.zeros(2), jnp.ones(2))
    assert gaussian_kl(normal, standard) == pytest.approx(0.5 * (4 + 1 - 1 - math.log(4)))


def logits_of(*probabilities):
    """Statistics [B, 1, 2] of one variable with two classes."""
    return jnp.log(jnp.array([[[p, 1 - p]] for p in probabilities]))


def kl_of(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_the_balanced_kl_moves_the_prior_four_times_as_much():
    latent, divergence = Discrete(1, 2), BalancedKL(free=0.1)
    posterior, prior = logits_of(0.9, 0.5), logits_of(0.2, 0.5)
    loss, kl = divergence.loss(latent, posterior, prior)
    by_hand = (kl_of(0.9, 0.2) + 0) / 2
    assert kl == pytest.approx(by_hand, rel=1e-5) and loss == pytest.approx(by_hand, rel=1e-5)
    slopes = jax.grad(lambda *x: divergence.loss(latent, *x)[0], (0, 1))(posterior, prior)
    to_prior = 0.8 * (0.2 - 0.9) / 2  # softmax of the prior less the posterior
    to_posterior = 0.2 * 0.9 * (math.log(0.9 / 0.2) - kl_of(0.9, 0.2)) / 2
    assert slopes[1][0, 0, 0] == pytest.approx(to_prior, rel=1e-4)
    assert slopes[0][0, 0, 0] == pytest.approx(to_posterior, rel=1e-4)


def test_free_nats_are_of_the_mean_over_the_batch():
    latent, divergence = Discrete(1, 2), BalancedKL(free=1.0)
    alone, diluted = (logits_of(0.99), logits_of(0.1)), (logits_of(0.99, 0.5), logits_of(0.1, 0.5))
    assert kl_of(0.99, 0.1) > 2 > kl_of(0.9, 0.2) / 2
    assert divergence.loss(latent, *alone)[0] == pytest.approx(kl_of(0.99, 0.1), rel=1e-5)
    assert divergence.loss(latent, *diluted)[0] == pytest.approx(kl_of(0.99, 0.1) / 2, rel=1e-5)
    free = logits_of(0.9, 0.5), logits_of(0.2, 0.5)
    loss, slope = jax.value_and_grad(lambda x: divergence.loss(latent, x, free[1])[0])(free[0])
    assert loss == pytest.approx(1.0) and not slope.any()


def test_the_hinged_kl_frees_every_step_alone():
    normals = Normal(jnp.array([[4.0], [1.0]]), jnp.ones((2, 1)))
    standard = Normal(jnp.zeros((2, 1)), jnp.ones((2, 1)))
    loss, kl = HingedKL().loss(Gaussian(1), normals, standard)
    assert kl == pytest.approx((8 + 0.5) / 2) and loss == pytest.approx((8 - 3 + 0) / 2)


def one_step_episodes(num_rows):
    """First row, closing row, first row, ...; each episode ends with a reward of its own."""
    rows = np.arange(num_rows)
    is_last = rows % 2 == 1
    return Step(
        observation=np.zeros((1, num_rows, 8, 8, 1), np.uint8),
        action=np.where(is_last, 0.0, 1 + rows)[None, :, None].astype(np.float32),
        reward=np.where(is_last, 0.0, 10 + rows)[None].astype(np.float32),
        terminated=~is_last[None],
        is_first=~is_last[None],
        is_last=is_last[None],
    )


def test_the_reward_of_a_one_step_episode_arrives_at_its_closing_row():
    items = jax.tree.map(jnp.asarray, one_step_episodes(6))
    known = jnp.array([[True, True, False, True, True, True]])
    arrived = arrive(items, known)
    np.testing.assert_array_equal(arrived.reward, [[0, 10, 0, 12, 0, 14]])
    np.testing.assert_array_equal(arrived.action[..., 0], [[0, 1, 0, 3, 0, 5]])
    np.testing.assert_array_equal(arrived.reward_known, [[0, 1, 0, 0, 0, 1]])
    np.testing.assert_array_equal(arrived.is_first, items.is_first)


def test_nothing_known_leads_to_the_first_row_of_a_window():
    items = jax.tree.map(lambda x: jnp.asarray(x[:, 1:]), one_step_episodes(6))
    arrived = arrive(items, jnp.ones((1, 5), bool))
    np.testing.assert_array_equal(arrived.reward_known, [[0, 0, 1, 0, 1]])
    np.testing.assert_array_equal(arrived.is_first, [[1, 1, 0, 1, 0]])


def test_unknown_rewards_give_exactly_no_gradient():
    params, items = drawn(TINY.init), windows()
    none = jnp.zeros((3, 5), bool)
    (_, (_, metrics)), slope = loss_and_slope(TINY, params, items, none, KEY)
    assert metrics["reward_loss"] == 0
    assert not any(x.any() for x in jax.tree.leaves((slope.reward, slope.reward_out)))
    assert all(x.any() for x in jax.tree.leaves((slope.encoder, slope.canvas)))
    known = none.at[0, 1].set(True)
    items = items._replace(is_first=none)
    slope = loss_and_slope(TINY, params, items, known, KEY)[1]
    others = items._replace(reward=jnp.where(known, items.reward, 1e6))
    jax.tree.map(
        np.testing.assert_array_equal, slope, loss_and_slope(TINY, params, others, known, KEY)[1]
    )


def test_the_reward_loss_is_a_mean_over_all_rows_known_or_not():
    items, known = windows(), jnp.ones((3, 5), bool)
    items = items._replace(is_first=~known, reward=jnp.full((3, 5), 2.0, jnp.float32))
    params = drawn(TINY.init)
    still = jax.tree.map(jnp.zeros_like, (params.reward, params.reward_out))
    params = params._replace(reward=still[0], reward_out=still[1])  # foresees 0 everywhere
    (_, (_, metrics)), _ = loss_and_slope(TINY, params, items, known, KEY)
    assert metrics["reward_loss"] == pytest.approx(3 * 4 * 2.0 / 15)  # none in the first rows


def test_pictures_in_the_units_of_the_networks():
    shades = np.broadcast_to(np.array([0, 7, 8, 255], np.uint8)[:, None, None, None], (4, 8, 8, 1))
    seen = TINY.see(shades, KEY)[:, 0, 0, 0]
    assert_close(seen, np.array([0, 7, 8, 255]) / 255 - 0.5)
    noisy = (TINY_PLANET.see(shades, KEY) + 0.5) * 32
    np.testing.assert_array_equal(jnp.floor(noisy)[:, 0, 0, 0], [0, 0, 1, 31])
    assert jnp.std(noisy[0]) > 0.2  # uniform in each shade


def reference(model, params, actions, embeddings, is_first, noise):
    """The recurrence word for word, one row of one window after the other."""
    cell = jax.tree.map(np.asarray, params)
    act = {"elu": lambda x: np.where(x > 0, x, np.expm1(x)), "relu": lambda x: np.maximum(x, 0)}

    def dense(name, *parts):
        return np.concatenate(parts) @ cell[name]["weight"] + cell[name]["bias"]

    h, z = np.zeros(model.deterministic_size), np.zeros(model.latent.size)
    rows = []
    for action, embedding, first, lot in zip(actions, embeddings, is_first, noise, strict=True):
        if first:
            h, z, action = 0 * h, 0 * z, 0 * action
        gates = dense("gates", act[model.activation](dense("input", z, action)), h)
        if model.layer_norm:
            gates = (gates - gates.mean()) / np.sqrt(gates.var() + 1e-3)
            gates = gates * cell["norm"]["weight"] + cell["norm"]["bias"]
        reset, candidate, update = (gates[k * len(h) : (k + 1) * len(h)] for k in range(3))
        sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
        candidate, update = np.tanh(sigmoid(reset) * candidate), sigmoid(update - 1)
        h = update * candidate + (1 - update) * h
        prior = dense("prior_out", act[model.activation](dense("prior", h)))
        posterior = dense("posterior_out", act[model.activation](dense("posterior", h, embedding)))
        if isinstance(model.latent, Discrete):
            best = np.argmax(posterior.reshape(lot.shape) + lot, -1)
            z = np.eye(model.latent.num_classes)[best].ravel()
        else:
            mean, spread = np.split(posterior, 2)
            z = mean + (np.log1p(np.exp(spread)) + 0.1) * lot
        rows.append((h, z, posterior, prior))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@KINDS
def test_a_window_is_observed_as_the_formulas_say(model):
    model = model.rssm
    rng = np.random.default_rng(1)
    params = drawn(model.init, 2, 7)
    actions, embeddings = rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 6, 7))
    is_first = np.tile(np.arange(6) == 3, (3, 1))
    given = jax.tree.map(jnp.float32, (actions, embeddings))
    states, posterior, prior = jit(model.observe_window)(params, *given, jnp.asarray(is_first), KEY)
    noise = np.asarray(model.latent.noise(KEY, (6, 3)))
    for k in range(3):
        h, z, *raw = reference(model, params, actions[k], embeddings[k], is_first[k], noise[:, k])
        assert_close(states.deterministic[k], h)
        assert_close(states.stochastic[k], z)
        for found, expected in zip((posterior, prior), raw, strict=True):
            row = jax.tree.map(lambda x, k=k: x[k], found)
            assert_close(row, model.latent.statistics(expected.astype(np.float32)))


@KINDS
def test_steps_and_a_window_observe_alike(model, monkeypatch):
    """An agent that acts follows an episode step by step, as its model learns from windows."""
    model, latent = model.rssm, type(model.rssm.latent)
    noise = latent.noise  # as many numbers, but the same for a step and for all
    monkeypatch.setattr(latent, "noise", lambda *given: jnp.zeros_like(noise(*given)))
    rng = np.random.default_rng(3)
    actions, embeddings = (jnp.float32(rng.normal(size=(3, 5, size))) for size in (2, 7))
    is_first = jnp.zeros((3, 5), bool).at[:, 0].set(True).at[1, 3].set(True)
    params = drawn(model.init, 2, 7)
    window = jax.jit(model.observe_window)(params, actions, embeddings, is_first, KEY)
    observe, state = jax.jit(model.observe), model.begin((3,))
    for k in range(5):
        given = actions[:, k], embeddings[:, k], is_first[:, k]
        step = observe(params, state, *given, KEY)
        assert_close(step, jax.tree.map(lambda x, k=k: x[:, k], window))
        state = step[0]
    assert model.features(state).shape == (3, model.feature_size)


def plain_gate(norm, gates, before):
    mean = gates.mean(-1, keepdims=True)
    scale = jnp.sqrt(((gates - mean) ** 2).mean(-1, keepdims=True) + 1e-3)
    gates = (gates - mean) / scale * norm["weight"] + norm["bias"]
    reset, candidate, update = jnp.split(gates, 3, axis=-1)
    update = jax.nn.sigmoid(update - 1)
    return update * jnp.tanh(jax.nn.sigmoid(reset) * candidate) + (1 - update) * before


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_the_slopes_of_a_gate_behind_a_norm_are_those_of_its_formula(shape):
    rng = np.random.default_rng(7)
    draw = lambda *sizes: jnp.float32(rng.normal(size=sizes))  # noqa: E731
    given = {"weight": draw(15), "bias": draw(15)}, draw(*shape, 15), draw(*shape, 5)
    slope = draw(*shape, 5)
    (ours, back), (plain, plain_back) = (
        jax.vjp(f, *given) for f in (lambda norm, *x: gate({"norm": norm}, *x), plain_gate)
    )
    assert_close((ours, back(slope)), (plain, plain_back(slope)), atol=1e-6)


def test_one_row_is_multiplied_on_a_gpu_as_rows_are(monkeypatch):
    rng = np.random.default_rng(8)
    row, weight = (jnp.bfloat16(rng.normal(size=size)) for size in (300, (300, 7)))
    monkeypatch.setattr(devices, "is_cpu", lambda: False)
    alone = times(row, weight)
    assert alone.dtype == jnp.bfloat16 and alone.shape == (7,)
    truth = np.float64(row) @ np.float64(weight)
    np.testing.assert_allclose(np.float64(alone), truth, rtol=2**-8, atol=1e-3)  # rounded once
    several = jax.vmap(times, (0, None))(row[None].repeat(3, 0), weight)
    np.testing.assert_array_equal(several, alone[None].repeat(3, 0))


def test_kernels_of_our_own_are_chosen_by_a_switch_where_they_fit(monkeypatch):
    like = rssm.RSSM()

    def suits(model, num_rows=16, dtype=jnp.bfloat16):
        given = rssm.Given(None, None, jax.ShapeDtypeStruct((50, num_rows), bool), None)
        layers = {"gates": {"weight": jax.ShapeDtypeStruct((400, 600), dtype)}}
        return watching.suits(model, layers | ({"norm": {}} if model.layer_norm else {}), given)

    assert not suits(like)  # there is no GPU here
    monkeypatch.setattr(watching.onchip, "is_supported", lambda: True)
    assert suits(like) and not suits(rssm.RSSM(own_kernels=False))
    assert not suits(like, 257) and not suits(like, dtype=jnp.float32)
    others = {"latent": Gaussian(30)}, {"latent": Discrete(32, 24)}, {"latent": Discrete(32, 8)}
    for fields in (*others, {"layer_norm": False}, {"hidden_size": 100}):
        assert not suits(replace(like, **fields))


def two_small_runs(seed, dtype, *shape):
    """A model that our kernels suit, and for two runs its parameters and what it observes."""
    model = rssm.RSSM(Discrete(3, 16), deterministic_size=20, hidden_size=20)
    rng = np.random.default_rng(seed)
    actions, embeddings = (jnp.float32(rng.normal(size=(2, *shape, size))) for size in (2, 7))
    is_first = jnp.asarray(rng.random((2, *shape)) < 0.3)
    params = jax.vmap(lambda key: model.init(key, 2, 7))(jax.random.split(KEY))
    params = jax.tree.map(lambda x: x + 0.1 if x.ndim == 2 else x.astype(dtype), params)
    return model, (params, actions, embeddings, is_first)


def test_kernels_of_our_own_observe_as_the_loop_does(monkeypatch):
    """In half precision, as on a GPU; two runs side by side, and turns of several steps."""
    model, given = two_small_runs(4, "bfloat16", 6, 17)  # more rows than a program takes
    given = *given, jax.random.split(jax.random.key(5))

    def walk(interpret, *given):
        layers, given = model._prepare(*given)
        begun = model._blank((17,))
        if interpret:
            return watching.watch(model, layers, begun, given, interpret=True)
        return model._observe_forth(layers, begun, given)

    monkeypatch.setattr(watching, "in_a_row", lambda num: 3)
    plain, ours = (jax.jit(jax.vmap(partial(walk, own)))(*given) for own in (False, True))
    np.testing.assert_array_equal(ours.latent, plain.latent)
    assert_close(ours, plain)


@KINDS
@pytest.mark.parametrize("batch_shape", [(), (4,)], ids=["from one state", "each from its own"])
def test_steps_imagined_one_by_one_or_in_a_row_agree(model, batch_shape):
    model = model.rssm
    params = drawn(model.init, 2, 7)
    actions = jax.random.uniform(KEY, (3, 4, 2))
    begun = jax.tree.map(lambda x: 0.1 + x, model.begin(batch_shape))
    states = jit(model.imagine_window)(params, begun, actions, KEY)
    noise = model.latent.noise(KEY, (3, 4))
    now = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, x.shape[-1])), begun)
    for k in range(3):
        now, prior = jit(model.imagine_by)(params, now, actions[k], noise[k])
        assert_close(now, jax.tree.map(lambda x, k=k: x[k], states))
    assert_close(prior, model.prior(params, now.deterministic))


def test_no_actions_lead_nowhere():
    model = TINY.rssm
    params = drawn(model.init, 2, 7)
    states = model.imagine_window(params, model.begin(), jnp.zeros((0, 4, 2)), KEY)
    assert states.deterministic.shape == (0, 4, model.deterministic_size)
    assert states.stochastic.shape == (0, 4, model.latent.size)


def test_parts_of_numbers_lose_no_digit():
    numbers = jax.random.uniform(KEY, (100, 2), minval=-1)
    found = jit(parts)(numbers)
    np.testing.assert_array_equal(found.astype(jnp.bfloat16).astype(jnp.float32), found)
    np.testing.assert_array_equal(
        np.float64(found).reshape(100, NUM_PARTS, 2).sum(1), np.float64(numbers)
    )


@KINDS
@pytest.mark.parametrize("depth", [recurrence.DEPTH, 3], ids=["whole", "in parts"])
def test_gradients_gathered_behind_the_loop_are_those_of_a_scan(model, depth, monkeypatch):
    monkeypatch.setattr(recurrence, "DEPTH", depth)
    monkeypatch.setattr(recurrence, "ALIGNED", 1)
    model = model.rssm
    rng = np.random.default_rng(2)
    params = drawn(model.init, 2, 7)
    actions, embeddings = (
        jnp.float32(rng.normal(size=(3, 6, 2))),
        jnp.float32(rng.normal(size=(3, 6, 7))),
    )
    is_first = jnp.asarray(np.arange(18).reshape(3, 6) % 7 == 4)

    def slopes():
        def loss(params, actions, embeddings):
            states, *statistics = model.observe_window(params, actions, embeddings, is_first, KEY)
            parts = jnp.sin(model.features(states)), model.kl(*statistics)
            return sum(jnp.sum(x * jnp.arange(6).reshape(6, *[1] * (x.ndim - 2))) for x in parts)

        return jit(jax.grad(loss, (0, 1, 2)))(params, actions, embeddings)

    def plain(walk, layers, code, inputs):
        def body(state, given):
            state, output = walk.step(rssm.apply_layer, layers, state, given)
            return state, (state, output)

        return jax.lax.scan(body, walk.decode(code), inputs)[1]

    gathered = slopes()
    monkeypatch.setattr(rssm, "unroll", plain)
    assert_close(gathered, slopes(), atol=1e-3)
    assert all(x.any() for x in jax.tree.leaves(gathered))


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [("float32", 1e-5), pytest.param("bfloat16", 0.02, marks=pytest.mark.slow)],
)
def test_kernels_of_our_own_find_the_gradients_of_the_loop(dtype, digits, monkeypatch):
    """In full precision, where digits show what is wrong, and in half; two runs side by side."""
    model, given = two_small_runs(6, dtype, 17, 6)  # more rows than a program takes

    def loss(params, actions, embeddings, is_first):
        states, *statistics = model.observe_window(params, actions, embeddings, is_first, KEY)
        weights = jnp.cos(jnp.arange(model.feature_size))
        return jnp.sum(jnp.sin(model.features(states)) * weights) + model.kl(*statistics).sum()

    def slopes():
        learn = jax.vmap(jax.grad(loss, (0, 1, 2)))
        return jax.jit(learn)(*given)

    plain = slopes()
    monkeypatch.setattr(watching, "suits", lambda *given: True)
    for module, name in ((watching, "watch"), (watching_back, "watch_back")):
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=True))
        monkeypatch.setattr(module, "in_a_row", lambda num: 3)
    monkeypatch.setattr(watching_back, "DEPTH", 16)
    for ours, theirs in zip(*map(jax.tree.leaves, (slopes(), plain)), strict=True):
        most = np.abs(np.float32(theirs)).max()
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), atol=digits * most)


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [("float32", 1e-5), pytest.param("bfloat16", 0.02, marks=pytest.mark.slow)],
)
def test_kernels_of_our_own_blame_actions_as_the_loop_does(dtype, digits, monkeypatch):
    """The slopes of actions in a dream, of two runs side by side."""
    model, (params, actions, *_) = two_small_runs(7, dtype, 6, 70)  # more rows than a program takes
    keys = jax.random.split(jax.random.key(3))

    def slopes(params, actions, key):
        key_begin, key_noise, key_slope = jax.random.split(key, 3)
        layers, noise = model.apart(params), model.latent.noise(key_noise, (6, 70))

        def step(now, given):
            found = model.features(now).astype(dtype), now.deterministic
            return model.imagine_by(layers, now, *given)[0], found

        begun = jax.random.normal(key_begin, (70, 20))
        begun = model.begin((70,))._replace(deterministic=begun)
        last, (features, state) = jax.lax.scan(step, begun, (actions, noise))
        features = jnp.concatenate([features, model.features(last)[None].astype(dtype)])
        own = jax.random.normal(key_slope, features.shape).astype(dtype)
        return blaming.blame(model, layers, state, features, (actions, noise), own)

    plain = jax.jit(jax.vmap(slopes))(params, actions, keys)
    monkeypatch.setattr(blaming, "suits", lambda *given: True)
    monkeypatch.setattr(blaming, "trace", partial(blaming.trace, interpret=True))
    monkeypatch.setattr(blaming, "in_a_row", lambda num: 3)
    monkeypatch.setattr(watching_back, "DEPTH", 16)
    ours = jax.jit(jax.vmap(lambda *given: slopes(*given)))(params, actions, keys)
    np.testing.assert_allclose(ours, plain, atol=digits * np.abs(plain).max())


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_dreams_in_code_go_on_as_imagined(dtype, digits):
    """By the kernel of our own and without it."""
    model, (params, actions, *_) = two_small_runs(8, dtype, 19)

    def steps(params, action, key):
        key_state, key_latent, key_noise = jax.random.split(key, 3)
        layers, noise = model.apart(params), model.latent.noise(key_noise, (19,))
        state = jax.random.normal(key_state, (19, 20))
        code = jax.random.randint(key_latent, (19, 3), 0, 16).at[0].set(16)  # one of them blank
        begun = rssm.RSSMState(state, model.latent.decode(code))
        then, _ = model.imagine_by(layers, begun, action, noise)
        np.testing.assert_array_equal(model.latent.encode(begun.stochastic), code)
        features = dreaming.features_of(model, state, code, dtype)
        np.testing.assert_array_equal(features, model.features(begun).astype(dtype))
        given = model.reading_features(layers), state, features, (action, noise)
        each = dreaming.dream_on(model, *given), dreaming.dream_by_kernel(model, *given, True)
        return then, [rssm.RSSMState(x, model.latent.decode(y)) for x, y in each]

    for k, key in enumerate(jax.random.split(KEY)):
        own = jax.tree.map(lambda x, k=k: x[k], (params, actions))
        then, found = steps(*own, key)
        for state in found:
            np.testing.assert_array_equal(state.stochastic, then.stochastic)
            np.testing.assert_allclose(state.deterministic, then.deterministic, atol=digits)


def test_kernels_that_blame_are_chosen_by_a_switch_where_they_fit(monkeypatch):
    layers = {"gates": {"weight": jnp.zeros((2, 2), jnp.bfloat16)}, "norm": {}}
    rows, like = jnp.zeros((3, 2, 2), jnp.bfloat16), rssm.RSSM()
    assert not blaming.suits(like, layers, rows)  # there is no GPU here
    monkeypatch.setattr(watching.onchip, "is_supported", lambda: True)
    assert blaming.suits(like, layers, rows)
    assert not blaming.suits(replace(like, own_dreams=False), layers, rows)
    assert not blaming.suits(replace(like, hidden_size=3), layers, rows)
    assert not blaming.suits(replace(like, latent=Gaussian()), layers, rows)
    assert not blaming.suits(like, layers, rows.astype(jnp.float32))


def test_what_came_before_an_episode_leaves_no_trace_in_it():
    items = windows()
    items = items._replace(is_first=jnp.zeros((3, 5), bool).at[:, 2].set(True))
    changed = windows(seed=1)
    others = jax.tree.map(lambda x, y: x.at[:, :2].set(y[:, :2]), items, changed)
    others = others._replace(is_first=items.is_first)
    params, known = drawn(TINY.init), jnp.ones((3, 5), bool)
    (_, (states, _)), _ = loss_and_slope(TINY, params, items, known, KEY)
    (_, (other_states, _)), _ = loss_and_slope(TINY, params, others, known, KEY)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[:, 2:], y[:, 2:]), states, other_states
    )
    assert (states.deterministic[:, 1] != other_states.deterministic[:, 1]).any()


def test_runs_side_by_side_need_no_convolution():
    """Grouped convolutions, which `vmap` makes of plain ones, do not scale with the runs."""
    keys = jax.random.split(KEY, 2)
    params = jax.eval_shape(jax.vmap(TINY.init), keys)
    items, known = windows(), jnp.ones((3, 5), bool)
    slope = jax.grad(TINY.loss, has_aux=True)
    program = jax.make_jaxpr(jax.vmap(slope, (0, None, None, 0)))(params, items, known, keys)
    assert "conv_general" not in str(program) and "dot_general" in str(program)


def test_half_precision_stays_near_and_learns_in_full():
    params, items, known = drawn(TINY.init), windows(), jnp.ones((3, 5), bool)
    half = replace(TINY, compute_dtype="bfloat16")
    (loss, _), slope = loss_and_slope(TINY, params, items, known, KEY)
    (near, _), near_slope = loss_and_slope(half, params, items, known, KEY)
    assert near == pytest.approx(float(loss), rel=0.05)
    assert {x.dtype for x in jax.tree.leaves(near_slope)} == {jnp.dtype("float32")}
    norms = [optax.tree.norm(x) for x in (slope, near_slope)]
    assert norms[0] == pytest.approx(float(norms[1]), rel=0.2)


@pytest.mark.parametrize(
    "model", [TINY, pytest.param(TINY_PLANET, marks=pytest.mark.slow)], ids=["dreamer", "planet"]
)
def test_one_batch_is_reconstructed(model):
    """Blocks that stand where no action put them: only what was seen can tell."""
    rng = np.random.default_rng(0)
    pictures, places = np.zeros((4, 6, 8, 8, 1), np.uint8), rng.integers(0, 5, (4, 6, 2))
    for (b, n), (row, column) in zip(np.ndindex(4, 6), places.reshape(24, 2), strict=True):
        pictures[b, n, row : row + 4, column : column + 4] = 255
    reward = np.roll(places[..., 0] / 2 - 1, -1, axis=1).astype(np.float32)  # on arriving there
    items = windows(4, 6)._replace(observation=jnp.asarray(pictures), reward=jnp.asarray(reward))
    known, optimiser = jnp.ones((4, 6), bool), optax.adam(1e-2)

    @jit
    def learn(params, keys):
        def step(carry, key):
            slope, (_, metrics) = jax.grad(model.loss, has_aux=True)(carry[0], items, known, key)
            change, memory = optimiser.update(slope, carry[1])
            return (optax.apply_updates(carry[0], change), memory), metrics

        (params, _), metrics = jax.lax.scan(step, (params, optimiser.init(params)), keys)
        _, (states, _) = model.loss(params, items, known, keys[0])
        return model.picture(params, model.features(states)), metrics

    redrawn, metrics = learn(drawn(model.init), jax.random.split(KEY, 800))
    assert jnp.abs(redrawn - pictures / 255).mean() < 0.07
    assert metrics["image_loss"][-1] < 0.1 * metrics["image_loss"][0]
    assert metrics["reward_loss"][-50:].mean() < 0.1 * metrics["reward_loss"][0]


def test_resting_sees_each_picture_alone():
    params, pictures = drawn(TINY.init), windows().observation[0]
    rest = jit(TINY.rest, static_argnums=2)
    states = rest(params, pictures, 4, KEY)
    assert states.deterministic.shape == (5, 32) and states.stochastic.shape == (5, 16)
    swapped = rest(params, pictures.at[0].set(pictures[1]), 4, KEY)
    np.testing.assert_array_equal(states.deterministic[1:], swapped.deterministic[1:])


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="decoder draws"):
        replace(TINY, observation_shape=(9, 9, 1))
    with pytest.raises(LofoError, match="continuous actions"):
        replace(TINY, action_size=0)
    with pytest.raises(ValueError, match="built for observations of shape"):
        TINY.see(jnp.zeros((7, 7, 1), jnp.uint8), KEY)
