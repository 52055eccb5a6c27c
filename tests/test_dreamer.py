"""DreamerV2 against hand-computed numbers, plain differentiation, and a probe world."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lofo_rl.agents.base import Agent
from lofo_rl.agents.descent import remember
from lofo_rl.agents.dreamer import Dreamer
from lofo_rl.agents.losses import BalancedKL
from lofo_rl.agents.returns import lambda_returns
from lofo_rl.networks import MLP, Discrete
from lofo_rl.networks.distributions import TruncatedNormal
from lofo_rl.types import Batch, LofoError, Step
from models import TINY, drawn, jit

KEY = jax.random.key(0)
SMALL = Dreamer(
    TINY,
    actor=MLP((32,), "elu", "glorot"),
    value=MLP((32,), "elu", "glorot"),
    model_learning_rate=3e-3,
    actor_learning_rate=2e-3,
    value_learning_rate=4e-3,
    gradient_clip=10.0,
    discount=0.9,
    horizon=6,
    target_period=20,
    batch_size=12,
    window=8,
)
SIDE, GOAL, NUM_STEPS = 8, 5.0, 7  # the probe world: a dot, where it should be, and for how long


def draw(place):
    """A bar [..., 8, 8, 1] whose column is the place."""
    columns = jnp.clip(1 - jnp.abs(jnp.arange(SIDE) - place[..., None]), 0, 1)
    shade = jnp.round(255 * columns).astype(jnp.uint8)
    return jnp.broadcast_to(shade[..., None, :, None], (*place.shape, SIDE, SIDE, 1))


def move(place, action):
    """The next place, and the reward for being near the goal there."""
    place = jnp.clip(place + action, 0, SIDE - 1)
    return place, 1 - jnp.abs(place - GOAL) / GOAL


def best_action(place):
    return jnp.clip(GOAL - place, -1, 1)


def random_rows(num_episodes):
    """Episodes of random actions, each with its closing row, one after the other."""
    rng = np.random.default_rng(0)
    place = jnp.float32(rng.uniform(0, SIDE - 1, num_episodes))
    rows = []
    for k in range(NUM_STEPS + 1):
        is_last = np.full(num_episodes, k == NUM_STEPS)
        action = jnp.float32(rng.uniform(-1, 1, num_episodes) * ~is_last)
        after, reward = move(place, action)
        none, is_first = np.zeros(num_episodes, bool), np.full(num_episodes, k == 0)
        rows.append(Step(draw(place), action[:, None], reward * ~is_last, none, is_first, is_last))
        place = after
    return jax.tree.map(lambda *x: jnp.stack(x, 1).reshape(-1, *x[0].shape[1:]), *rows)


def windows(agent, rows, key):
    """A batch as a buffer would give it."""
    starts = jax.random.randint(key, (agent.batch_size,), 0, len(rows.reward) - agent.window)
    items = jax.tree.map(lambda x: x[starts[:, None] + jnp.arange(agent.window)][None], rows)
    return Batch(items, jnp.ones(items.reward.shape, bool), starts)


@pytest.fixture(scope="module")
def rows():
    return random_rows(200)


@pytest.fixture(scope="module")
def begun():
    state = drawn(SMALL.init, scale=0.0)  # optimisers begin with zeros
    model, actor, value = (drawn(SMALL.init)[k] for k in range(3))
    target = jax.tree.map(lambda x: 0.5 * x, value)  # so that the two are told apart
    return state._replace(model=model, actor=actor, value=value, target=target)


@jax.jit
def update(state, rows, key):
    key_draw, key_update = jax.random.split(key)
    return SMALL.update(state, windows(SMALL, rows, key_draw), key_update)


@partial(jit, static_argnums=(0,), static_argnames="explore")
def act(agent, state, memory, observation, key, *, explore):
    return agent.act(state, memory, observation, key, explore=explore)


def test_returns_by_hand():
    rewards, values = jnp.array([[1.0], [2.0]]), jnp.array([[99.0], [10.0], [20.0]])
    last = 2 + 0.9 * 20
    first = 1 + 0.9 * (0.2 * 10 + 0.8 * last)
    found = lambda_returns(rewards, values, 0.9, 0.8)
    np.testing.assert_allclose(found[:, 0], [first, last], rtol=1e-6)


def test_returns_are_those_of_the_recursion():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(15, 7)), rng.normal(size=(16, 7))
    expected = [values[-1]]
    for t in reversed(range(15)):
        step = 0.05 * values[t + 1] + 0.95 * expected[-1]
        expected.append(rewards[t] + 0.99 * step)
    found = lambda_returns(jnp.float32(rewards), jnp.float32(values), 0.99, 0.95)
    np.testing.assert_allclose(found, expected[:0:-1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_actor_learns_what_the_whole_rollout_would_teach_it(begun, dtype):
    """The gradient by way of the actions is that through everything."""
    agent = replace(SMALL, model=replace(SMALL.model, compute_dtype=dtype))
    num, model = 5, agent.model
    noise = model.rssm.latent.noise(KEY, (SMALL.horizon, num))
    lots = jax.random.uniform(KEY, (SMALL.horizon, num, 1))
    starts = model.rssm.begin((num,))
    weights = 0.9 ** jnp.arange(SMALL.horizon - 1)[:, None]

    def promise(actor):
        def step(now, given):
            noise, lot = given
            action = agent._policy(actor, jax.lax.stop_gradient(model.features(now))).sample(lot)
            now = model.imagine_by(begun.model, now, action, noise)
            return now, now

        _, states = jax.lax.scan(step, starts, (noise, lots))
        states = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), starts, states)
        features = model.features(states)
        rewards = model.reward(begun.model, features[:-1])
        values = agent._value(begun.target, features)
        returns = lambda_returns(rewards, values, SMALL.discount, SMALL.trace)
        return jnp.mean(weights * returns[1:]), (features, rewards, returns)

    def both(actor):
        (promised, plain), expected = jax.value_and_grad(promise, has_aux=True)(actor)
        dream = agent._dream(begun._replace(actor=actor), starts, noise, lots)
        loss = jax.grad(agent._actor_loss, has_aux=True)
        found = loss(actor, dream.features, lots, dream.slope)[0]
        return (promised, plain, expected), (dream.promise, tuple(dream[:3]), found)

    (promised, plain, expected), (found_promised, found_plain, found) = jit(both)(begun.actor)
    assert all(x.any() for x in jax.tree.leaves(found))
    if dtype == "bfloat16":
        gap, length = (optax.tree.norm(x) for x in (jax.tree.map(jnp.add, expected, found), found))
        assert gap < 0.01 * length  # features are rounded once here, and by each reader there
        np.testing.assert_allclose(promised, found_promised, rtol=0.01)
        return
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)
    jax.tree.map(lambda x, y: close(-x, y), expected, found)
    jax.tree.map(close, (promised, plain), (found_promised, found_plain))


def test_the_critic_weighs_later_steps_less():
    agent = replace(SMALL, horizon=3, value=MLP((), "elu", "glorot"))
    value = ((), ({"weight": jnp.array([[1.0], [0.0]]), "bias": jnp.array([1.0])},))
    features = jnp.array([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0], [9.0, 7.0]])[:, None]
    returns = jnp.array([[2.0], [5.0], [3.0]])  # of states worth 1, 2, 3; the last is not acted in
    loss = agent._value_loss(value, features, returns)
    assert loss == pytest.approx((0.5 * 1 + 0.9 * 0.5 * 9 + 0) / 3)


def test_the_entropy_is_that_of_the_actions_whose_returns_count():
    """Of the first, of three: the last has no return behind it, nor has the state arrived at."""
    agent = replace(SMALL, horizon=2, actor=MLP((), "elu", "glorot"), entropy_scale=0.5)
    weight = jnp.array([[0.0, 1.0], [0.0, 0.0]])  # a feature is what spreads
    actor = ((), ({"weight": weight, "bias": jnp.zeros(2)},))
    features = jnp.array([[0.0, 7.0], [3.0, 7.0], [-3.0, 7.0]])[:, None]
    lots, slope = jnp.full((2, 1, 1), 0.5), jnp.zeros((2, 1, 1))
    loss, entropy = agent._actor_loss(actor, features, lots, slope)
    expected = TruncatedNormal(jnp.zeros(1), jnp.array([1.1])).entropy()  # 2 sigmoid(0) + 0.1
    assert entropy == pytest.approx(float(expected))
    assert loss == pytest.approx(-0.5 * float(expected))


def test_an_episode_is_remembered_and_evaluated_without_noise(begun, rows):
    agent: Agent = SMALL
    memory = agent.begin()
    assert memory.is_first and not memory.action.any()
    observation = rows.observation[0]
    actions = {
        explore: [
            act(SMALL, begun, memory, observation, jax.random.key(k), explore=explore)[0]
            for k in range(20)
        ]
        for explore in (True, False)
    }
    assert np.std(actions[True]) > 0.2 and np.abs(actions[True]).max() <= 1
    # the latent of what was seen is drawn in evaluation too, so that little remains
    assert np.std(actions[False]) < 0.5 * np.std(actions[True])
    action, memory = act(SMALL, begun, memory, observation, KEY, explore=True)
    assert not memory.is_first and action.dtype == jnp.float32
    np.testing.assert_array_equal(memory.action, action)
    assert memory.state.stochastic.sum() == pytest.approx(4)


def test_noise_is_added_to_what_the_policy_draws_in_training(begun, rows):
    agents = SMALL, replace(SMALL, exploration=0.0)

    @jit
    @jax.vmap
    def both(key):
        given = begun, SMALL.begin(), rows.observation[0], key
        return [agent.act(*given, explore=True) for agent in agents]

    (noisy, memory), (quiet, _) = both(jax.random.split(KEY, 2000))
    noise = (noisy - quiet)[np.abs(quiet) < 0.1]  # where clipping hardly ever happens
    assert len(noise) > 100
    assert noise.std() == pytest.approx(0.3, abs=0.05)
    assert noise.mean() == pytest.approx(0.0, abs=0.08)
    assert np.abs(noisy).max() == 1
    np.testing.assert_array_equal(memory.action, noisy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_is_ready_acts_as_before(begun, rows, dtype):
    agent = replace(SMALL, model=replace(SMALL.model, compute_dtype=dtype))
    ready = agent.ready(begun)
    assert ready.model.encoder[0]["weight"].dtype == ready.actor[0][0]["weight"].dtype == dtype
    memories = [agent.begin()] * 2
    for k, observation in enumerate(rows.observation[:3]):
        given = observation, jax.random.key(k)
        (action, memories[0]), (own, memories[1]) = (
            act(agent, state, memory, *given, explore=True)
            for state, memory in zip((begun, ready), memories, strict=True)
        )
        np.testing.assert_allclose(own, action, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), *memories)


def test_an_update_learns_and_copies_the_critic_on_time(begun, rows):
    state = begun._replace(num_updates=jnp.int32(SMALL.target_period - 2))
    first, metrics = update(state, rows, KEY)
    second, _ = update(first, rows, KEY)
    assert all(np.shape(x) == () and np.isfinite(x) for x in metrics.values())
    assert {"image_loss", "reward_loss", "kl", "actor_loss", "value_loss"} <= set(metrics)
    changed = jax.tree.map(lambda x, y: (x != y).any(), first, state)
    assert all(jax.tree.leaves((changed.model, changed.actor, changed.value)))
    jax.tree.map(np.testing.assert_array_equal, first.target, begun.target)
    jax.tree.map(np.testing.assert_array_equal, second.target, second.value)
    assert second.num_updates == SMALL.target_period
    # Adam's first step is as long as the learning rate, and its first mean a tenth of the gradient
    rates = {"model": 3e-3, "actor": 2e-3, "value": 4e-3}
    for name, rate in rates.items():
        old, new = jax.tree.leaves(getattr(state, name)), jax.tree.leaves(getattr(first, name))
        longest = max(np.abs(x - y).max() for x, y in zip(old, new, strict=True))
        assert longest == pytest.approx(rate, rel=0.03)
    assert 10 * optax.tree.norm(first.model_optimiser[0].mu) == pytest.approx(10.0, rel=1e-4)


def test_weights_decay_whatever_the_learning_rate():
    agent = replace(SMALL, weight_decay=0.25)
    params, slope = {"a": jnp.array([4.0, -8.0])}, {"a": jnp.array([1e3, 0.0])}
    found, _ = agent._descend(params, slope, remember(params), 1e-3)
    # Adam's first step is the learning rate; the norm was clipped, which its sign survives
    np.testing.assert_allclose(found["a"] - params["a"], [-1e-3 - 1.0, 2.0], rtol=1e-5)


def test_the_paper_sizes():
    agent = Dreamer()
    assert agent.appetite == (1, 16, 50, None)
    rates = agent.model_learning_rate, agent.actor_learning_rate, agent.value_learning_rate
    assert rates == (3e-4, 8e-5, 8e-5)
    assert (agent.adam_epsilon, agent.gradient_clip, agent.weight_decay) == (1e-5, 100.0, 1e-6)
    assert (agent.discount, agent.trace, agent.horizon) == (0.99, 0.95, 15)
    assert (agent.target_period, agent.entropy_scale, agent.exploration) == (100, 0.0, 0.3)
    assert agent.actor == agent.value == agent.model.reward_head == MLP((400,) * 4, "elu", "glorot")
    assert (agent.model.divergence, agent.model.reward_weight) == (BalancedKL(1.0, 0.8, 1.0), 1.0)
    assert agent.model.rssm.feature_size == 1224
    params = jax.eval_shape(agent.model.init, KEY)
    assert params.rssm["posterior"]["weight"].shape == (200 + 1536, 200)
    assert [x["weight"].shape[-1] for x in params.decoder] == [192, 96, 48, 3]
    small = Dreamer.small(batch_size=4)
    assert small.batch_size == 4 and small.model.rssm.latent == Discrete(8, 8)


def test_listed_actions_are_refused(begun, rows):
    batches = windows(SMALL, rows, KEY)
    listed = batches._replace(items=batches.items._replace(action=jnp.zeros((1, 12, 8), jnp.int32)))
    with pytest.raises(LofoError, match="continuous actions"):
        SMALL.update(begun, listed, KEY)
    with pytest.raises(ValueError, match="horizon"):
        replace(SMALL, horizon=1)


def returns_of(policy, num=20):
    """The mean return of a policy of memory, picture and place, from places all over the world."""
    place = jnp.linspace(0, SIDE - 1, num)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), SMALL.begin())

    def step(carry, key):
        place, memory = carry
        action, memory = policy(memory, place, key)
        place, reward = move(place, action)
        return (place, memory), reward

    keys = jax.random.split(KEY, NUM_STEPS)
    return jnp.sum(jax.lax.scan(step, (place, memory), keys)[1], axis=0).mean()


@pytest.mark.slow
def test_a_probe_world_is_solved_in_dreams(begun, rows):
    """From random actions alone, the agent learns to go to the goal and to stay there."""

    @jit
    def judge(state):
        def policy(memory, place, key):
            action, memory = jax.vmap(partial(SMALL.act, state, explore=False))(
                memory, draw(place), jax.random.split(key, len(place))
            )
            return action[:, 0], memory

        return returns_of(policy)

    state = begun
    for key in jax.random.split(KEY, 600):
        state, _ = update(state, rows, key)
    best = returns_of(lambda memory, place, key: (best_action(place), memory))
    blind = [returns_of(lambda m, p, k, a=a: (a + 0 * p, m)) for a in np.linspace(-1, 1, 11)]
    # 6.5 against 4.8: no action is good everywhere, so the picture must have been read
    assert judge(state) > max(blind) + 0.7 * (best - max(blind))
    place, action = jnp.float32([1.0, 3.0, 5.0, 6.0]), jnp.float32([1.0, -1.0, 0.0, -1.0])
    foreseen = jit(SMALL.predict_reward)(state, draw(place), action[:, None], KEY)
    np.testing.assert_allclose(foreseen, move(place, action)[1], atol=0.25)
    state = state._replace(target=begun.target)  # the critic is asked, not its slow copy
    values = jit(SMALL.predict_value)(state, draw(place), KEY)
    seen = SMALL.model.rest(state.model, draw(place), SMALL.num_rest_steps, KEY)
    own = SMALL._value(state.value, SMALL.model.features(seen))
    np.testing.assert_allclose(values, own, rtol=1e-3)
    assert values[0] < values[1] < jnp.min(values[2:])  # the goal is nearer each time
