"""The buffer for plain torch loops: loops in CleanRL's form train with it."""

import copy
import pickle
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from lofo_rl import Fifo, Local, LofoError, LofoWarning, ReplayBuffer

torch = pytest.importorskip("torch")

from gymnasium import spaces

from lofo_rl.adapters.torch import ContrastiveLocality, LoFoReplayBuffer, Samples

torch.set_num_threads(1)
BOX = spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = spaces.Discrete(3)


def transitions(num, n_envs=1, seed=0):
    """Random transitions of a discrete agent: obs, next_obs, action, reward, done."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        obs, following = rng.uniform(-1, 1, (2, n_envs, 2)).astype(np.float32)
        action, reward = rng.integers(3, size=n_envs), rng.normal(size=n_envs)
        yield obs, following, action, reward, rng.random(n_envs) < 0.1


def make(space=DISCRETE, n_envs=1, **options):
    options = {"radius": 0.3, "limit": 2, "seed": 0} | options
    return LoFoReplayBuffer(
        500, BOX, space, "cpu", n_envs, handle_timeout_termination=False, **options
    )


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("group_by", ["auto", None])
@pytest.mark.parametrize("has_locality", [False, True])
def test_it_decides_as_the_buffer_behind_it(n_envs, group_by, has_locality):
    """A locality is asked late, for many transitions at once; the decisions are the same."""
    calls = []

    def locality(x):
        calls.append(len(x))
        return 2 * x

    own = make(
        n_envs=n_envs, group_by=group_by, radius=0.6 if has_locality else 0.3,
        locality=locality if has_locality else None,
    )  # fmt: skip
    plain = ReplayBuffer(Local(0.3, 2), 500, lambda x: x)
    for obs, following, action, reward, done in transitions(150, n_envs):
        own.add(obs, following, action, reward, done)
        for i in range(n_envs):
            item = {"observation": obs[i], "action": action[i], "reward": reward[i]}
            plain.add(item, group=None if group_by is None else int(action[i]))
        obs[:] = 7  # what was added is a copy
    held, expected = own.memory.contents().items, plain.contents().items
    np.testing.assert_array_equal(held["observation"], expected["observation"])
    np.testing.assert_allclose(held["reward"][:, 0], expected["reward"])
    assert len(own) == own.size() == len(plain) < 150 * n_envs
    assert own.metrics() == plain.metrics()
    if has_locality:
        assert sum(calls) == 150 * n_envs and max(calls) >= 63


def test_samples_are_tensors_of_the_stored_kinds():
    buffer = make()
    for step in transitions(20):
        buffer.add(*step)
    drawn = buffer.sample(7)
    assert isinstance(drawn, Samples)
    shapes = [(7, 2), (7, 1), (7, 2), (7, 1), (7, 1)]
    kinds = [torch.float32, torch.int64, torch.float32, torch.float32, torch.float32]
    assert [tuple(x.shape) for x in drawn] == shapes and [x.dtype for x in drawn] == kinds
    float64 = make(spaces.Box(-1, 1, (2,), np.float64), rule=Fifo(), radius=None)
    float64.add(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2)), np.ones(1), np.zeros(1))
    assert float64.sample(1).actions.dtype == torch.float32  # as the hosts store it
    on_tensors = make()
    on_tensors.add(*(torch.as_tensor(x) for x in next(iter(transitions(1)))))
    assert len(on_tensors) == 1


@pytest.mark.parametrize("handles", [True, False])
def test_time_limits_do_not_end_an_episode(handles):
    buffer = LoFoReplayBuffer(
        9, BOX, DISCRETE, "cpu", 2, radius=0.01, handle_timeout_termination=handles, group_by=None
    )
    obs = np.array([[0, 0], [1, 1]], np.float32)
    infos = [{"TimeLimit.truncated": True}, {}]
    buffer.add(obs, obs, np.zeros(2, int), np.zeros(2), np.ones(2), infos)
    done = buffer.memory.contents().items["done"].ravel().tolist()
    assert done == ([0, 1] if handles else [1, 1])
    if handles:
        with pytest.raises(LofoError, match="handle_timeout_termination=False"):
            buffer.add(obs, obs, np.zeros(2, int), np.zeros(2), np.ones(2), {"final_info": 1})


def test_the_seed_is_that_of_the_script():
    drawn = []
    for seed in (1, 2, 1):
        np.random.seed(seed)  # noqa: NPY002
        buffer = make(seed=None)
        for step in transitions(50):
            buffer.add(*step)
        drawn.append(buffer.sample(20).rewards.ravel().tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_reset_forgets_everything():
    buffer = make(locality=lambda x: x)
    for step in transitions(80):
        buffer.add(*step)
    buffer.reset()
    assert len(buffer) == 0 and buffer.metrics()["size"] == 0
    buffer.add(*next(iter(transitions(1))))
    assert len(buffer) == 1 and buffer.memory.rule == Local(0.3, 2)


@pytest.mark.parametrize("locality", [None, torch.nn.Linear(2, 3)])
@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_saved_buffer_goes_on_as_it_would_have(tmp_path, locality, way):
    steps = list(transitions(120))
    first = make(locality=locality)
    for step in steps[:70]:
        first.add(*step)
    if way == "save":
        first.save(tmp_path / "buffer")
        second = make(locality=copy.deepcopy(locality), seed=9)
        if locality is not None:
            torch.nn.init.zeros_(second.locality.weight)
        second.load(tmp_path / "buffer")
    else:
        second = pickle.loads(pickle.dumps(first))
    for step in steps[70:]:
        first.add(*step)
        second.add(*step)
    assert first.metrics() == second.metrics()
    for a, b in zip(first.sample(50), second.sample(50), strict=True):
        assert torch.equal(a, b)


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    buffer = make()
    for step in transitions(30):
        buffer.add(*step)
    before = buffer.metrics()
    buffer.save(tmp_path / "own")
    buffer.memory.save(tmp_path / "plain")
    with pytest.raises(LofoError, match="ReplayBuffer"):
        buffer.load(tmp_path / "plain")
    other = make(group_by=None)
    with pytest.raises(LofoError, match="it has group_by 'action', this buffer None"):
        other.load(tmp_path / "own")
    damaged = bytearray((tmp_path / "own").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "own").write_bytes(damaged)
    with pytest.raises(LofoError, match="damaged"):
        buffer.load(tmp_path / "own")
    assert buffer.metrics() == before


def test_a_radius_is_chosen_after_the_first_steps():
    buffer, plain = make(radius=None, keep=40, fit_after=200), make()
    for number, step in enumerate(transitions(400), start=1):
        buffer.add(*step)
        if number < 200:
            assert len(buffer) == number  # all of them
    rule = buffer.memory.rule
    assert isinstance(rule, Local) and rule.limit == 2 and 20 < rule.expected_size < 60
    plain = make(radius=rule.radius)
    for step in transitions(400):
        plain.add(*step)
    np.testing.assert_equal(buffer.memory.contents().items, plain.memory.contents().items)


def test_learning_before_the_fit_is_warned_of_once():
    buffer = make(radius=None, keep=10, fit_after=100)
    for step in transitions(30):
        buffer.add(*step)
    with pytest.warns(LofoWarning, match="30 of fit_after=100 transitions are there"):
        buffer.sample(4)
    buffer.sample(4)


def test_a_file_of_other_settings_is_refused(tmp_path):
    buffer = make(group_by=None, locality=torch.nn.Linear(2, 2))
    for step in transitions(30):
        buffer.add(*step)
    buffer.save(tmp_path / "own")
    weights = torch.nn.Linear(2, 3)
    before = weights.weight.clone()
    for options, words in (
        ({"locality": torch.nn.Linear(2, 2)}, "group_by None, this buffer 'action'"),
        ({"group_by": None}, "weights of another locality"),
        ({"group_by": None, "locality": weights}, "weights of another locality"),
        ({"group_by": None, "locality": torch.nn.Linear(2, 2), "radius": 0.9}, "rule Local"),
    ):
        with pytest.raises(LofoError, match=words):
            make(**options).load(tmp_path / "own")
    assert torch.equal(weights.weight, before)
    other = LoFoReplayBuffer(
        500, spaces.Box(-1, 1, (5,)), DISCRETE, "cpu", radius=0.3, limit=2, group_by=None,
        locality=torch.nn.Linear(2, 2),
    )  # fmt: skip
    with pytest.raises(LofoError, match=r"observations of shape \(2,\), this buffer \(5,\)"):
        other.load(tmp_path / "own")


def number_of(item):
    """A group that another program can import."""
    return int(item["action"][0])


def test_a_buffer_that_is_not_yet_fitted_is_saved(tmp_path):
    options = {"radius": None, "keep": 40, "fit_after": 200, "group_by": number_of}
    first, second = make(**options), make(**options)
    steps = list(transitions(300))
    for step in steps[:120]:
        first.add(*step)
    first.save(tmp_path / "buffer")
    second.load(tmp_path / "buffer")
    third = pickle.loads(pickle.dumps(first))
    for step in steps[120:]:
        for buffer in (first, second, third):
            buffer.add(*step)
    assert len(first) < 200 and first.metrics() == second.metrics() == third.metrics()
    first.save(tmp_path / "fitted")
    with pytest.raises(LofoError, match="it has groups True, this buffer False"):
        make(radius=None, keep=40, fit_after=200, group_by=None).load(tmp_path / "fitted")


def test_a_module_embeds_as_it_does_when_it_does_not_learn():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
    buffer = make(radius=0.01, limit=1, locality=module, group_by=None)
    obs = np.full((1, 2), 0.5, np.float32)
    for _ in range(50):
        buffer.add(obs, obs, np.zeros(1, int), np.zeros(1), np.zeros(1))
    assert len(buffer) == 1 and module.training
    assert torch.equal(module[0].running_mean, torch.zeros(2))


def test_observations_of_another_shape_are_refused():
    buffer, zero = make(n_envs=2), np.zeros(2)
    for obs in (np.zeros((1, 2)), np.zeros((2, 1)), np.zeros(4), np.zeros((2, 2, 1))):
        with pytest.raises(LofoError, match=r"obs must have shape \(2, 2\), n_envs=2"):
            buffer.add(obs, obs, zero.astype(int), zero, zero)
    assert len(buffer) == 0


def test_one_bad_transition_does_not_block_the_others():
    buffer = make(locality=lambda x: x, group_by=None)
    steps = list(transitions(20))
    for number, step in enumerate(steps):
        if number == 7:
            step[0][:] = np.nan
        buffer.add(*step)
    with pytest.raises(LofoError, match="must be finite"):
        len(buffer)
    plain = make(group_by=None)
    for step in steps[:7] + steps[8:]:
        plain.add(*step)
    assert len(buffer) == len(plain)


def test_a_function_of_a_script_is_not_pickled(tmp_path):
    code = (
        "import numpy as np, pickle, sys\n"
        "from gymnasium import spaces\n"
        "from lofo_rl.adapters.torch import LoFoReplayBuffer\n"
        "def locality(x): return x\n"
        "box = spaces.Box(-1, 1, (2,))\n"
        "buffer = LoFoReplayBuffer(9, box, box, 'cpu', radius=0.1, locality=locality,\n"
        "    handle_timeout_termination=False)\n"
        "zero = np.zeros((1, 2), np.float32)\n"
        "buffer.add(zero, zero, zero, np.zeros(1), np.zeros(1))\n"
        "pickle.dump(buffer, open(sys.argv[1], 'wb'))\n"
    )
    (tmp_path / "script.py").write_text(code)
    subprocess.run([sys.executable, tmp_path / "script.py", tmp_path / "buffer"], check=True)
    buffer = pickle.loads((tmp_path / "buffer").read_bytes())
    assert len(buffer) == 1
    zero = np.zeros((1, 2), np.float32)
    with pytest.raises(LofoError, match="set its attribute locality"):
        buffer.add(zero, zero, zero, np.zeros(1), np.zeros(1))


class QNetwork(torch.nn.Module):
    """Values of discrete actions."""

    def __init__(self, num_inputs, num_actions):
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(num_inputs, 32), torch.nn.ReLU(), torch.nn.Linear(32, num_actions)
        )

    def forward(self, x):
        return self.network(x)


def test_a_dqn_loop_trains_with_it():
    """CartPole in two environments of Gymnasium, one gradient step for each step."""
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * 2,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network, target = QNetwork(4, 2), QNetwork(4, 2)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    buffer = LoFoReplayBuffer(
        4000, envs.single_observation_space, envs.single_action_space, "cpu", 2,
        handle_timeout_termination=False, radius=0.1, limit=2, seed=0,
    )  # fmt: skip
    obs, _ = envs.reset(seed=0)
    lengths, length = [], np.zeros(2)
    for step in range(3000):
        epsilon = max(0.05, 1 - step / 1000)
        with torch.no_grad():
            actions = network(torch.as_tensor(obs)).argmax(1).numpy()
        actions = np.where(rng.random(2) < epsilon, rng.integers(2, size=2), actions)
        following, rewards, terminations, truncations, infos = envs.step(actions)
        real = following.copy()
        ends = terminations | truncations
        for i in np.flatnonzero(ends):
            real[i] = infos["final_obs"][i]
        buffer.add(obs, real, actions, rewards, terminations, infos)
        length += 1
        lengths += length[ends].tolist()
        length[ends] = 0
        obs = following
        if step > 100:
            data = buffer.sample(64)
            with torch.no_grad():
                best = target(data.next_observations).max(1, keepdim=True).values
                goal = data.rewards + 0.99 * best * (1 - data.dones)
            loss = torch.nn.functional.smooth_l1_loss(
                network(data.observations).gather(1, data.actions), goal
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 100 == 0:
            target.load_state_dict(network.state_dict())
    assert np.mean(lengths[-10:]) > 3 * np.mean(lengths[:30]), (lengths[:30], lengths[-10:])
    assert len(buffer) < 4000 and buffer.metrics()["evictions"] > 1000


def test_an_actor_and_a_critic_learn_from_the_right_transitions():
    """A point on a line with continuous actions: the critic learns the reward -(x + a)^2."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    space = spaces.Box(-1, 1, (1,), np.float32)
    buffer = LoFoReplayBuffer(
        2000, space, space, "cpu", radius=0.02, limit=3, handle_timeout_termination=False, seed=0
    )
    critic = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    actor = torch.nn.Linear(1, 1)
    critic_optimizer = torch.optim.Adam(critic.parameters(), 5e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), 5e-3)
    for step in range(1500):
        x = rng.uniform(-0.5, 0.5, (1, 1)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, 1)).astype(np.float32)
        buffer.add(x, x, action, -((x + action) ** 2)[0], np.ones(1), [{}])
        if step > 50:
            data = buffer.sample(64)
            pair = torch.cat([data.observations, data.actions], 1)
            loss = ((critic(pair) - data.rewards) ** 2).mean()
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            chosen = actor(data.observations)
            loss = -critic(torch.cat([data.observations, chosen], 1)).mean()
            actor_optimizer.zero_grad()
            loss.backward()
            actor_optimizer.step()
    x = torch.linspace(-0.5, 0.5, 11)[:, None]
    assert (actor(x) + x).abs().mean() < 0.15  # the best action is -x


