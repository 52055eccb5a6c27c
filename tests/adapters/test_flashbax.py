"""The buffers for flashbax and rejax decide as our own, under jit, vmap and scan."""

import numpy as np
import pytest

from lofo_rl import Fifo, Local, LofoError, ReplayBuffer, Reservoir

jax = pytest.importorskip("jax")
pytest.importorskip("flashbax")

from typing import NamedTuple

import jax.numpy as jnp

from lofo_rl.adapters.flashbax import make_lofo_buffer, make_lofo_trajectory_buffer, metrics


class Item(NamedTuple):
    """A transition."""

    obs: jax.Array
    action: jax.Array
    number: jax.Array


def items(*shape, seed=0):
    """Random items [*shape]."""
    rng = np.random.default_rng(seed)
    obs = jnp.asarray(rng.integers(0, 12, (*shape, 1)) * 0.25, jnp.float32)
    action = jnp.asarray(rng.integers(0, 3, shape), jnp.int32)
    number = jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
    return Item(obs, action, number)


def first(tree):
    """The part of the first device."""
    return jax.tree.map(lambda x: x[0], tree)


def held(buffer, state):
    """The numbers of all items that a large sample finds."""
    drawn = jax.jit(buffer.sample)(state, jax.random.key(0)).experience.number
    return sorted(set(np.asarray(drawn).ravel().tolist()))


RULES = [Fifo(), Local(0.3, 2)]


@pytest.mark.parametrize("group_by", [None, "action", lambda item: item.action])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("form", ["items", "batches", "sequences", "both"])
def test_it_holds_what_our_buffer_holds(form, rule, group_by):
    if group_by is not None and rule == Fifo():
        return
    options = {"rule": rule, "group_by": group_by}
    if form == "both":
        data = items(20, 3, 5)  # 20 times 3 environments for 5 steps
        order = np.asarray(data.number).transpose(0, 2, 1).ravel()
    else:
        data = items(60, 5) if form != "items" else items(300)
        order = np.arange(300)
    buffer = make_lofo_buffer(
        40, 1, 1000, form in ("sequences", "both"), form in ("batches", "both"), **options
    )
    one = jax.tree.map(lambda x: x.reshape(300, *x.shape[data.number.ndim :])[0], data)
    state = buffer.init(one)
    assert not buffer.can_sample(state)
    state = jax.jit(lambda s, xs: jax.lax.scan(lambda s, x: (buffer.add(s, x), None), s, xs)[0])(
        state, data
    )
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(300, *x.shape[data.number.ndim :]), data)
    plain = ReplayBuffer(rule, 40)
    for i in order:
        plain.add(
            {"number": flat.number[i]}, embedding=flat.obs[i],
            group=None if group_by is None else flat.action[i],
        )  # fmt: skip
    assert held(buffer, state) == sorted(plain.contents().items["number"].tolist())
    assert buffer.can_sample(state)
    own, expected = metrics(state), plain.metrics()
    assert {name: int(x) for name, x in own.items()} == {name: expected[name] for name in own}


def test_min_length_is_waited_for():
    buffer = make_lofo_buffer(40, 3, 8, radius=0.1)
    data = Item(jnp.arange(5.0)[:, None], jnp.zeros(5, jnp.int32), jnp.arange(5, dtype=jnp.int32))
    state = buffer.init(jax.tree.map(lambda x: x[0], data))
    flags = []
    for i in range(4):
        state = buffer.add(state, jax.tree.map(lambda x, i=i: x[i], data))
        flags.append(bool(buffer.can_sample(state)))
    assert flags == [False, False, True, True]


def test_vmap_gives_separate_buffers():
    buffer = make_lofo_buffer(40, 1, 200, radius=0.3, add_batches=True, embed=lambda x: 2 * x.obs)
    data = items(2, 50)
    one = jax.tree.map(lambda x: x[0, 0], data)
    states = jax.vmap(lambda _: buffer.init(one))(jnp.arange(2))
    states = jax.vmap(buffer.add)(states, data)
    for k in range(2):
        alone = buffer.add(buffer.init(one), jax.tree.map(lambda x, k=k: x[k], data))
        own = jax.tree.map(lambda x, k=k: x[k], states)
        assert held(buffer, own) == held(buffer, alone)


def test_it_runs_under_pmap():
    buffer = make_lofo_buffer(40, 1, 200, radius=0.3, add_batches=True)
    data = items(1, 50)  # one device
    alone = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], data)), first(data))
    states = jax.pmap(lambda _: buffer.init(jax.tree.map(lambda x: x[0, 0], data)))(jnp.arange(1))
    states = jax.pmap(buffer.add)(states, data)
    assert held(buffer, first(states)) == held(buffer, alone)


