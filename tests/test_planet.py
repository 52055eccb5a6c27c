"""The cross-entropy method on functions whose best point is known, and PlaNet on a probe world."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo_rl.agents.cem import CEM
from lofo_rl.agents.losses import HingedKL
from lofo_rl.agents.planet import PLANET_MODEL, PlaNet
from lofo_rl.networks import CNN, MLP, RSSM, Gaussian, TransposedCNN
from lofo_rl.types import Batch, LofoError, Step
from models import jit

PLANNER = CEM()  # the paper's sizes
PATIENT = CEM(num_iterations=20)
REACH, GOAL, NUM_STEPS = 0.5, 0.5, 6  # of the probe world below
NUM_UPDATES = 900
TINY = PlaNet(
    replace(
        PLANET_MODEL,
        observation_shape=(8, 8, 1),
        action_size=1,
        encoder=CNN((8,), (4,), (2,), "relu", "glorot"),
        decoder=TransposedCNN((1,), (8,), (1,), "relu", "glorot"),
        canvas_size=32,
        rssm=RSSM(Gaussian(4), 16, 32, "relu", layer_norm=False),
        reward_head=MLP((32,), "relu", "glorot"),
    ),
    CEM(horizon=3, num_iterations=5, num_candidates=100, num_elites=10),
    learning_rate=3e-3,
    gradient_clip=10.0,
    batch_size=32,
    window=8,
)


def distance_to(target):
    """An objective whose best sequence of actions is the target."""
    return lambda actions, key: -jnp.sum((actions - target) ** 2, axis=(1, 2))


@partial(jit, static_argnums=0)
def plan_towards(planner, target, key):
    return planner.plan(distance_to(target), target.shape[1], key)


def test_the_planner_finds_the_best_point_of_a_quadratic():
    target = jax.random.uniform(jax.random.key(1), (12, 2), minval=-0.9, maxval=0.9)
    plan = plan_towards(PLANNER, target, jax.random.key(0))
    assert plan.mean.shape == plan.std.shape == (12, 2)
    np.testing.assert_allclose(plan.mean, target, atol=0.04)
    assert (plan.std < 0.1).all() and (plan.std >= 1e-3).all()


def test_more_iterations_come_closer():
    target = jax.random.uniform(jax.random.key(1), (12, 2), minval=-0.9, maxval=0.9)
    errors = [
        jnp.abs(plan_towards(planner, target, jax.random.key(0)).mean - target).max()
        for planner in (PLANNER, PATIENT)
    ]
    assert errors[0] > 5e-3 and errors[1] < 1e-3


def test_a_best_point_outside_the_box_is_met_at_its_edge():
    target = jnp.tile(jnp.array([3.0, -2.0]), (12, 1))
    plan = plan_towards(PATIENT, target, jax.random.key(0))
    np.testing.assert_allclose(plan.mean, np.sign(target), atol=0.02)
    assert (jnp.abs(plan.mean) <= 1).all()


def watch(planner, key):
    """The candidates and keys that an objective is asked about, in each iteration."""
    seen = []

    def objective(actions, key):
        numbers = jax.random.key_data(key)
        jax.debug.callback(lambda *x: seen.append(x), actions, numbers, ordered=True)
        return jnp.sum(actions, axis=(1, 2))

    jit(lambda k: planner.plan(objective, 2, k))(key)
    jax.effects_barrier()
    return [np.stack(each) for each in zip(*seen, strict=True)]


def test_candidates_lie_in_the_box_and_every_iteration_has_its_key():
    planner = CEM(horizon=3, num_iterations=4, num_candidates=50, num_elites=5)
    candidates, keys = watch(planner, jax.random.key(0))
    assert candidates.shape == (4, 50, 3, 2) and np.abs(candidates).max() == 1
    assert len(np.unique(keys, axis=0)) == 4
    assert candidates[-1].mean() > 0.5 > candidates[0].mean()  # larger is better here


def test_the_belief_is_refitted_to_the_best():
    planner = CEM(horizon=1, num_candidates=5, num_elites=2, variance_floor=1e-6)
    candidates = jnp.array([0.1, 0.9, 0.3, -0.5, 0.7])[:, None, None]
    plan = planner.refit(candidates, jnp.array([1.0, 5.0, 9.0, 2.0, 5.0]))
    # 9 and, of the equals, the earlier 5: actions 0.3 and 0.9
    assert plan.mean.item() == pytest.approx(0.6)
    assert plan.std.item() == pytest.approx(np.sqrt(0.09 + 1e-6))


@pytest.mark.parametrize("is_told", [True, False])
def test_the_belief_keeps_its_digits_where_candidates_are_close(is_told):
    planner = CEM(horizon=2, num_candidates=50, num_elites=20, variance_floor=0.0)
    near = np.array([[0.9], [-0.7]])
    candidates = np.float32(near + 1e-3 * np.random.default_rng(0).normal(size=(50, 2, 1)))
    told = [jnp.float32(near)] if is_told else []
    plan = planner.refit(jnp.asarray(candidates), -jnp.arange(50.0), *told)
    elites = candidates[:20].astype(np.float64)
    np.testing.assert_allclose(plan.mean, elites.mean(0), rtol=1e-6)
    np.testing.assert_allclose(plan.std, elites.std(0), rtol=1e-4)


def test_lots_drawn_at_once_are_those_of_every_key():
    planner = CEM(horizon=3, num_iterations=4, num_candidates=50, num_elites=5)

    def draw(key):
        return jax.random.normal(key, (50,))

    def objective(actions, noise):
        return jnp.sum(actions, axis=(1, 2)) + noise

    by_keys = planner.plan(lambda a, k: objective(a, draw(k)), 2, jax.random.key(1))
    at_once = planner.plan(objective, 2, jax.random.key(1), draw)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), by_keys, at_once)


def test_the_first_draw_is_standard_normal():
    planner = CEM(horizon=5, num_iterations=1, num_candidates=4000, num_elites=10)
    (first,), _ = watch(planner, jax.random.key(3))
    inside = np.abs(first) < 1
    assert inside.mean() == pytest.approx(0.6827, abs=0.01)  # the rest was clipped to the edge
    # the variance of a standard normal within ±1
    assert first[inside].var() == pytest.approx(0.2911, abs=0.01)


def test_plans_are_reproducible():
    target = jnp.full((12, 2), 0.3)
    plan = plan_towards(PLANNER, target, jax.random.key(7))
    again = plan_towards(PLANNER, target, jax.random.key(7))
    other = plan_towards(PLANNER, target, jax.random.key(8))
    np.testing.assert_array_equal(plan.mean, again.mean)
    assert not np.array_equal(plan.mean, other.mean)


def test_plans_side_by_side_are_those_alone():
    targets = jax.random.uniform(jax.random.key(2), (3, 12, 2), minval=-0.9, maxval=0.9)
    keys = jax.random.split(jax.random.key(4), 3)
    together = jax.vmap(partial(plan_towards, PLANNER))(targets, keys)
    for i in range(3):
        alone = plan_towards(PLANNER, targets[i], keys[i])
        np.testing.assert_allclose(together.mean[i], alone.mean, atol=1e-5)
        np.testing.assert_allclose(together.std[i], alone.std, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("horizon", 0), ("num_iterations", 0), ("num_elites", 0), ("num_candidates", 50)],
)
def test_bad_fields_of_the_planner_are_named(field, value):
    with pytest.raises(ValueError, match=rf"{field}.*{value}"):
        CEM(**{field: value})


def picture(position):
    """A bar at a position in [-1, 1], in grey levels [..., 8, 8, 1]."""
    bar = 255 * jnp.exp(-(((jnp.linspace(-1, 1, 8) - position[..., None]) / 0.3) ** 2))
    bar = bar.astype(jnp.uint8)[..., None, :, None]
    return jnp.broadcast_to(bar, (*position.shape, 8, 8, 1))


def slide(position, action):
    """The probe world: the bar moves as told, and earns 1 less its distance from the goal.

    So the best action goes straight to the goal, as far as one step reaches, and then stays.
    """
    position = jnp.clip(position + REACH * action, -1, 1)
    return position, 1 - jnp.abs(position - GOAL)


def random_steps(key, num_episodes):
    """Episodes of random actions in a row [num_episodes · (NUM_STEPS + 1)], with closing rows."""
    key_start, key_act = jax.random.split(key)
    start = jax.random.uniform(key_start, (num_episodes,), minval=-1, maxval=1)
    actions = jax.random.uniform(key_act, (NUM_STEPS, num_episodes), minval=-1, maxval=1)

    def step(position, action):
        after, reward = slide(position, action)
        return after, (position, reward)

    last, (positions, rewards) = jax.lax.scan(step, start, actions)
    nothing = jnp.zeros((1, num_episodes))
    index = jnp.broadcast_to(jnp.arange(NUM_STEPS + 1)[:, None], (NUM_STEPS + 1, num_episodes))
    steps = Step(
        observation=picture(jnp.concatenate([positions, last[None]])),
        action=jnp.concatenate([actions, nothing])[..., None],
        reward=jnp.concatenate([rewards, nothing]),
        terminated=jnp.zeros_like(index, bool),
        is_first=index == 0,
        is_last=index == NUM_STEPS,
    )
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), steps)


def windows(agent, steps, known, key):
    starts = jax.random.randint(key, (1, agent.batch_size, 1), 0, len(steps.reward) - agent.window)
    rows = starts + jnp.arange(agent.window)
    return Batch(jax.tree.map(lambda x: x[rows], steps), known[rows], starts[0, :, 0])


@partial(jit, static_argnums=0)
def init(agent, key):
    return agent.init(key)


@partial(jax.jit, static_argnums=0)
def learn(agent, state, steps, known, key):
    """One update from a uniform draw of windows."""
    key_draw, key_update = jax.random.split(key)
    return agent.update(state, windows(agent, steps, known, key_draw), key_update)


@partial(jit, static_argnums=0)
def play(agent, state, starts, key):
    """Returns [M], actions [NUM_STEPS, M] and positions acted in, of episodes without noise."""
    memory = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (len(starts), *jnp.shape(x))), agent.begin()
    )

    def step(carry, key):
        position, memory = carry
        keys = jax.random.split(key, len(starts))
        act = partial(agent.act, state, explore=False)
        action, memory = jax.vmap(act)(memory, picture(position), keys)
        after, reward = slide(position, action[:, 0])
        return (after, memory), (reward, action[:, 0], position)

    keys = jax.random.split(key, NUM_STEPS)
    _, (rewards, actions, positions) = jax.lax.scan(step, (starts, memory), keys)
    return rewards.sum(0), actions, positions


def quick_key(seed):
    """A key whose draws compile in a fraction of the time."""
    return jax.random.key(seed, impl="unsafe_rbg")


@pytest.fixture(scope="module")
def steps():
    return jit(random_steps, static_argnums=1)(quick_key(1), 300)


@pytest.fixture(scope="module")
def learnt(steps):
    state, known = init(TINY, quick_key(0)), jnp.ones(len(steps.reward), bool)
    history = []
    for key in jax.random.split(quick_key(2), NUM_UPDATES):
        state, metrics = learn(TINY, state, steps, known, key)
        history.append(metrics)
    return state, jax.device_get(history)


def best_action(position):
    return jnp.clip((GOAL - position) / REACH, -1, 1)


def total(policy, starts):
    """The mean return of a policy that sees the position itself."""
    position, rewards = starts, 0.0
    for _ in range(NUM_STEPS):
        position, reward = slide(position, policy(position))
        rewards += reward.mean()
    return rewards


@pytest.mark.slow
def test_planet_solves_the_probe_world(learnt):
    state, _ = learnt
    starts = jnp.linspace(-1, 1, 17)
    returns, actions, positions = play(TINY, state, starts, quick_key(3))
    optimum, staying = total(best_action, starts), total(jnp.zeros_like, starts)
    assert optimum == pytest.approx(96.25 / 17) and staying < 0.4 * optimum
    assert 0.9 * optimum < returns.mean() <= optimum
    # once a picture has moved, actions are near the best ones everywhere
    assert np.abs(actions - best_action(positions))[1:].mean() < 0.2


def test_predicted_rewards_are_those_of_the_probe_world(learnt):
    positions, actions = (
        x.ravel() for x in jnp.meshgrid(jnp.linspace(-1, 1, 9), jnp.linspace(-1, 1, 3))
    )
    predicted = jit(TINY.predict_reward)(
        learnt[0], picture(positions), actions[:, None], quick_key(4)
    )
    assert predicted.shape == (27,)
    error = np.abs(predicted - slide(positions, actions)[1])
    assert error.mean() < 0.2  # a constant misses by 0.4


def test_an_update_tells_how_learning_fares(learnt):
    state, history = learnt
    first, last = history[0], history[-1]
    assert set(last) == {"model_loss", "image_loss", "reward_loss", "kl"}
    assert all(np.isfinite(value) and np.shape(value) == () for value in last.values())
    assert last["reward_loss"] < 0.05 * first["reward_loss"]
    assert last["image_loss"] < 0.2 * first["image_loss"]
    assert state.num_updates == NUM_UPDATES
    for told in history:  # no step's KL counts beyond what it is
        counted = told["model_loss"] - told["image_loss"] - 10 * told["reward_loss"]
        assert -1e-5 < counted < told["kl"] + 1e-5


def test_unknown_rewards_move_nothing(learnt, steps):
    state, key = learnt[0], quick_key(5)
    known = jnp.arange(len(steps.reward)) % 3 > 0
    absurd = steps._replace(reward=jnp.where(known, steps.reward, -99.0))
    learnt_on = [learn(TINY, state, each, known, key)[0] for each in (steps, absurd)]
    jax.tree.map(np.testing.assert_array_equal, *learnt_on)
    # the test can fail: were they known, those rewards would move the model
    everything = jnp.ones_like(known)
    moved = learn(TINY, state, absurd, everything, key)[0].model
    assert not np.array_equal(moved.reward_out[0]["bias"], learnt_on[0].model.reward_out[0]["bias"])


def test_an_update_steps_as_far_as_it_is_told(steps):
    state, known = init(TINY, quick_key(0)), jnp.ones(len(steps.reward), bool)
    after, _ = learn(TINY, state, steps, known, quick_key(6))
    # Adam's first step is as long as the learning rate, and its first mean a tenth of the gradient
    leaves = (jax.tree.leaves(each.model) for each in (state, after))
    longest = max(np.abs(x - y).max() for x, y in zip(*leaves, strict=True))
    assert longest == pytest.approx(3e-3, rel=0.03)
    assert optax.tree.norm(after.optimiser[0].mu) == pytest.approx(1.0, rel=1e-4)  # clipped to 10


def test_listed_actions_are_refused(steps):
    state, known = jax.eval_shape(TINY.init, jax.random.key(0)), jnp.ones(len(steps.reward), bool)
    batches = windows(TINY, steps, known, quick_key(0))
    listed = batches._replace(items=batches.items._replace(action=jnp.zeros((1, 32, 8), jnp.int32)))
    with pytest.raises(LofoError, match="continuous actions"):
        TINY.update(state, listed, quick_key(0))


def test_with_no_reward_known_the_reward_head_has_no_gradient(steps):
    state = init(TINY, quick_key(0))
    unknown = jnp.zeros(len(steps.reward), bool)
    after, metrics = learn(TINY, state, steps, unknown, quick_key(6))
    assert metrics["reward_loss"] == 0.0
    # Adam's first moment is a tenth of the first gradient: exactly 0
    moment = after.optimiser[0].mu
    assert not any(x.any() for x in jax.tree.leaves((moment.reward, moment.reward_out)))
    assert all(x.any() for x in jax.tree.leaves(moment.encoder[0]["weight"]))
    for name in ("reward", "reward_out"):
        old, new = getattr(state.model, name), getattr(after.model, name)
        jax.tree.map(np.testing.assert_array_equal, old, new)


@jax.jit
@partial(jax.vmap, in_axes=(None, None, 0))
def act_both_ways(state, observation, key):
    """An episode's first action, as planned and with noise."""
    act = partial(TINY.act, state, TINY.begin(), observation, key)
    return act(explore=False), act(explore=True)