# --- the learned locality ---


def jax_twin(locality, shape):
    """`lofo_rl.Contrastive` with the same settings, and this one's weights."""
    pytest.importorskip("optax")
    import jax.numpy as jnp

    from lofo_rl import Contrastive
    from lofo_rl.networks import CNN, MLP, Chain, Pixels, linear

    weights = [
        {"weight": jnp.asarray(_turned(layer.weight)), "bias": jnp.asarray(layer.bias.detach())}
        for layer in locality.encoder
        if hasattr(layer, "weight")
    ]
    if len(shape) == 1:
        encoder = Chain((MLP((64, 64, 64), "tanh", "torch"), linear(16, "torch")))
        params = (tuple(weights[:3]), tuple(weights[3:]))
    else:
        cnn = CNN((32, 64, 64), (8, 3, 3), (4, 2, 2))
        encoder = Chain((Pixels(), cnn, MLP((512,), "relu", "torch"), linear(16, "torch")))
        params = ((), tuple(weights[:3]), tuple(weights[3:4]), tuple(weights[4:]))
    names = "reduce_negatives", "square", "negative_weight", "negative_target"
    return Contrastive(encoder, shape, **{name: getattr(locality, name) for name in names}), params


def _turned(weight):
    """A weight as the networks in jax hold it: [inputs, outputs], [inputs, k, k, outputs]."""
    x = weight.detach().numpy()
    return x.T if x.ndim == 2 else x.transpose(1, 2, 3, 0)