def test_sequences_are_those_of_our_buffer():
    data = items(2, 160)
    data = data._replace(number=jnp.tile(jnp.arange(160, dtype=jnp.int32), (2, 1)))
    buffer = make_lofo_trajectory_buffer(2, 600, 4, 12, max_steps=48, radius=0.3, limit=2)
    one = jax.tree.map(lambda x: x[0, 0], data)
    state, add, sample = buffer.init(one), jax.jit(buffer.add), jax.jit(buffer.sample)
    plain = [ReplayBuffer(Local(0.3, 2), 12, window=4, num_slots=48) for _ in range(2)]
    num_unknown = 0
    for start in range(0, 160, 20):
        part = jax.tree.map(lambda x, s=start: x[:, s : s + 20], data)
        state = add(state, part)
        for k in range(2):
            for i in range(20):
                plain[k].add({"number": part.number[k, i]}, embedding=part.obs[k, i])
        assert metrics(state)["size"].tolist() == [len(p) for p in plain]
        assert bool(buffer.can_sample(state)) == all(p.can_sample() for p in plain)
        if not buffer.can_sample(state):
            continue
        drawn = sample(state, jax.random.key(start))
        lines = np.asarray(drawn.experience.number).reshape(2, 300, 4)
        known = np.asarray(drawn.reward_known).reshape(2, 300, 4)
        for k in range(2):
            expected = plain[k].contents()
            wanted = dict(
                zip(
                    map(tuple, expected.items["number"].tolist()),
                    map(tuple, expected.reward_known.tolist()),
                    strict=True,
                )
            )
            pairs = zip(map(tuple, lines[k].tolist()), map(tuple, known[k].tolist()), strict=True)
            assert dict(pairs) == wanted
            num_unknown += sum(not all(flags) for flags in wanted.values())
    assert num_unknown > 0


def test_what_cannot_work_is_refused():
    with pytest.raises(LofoError, match="either radius= or rule="):
        make_lofo_buffer(40, 1, 8)
    with pytest.raises(LofoError, match="add has no key"):
        make_lofo_buffer(40, 1, 8, rule=Reservoir())
    with pytest.raises(LofoError, match="min_length must be 1 to max_length=40"):
        make_lofo_buffer(40, 50, 8, radius=1.0)
    with pytest.raises(LofoError, match="multiple of add_batch_size=3"):
        make_lofo_trajectory_buffer(3, 8, 4, 10, radius=1.0)
    with pytest.raises(LofoError, match="no obs and no observation"):
        make_lofo_buffer(40, 1, 8, radius=1.0).init({"x": jnp.zeros(2)})


def test_rejax_trains_its_dqn():
    """CartPole: the returns rise, and the buffer forgets."""
    rejax = pytest.importorskip("rejax")
    from rejax.algos.algorithm import register_init

    from lofo_rl.adapters.rejax import LoFoReplayBuffer

    class LoFoDQN(rejax.DQN):
        @register_init
        def initialize_replay_buffer(self, rng):
            spaces = self.obs_space, self.action_space
            own = LoFoReplayBuffer.empty(self.buffer_size, *spaces, radius=0.3, limit=2)
            return {"replay_buffer": own}

    algorithm = LoFoDQN.create(
        env="CartPole-v1", total_timesteps=12_000, eval_freq=6_000, buffer_size=3_000,
        fill_buffer=500, num_envs=5, batch_size=64, learning_rate=1e-3,
        skip_initial_evaluation=True,
    )  # fmt: skip
    state, (_, returns) = jax.jit(algorithm.train)(jax.random.PRNGKey(0))
    buffer = state.replay_buffer
    assert isinstance(buffer, LoFoReplayBuffer) and buffer.replay.group_by == "action"
    assert int(buffer.state.index.evictions) > 1000 and int(buffer.num_entries) < 3000
    assert np.mean(np.asarray(returns)[-1]) > 60  # a random policy has 22


def test_the_buffer_of_rejax_decides_as_ours():
    pytest.importorskip("rejax")
    from gymnax.environments import spaces
    from rejax.buffers import Minibatch

    from lofo_rl.adapters.rejax import LoFoReplayBuffer

    rng = np.random.default_rng(0)
    obs = rng.integers(0, 9, (200, 2)).astype(np.float32)
    batch = Minibatch(obs, rng.integers(0, 2, 200), rng.normal(size=200), np.zeros(200, bool), obs)
    batch = jax.tree.map(jnp.asarray, batch)
    space = spaces.Box(0.0, 9.0, (2,))
    buffer = LoFoReplayBuffer.empty(
        90, space, spaces.Discrete(2), radius=1.2, limit=2, scale=[1.0, 0.5]
    ).extend(batch)
    plain = ReplayBuffer(Local(1.2, 2), 90)
    for i in range(200):
        plain.add({"i": i}, embedding=obs[i] * [1.0, 0.5], group=int(batch.action[i]))
    assert int(buffer.num_entries) == len(plain) < 90
    assert int(buffer.metrics()["evictions"]) == plain.metrics()["evictions"]
    kept = plain.contents().items["i"]
    drawn = buffer.sample(2000, jax.random.key(0))
    assert set(np.asarray(drawn.reward).tolist()) == set(np.asarray(batch.reward)[kept].tolist())