def test_acting_is_decided_by_the_key_and_noise_is_added_to_it(learnt):
    observation, state = picture(jnp.float32(GOAL)), learnt[0]
    keys = jax.random.split(quick_key(7), 400)
    (quiet, memory), (noisy, noisy_memory) = act_both_ways(state, observation, keys)
    again, _ = act_both_ways(state, observation, keys)
    np.testing.assert_array_equal(quiet, again[0])
    assert quiet.shape == (400, 1) and np.abs(quiet).max() <= 1
    assert len(np.unique(quiet)) > 300  # what it has seen is a sample
    noise = (noisy - quiet)[np.abs(quiet) < 0.2]  # where clipping hardly ever happens
    assert len(noise) > 200
    assert noise.std() == pytest.approx(0.3, abs=0.04)
    assert noise.mean() == pytest.approx(0.0, abs=0.06)
    assert np.abs(noisy).max() <= 1
    # what was done is remembered, noise included, beside what was seen
    np.testing.assert_array_equal(noisy_memory.action, noisy)
    jax.tree.map(np.testing.assert_array_equal, memory.state, noisy_memory.state)
    assert TINY.begin().is_first and not memory.is_first.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(32,), ()], ids=["head", "linear"])
def test_who_is_ready_plans_as_before(sizes, dtype):
    """With a reward that is read off the features without a hidden layer, too."""
    head = replace(TINY.model.reward_head, sizes=sizes)
    agent = replace(TINY, model=replace(TINY.model, reward_head=head, compute_dtype=dtype))
    state, memory = init(agent, quick_key(0)), agent.begin()

    @jit
    def act(state, key):
        return agent.act(state, memory, picture(jnp.float32(GOAL)), key, explore=True)

    plain, ready = act(state, quick_key(1)), act(jit(agent.ready)(state), quick_key(1))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), ready, plain)