@pytest.mark.parametrize("shape", [(3,), (44, 44, 3)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduce_negatives": "mean"},
        {"square": "batch", "negative_weight": 0.1, "negative_target": 50.0},
    ],
)
def test_loss_and_gradient_are_those_of_the_jax_version(shape, options):
    torch.manual_seed(1)
    locality = ContrastiveLocality(shape, **options)
    twin, params = jax_twin(locality, shape)
    import jax

    rng = np.random.default_rng(0)
    is_image = len(shape) == 3
    seen = rng.integers(0, 256, (10, *shape)).astype(np.uint8) if is_image else rng.normal(
        size=(10, *shape)
    ).astype(np.float32)  # fmt: skip
    rows = np.arange(4), np.arange(4, 8), rng.integers(10, size=(4, 6))

    def loss(params):
        points = twin.embed(params, seen)
        return twin.loss(*(points[r] for r in rows))

    value, gradient = jax.value_and_grad(loss)(params)
    points = locality(torch.as_tensor(seen))
    np.testing.assert_allclose(points.detach(), twin.embed(params, seen), rtol=1e-5, atol=1e-6)
    own = locality.loss(*(points[torch.as_tensor(r)] for r in rows))
    own.backward()
    np.testing.assert_allclose(own.item(), value, rtol=1e-5)
    layers = [layer for layer in locality.encoder if hasattr(layer, "weight")]
    flat = [layer for part in gradient for layer in part]
    assert len(layers) == len(flat)
    for layer, other in zip(layers, flat, strict=True):
        # The last bias has no gradient at all, so the scale is that of the layer.
        allowed = 1e-5 * max(np.abs(other[name]).max() for name in ("weight", "bias"))
        for grad, expected in (
            (_turned(layer.weight.grad), other["weight"]),
            (layer.bias.grad.numpy(), other["bias"]),
        ):
            assert np.abs(grad - expected).max() <= allowed