def test_imagined_returns_sum_the_rewards_of_all_steps():
    shapes = jax.eval_shape(TINY.init, jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    state.model.reward_out[0]["bias"][:] = 0.5
    actions = jnp.zeros((7, 3, 1))
    imagine = jit(TINY.imagined_returns)
    returns = imagine(state, TINY.begin().state, actions, quick_key(0))
    np.testing.assert_allclose(returns, np.full(7, 1.5), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_returns_imagined_at_once_are_those_step_by_step(dtype):
    """In sizes that are no multiples of 8, so that all that a plan lays out is widened."""
    rssm = replace(TINY.model.rssm, latent=Gaussian(3), deterministic_size=9, hidden_size=11)
    head = MLP((13, 7), "relu", "glorot")
    model = replace(TINY.model, rssm=rssm, reward_head=head, compute_dtype=dtype)
    agent, key = replace(TINY, model=model), quick_key(0)
    state = init(agent, key)
    actions = jax.random.uniform(key, (4, 3, 1), minval=-1)
    promised = jit(agent.imagined_returns)(state, agent.begin().state, actions, key)
    total, noise, now = 0.0, rssm.latent.noise(key, (3, 4)), rssm.begin((4,))
    for k in range(3):
        now = jit(model.imagine_by)(state.model, now, actions[:, k], noise[k])
        total += model.reward(state.model, model.features(now))
    assert promised.dtype == jnp.float32
    tolerance = {"float32": 1e-5, "bfloat16": 0.02}[dtype] * np.abs(total).max()
    np.testing.assert_allclose(promised, total, rtol=0, atol=tolerance)
    for layer in jax.tree.leaves(model.ahead(state.model).rssm):
        assert layer.dtype == (dtype if layer.ndim > 1 else "float32")


def test_the_sizes_are_planets():
    agent = PlaNet()
    assert agent.appetite == (1, 50, 50, None)
    assert (agent.learning_rate, agent.adam_epsilon, agent.gradient_clip) == (3e-4, 1e-4, 1000.0)
    assert (agent.exploration, agent.model.reward_weight, agent.model.num_bits) == (0.3, 10.0, 5)
    assert agent.model.divergence == HingedKL(3.0)
    assert agent.planner == CEM(12, 10, 1000, 100, 1e-6)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    model = state.model

    def shapes(layers):
        return [layer["weight"].shape for layer in layers]

    assert [shape[-1] for shape in shapes(model.encoder)] == [32, 64, 128, 256]
    assert {name: layer["weight"].shape for name, layer in model.rssm.items()} == {
        "input": (30 + 2, 200),
        "gates": (200 + 200, 600),
        "prior": (200, 200),
        "prior_out": (200, 60),
        "posterior": (200 + 1024, 200),
        "posterior_out": (200, 60),
    }
    assert shapes((*model.canvas, *model.decoder)) == [
        (230, 1024),
        (1024, 5, 5, 128),
        (128, 5, 5, 64),
        (64, 6, 6, 32),
        (32, 6, 6, 3),
    ]
    assert shapes((*model.reward, *model.reward_out)) == [
        (230, 300),
        (300, 300),
        (300, 300),
        (300, 1),
    ]


@pytest.mark.parametrize("field", ["batch_size", "window", "num_rest_steps"])
def test_bad_fields_of_the_agent_are_named(field):
    with pytest.raises(ValueError, match=rf"{field}.*0"):
        replace(TINY, **{field: 0})
    with pytest.raises(ValueError, match=r"exploration.*-0\.1"):
        replace(TINY, exploration=-0.1)


@pytest.mark.slow
def test_the_small_preset_learns_from_full_pictures_side_by_side():
    agent = PlaNet.small(batch_size=4, window=6)
    keys = jax.random.split(jax.random.key(0), 2)
    rng = np.random.default_rng(0)
    shape = 2, 1, 4, 6
    items = Step(
        observation=rng.integers(0, 256, (*shape, 64, 64, 3), dtype=np.uint8),
        action=rng.uniform(-1, 1, (*shape, 2)).astype(np.float32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=np.zeros(shape, bool),
        is_first=rng.random(shape) < 0.2,
        is_last=np.zeros(shape, bool),
    )
    batches = Batch(items, rng.random(shape) < 0.7, np.zeros((2, 4), np.int32))
    states = jax.jit(jax.vmap(agent.init))(keys)
    together, metrics = jax.jit(jax.vmap(agent.update))(states, batches, keys)
    for i in range(2):
        state, batch = jax.tree.map(lambda x, i=i: x[i], (states, batches))
        alone, alone_metrics = jax.jit(agent.update)(state, batch, keys[i])
        for name, value in alone_metrics.items():
            assert metrics[name][i] == pytest.approx(float(value), rel=1e-4)
        moments = jax.tree.map(lambda x, i=i: x[i], together.optimiser[0].mu)
        scale = max(np.abs(x).max() for x in jax.tree.leaves(moments))
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=0, atol=1e-4 * scale),
            moments,
            alone.optimiser[0].mu,
        )