def walk(num, seed=0):
    """A random walk on a ring, seen as a cosine and a sine, with its successors."""
    rng = np.random.default_rng(seed)
    angle = np.cumsum(rng.normal(0, 0.1, num + 1))
    seen = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    return seen[:-1], seen[1:]


@pytest.mark.parametrize("options", [{}, {"shared_negatives": True, "standardise": True}])
def test_a_fit_draws_neighbors_together(options):
    torch.manual_seed(0)
    locality = ContrastiveLocality(
        (2,), learning_rate=1e-3, num_epochs=8, num_negatives=32, **options
    )
    obs, following = walk(1500)
    assert not locality.is_fitted
    found = locality.fit(obs, following, seed=3)
    assert locality.is_fitted and found["loss"] < 0.5 * found["first_loss"]
    with torch.no_grad():
        points, after = locality(torch.as_tensor(obs)), locality(torch.as_tensor(following))
    near = (points - after).norm(dim=1).median()
    far = (points - points[torch.randperm(len(points))]).norm(dim=1).median()
    assert far > 5 * near


@pytest.mark.parametrize("num_envs", [1, 4])
def test_negatives_are_neither_the_step_nor_its_successor(num_envs):
    locality = ContrastiveLocality((2,), num_negatives=4000)
    batch = np.array([0, 10, 45, 49])
    rng = np.random.default_rng(0)
    for t, drawn in zip(batch, locality._negatives(batch, 50, num_envs, rng), strict=True):
        missing = set(range(50)) - set(drawn.tolist())
        if t + num_envs < 50:
            assert missing == {t, t + num_envs}
        else:  # it has no successor among them; one other step is left out
            assert t in missing and len(missing) == 2 and max(drawn) < 50


def test_channels_may_come_first_or_last():
    torch.manual_seed(0)
    last = ContrastiveLocality((44, 44, 3))
    first = ContrastiveLocality((3, 44, 44), encoder=last.encoder)
    seen = torch.randint(0, 256, (5, 44, 44, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(seen), first(seen.permute(0, 3, 1, 2)))
    with pytest.raises(LofoError, match=r"for observations \(44, 44, 3\), got \(3, 44, 44\)"):
        last(seen.permute(0, 3, 1, 2))
    with pytest.raises(LofoError, match="too small for the usual encoder"):
        ContrastiveLocality((16, 16, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduce_negatives": "foo"}, "sum or mean, got 'foo'"),
        ({"square": "foo"}, "pair or batch"),
        ({"num_epochs": 0}, "num_epochs must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
    ],
)
def test_settings_that_cannot_be(options, words):
    with pytest.raises(LofoError, match=words):
        ContrastiveLocality((2,), **options)


def test_a_buffer_learns_its_locality(tmp_path):
    """Everything is kept until the fit; then the rule is applied to all of it in order."""
    torch.manual_seed(0)
    locality = ContrastiveLocality((2,), learning_rate=1e-3, num_epochs=3, num_negatives=16)
    buffer = make(radius=None, keep=60, fit_after=300, locality=locality, group_by=None)
    obs, following = walk(500)
    nothing = np.zeros(1)
    for i in range(500):
        buffer.add(obs[i : i + 1], following[i : i + 1], nothing.astype(int), nothing, nothing)
        assert locality.is_fitted == (i >= 299)
    rule = buffer.memory.rule
    plain = ReplayBuffer(rule, 500)
    with torch.no_grad():
        points = locality(torch.as_tensor(obs)).numpy()
    plain.extend({"observation": obs}, embedding=points)
    assert abs(len(buffer) - len(plain)) <= 2  # batches of other sizes differ in last bits
    buffer.save(tmp_path / "buffer")
    again = make(
        radius=None, keep=60, fit_after=300, group_by=None,
        locality=ContrastiveLocality((2,), num_negatives=16),
    )  # fmt: skip
    again.load(tmp_path / "buffer")
    assert again.locality.is_fitted and again.memory.rule == rule
    assert again.metrics() == buffer.metrics()
    again.add(obs[:1], following[:1], nothing.astype(int), nothing, nothing)
    assert len(again) >= len(buffer)
    again.reset()
    again.add(obs[:1], following[:1], nothing.astype(int), nothing, nothing)
    assert again.memory.rule == rule  # what was learned stays
