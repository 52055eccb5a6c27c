"""The buffers of the Stable-Baselines3 adapter, in the algorithms that host them."""

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lofo_rl import Fifo, Local, LofoError

sb3 = pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from lofo_rl.adapters.sb3 import LoFoDictReplayBuffer, LoFoReplayBuffer

torch.set_num_threads(1)
BOX = spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = spaces.Discrete(3)
PARTS = ("observations", "actions", "next_observations", "dones", "rewards")


def small():
    """Settings for a fast run; SB3 writes into `policy_kwargs`."""
    return {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 20, "batch_size": 8}


def transitions(num, n_envs, seed=0, is_box=True):
    """What an algorithm hands to `add`, step by step."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        obs, following = rng.uniform(-1, 1, (2, n_envs, 2)).astype(np.float32)
        action = rng.uniform(-1, 1, (n_envs, 1)) if is_box else rng.integers(3, size=n_envs)
        done, cut = rng.random((2, n_envs)) < 0.3
        infos = [{"TimeLimit.truncated": bool(c)} for c in cut]
        yield obs, following, action, rng.normal(size=n_envs), done, infos


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("handles_timeouts", [True, False])
def test_under_fifo_it_holds_what_the_hosts_buffer_holds(n_envs, handles_timeouts):
    own = LoFoReplayBuffer(
        60, BOX, DISCRETE, "cpu", n_envs, handle_timeout_termination=handles_timeouts,
        rule=Fifo(), seed=0,
    )  # fmt: skip
    host = ReplayBuffer(
        60, BOX, DISCRETE, "cpu", n_envs, handle_timeout_termination=handles_timeouts
    )
    for step in transitions(100 // n_envs, n_envs, is_box=False):
        own.add(*copy.deepcopy(step))
        host.add(*copy.deepcopy(step))
    assert own.full and host.full and own.size() == 60
    drawn, expected = own.sample(3000), host.sample(3000)
    for name in PARTS:
        a, b = getattr(drawn, name), getattr(expected, name)
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device, name
    lines = [torch.cat([getattr(x, name).double() for name in PARTS], 1) for x in (drawn, expected)]
    assert torch.equal(*(torch.unique(x, dim=0) for x in lines))


def test_several_environments_share_one_ledger_in_order():
    buffer = LoFoReplayBuffer(50, BOX, DISCRETE, "cpu", 2, radius=0.1, group_by=None, seed=0)
    infos = [{}, {}]
    for number in range(3):  # both environments stand in the same place: the second one remains
        obs = np.zeros((2, 2), np.float32)
        reward = np.array([2 * number, 2 * number + 1.0])
        buffer.add(obs, obs, np.array([0, 1]), reward, np.zeros(2), infos)
    assert buffer.size() == 1 and buffer.sample(4).rewards.unique().tolist() == [5.0]


@pytest.mark.parametrize("group_by", ["action", "auto", lambda item: item["action"][0]])
def test_groups_by_action(group_by):
    buffer = LoFoReplayBuffer(50, BOX, DISCRETE, radius=0.1, group_by=group_by, seed=0)
    obs = np.zeros((1, 2), np.float32)
    for action in (0, 1, 2, 1, 0):
        buffer.add(obs, obs, np.array([action]), np.array([1.0]), np.zeros(1), [{}])
    assert buffer.size() == 3 and buffer.metrics()["evictions"] == 2
    with pytest.raises(LofoError, match=r"discrete actions: got .action. with"):
        LoFoReplayBuffer(50, BOX, BOX, radius=0.1, group_by="action")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimize_memory_usage": True}, "refuses optimize_memory_usage: it keeps the next"),
        ({"n_steps": 3}, "refuses n_steps: a reward several steps ahead becomes stale"),
        ({"n_sampled_goal": 4}, "hindsight"),
        ({"radios": 4}, "no option radios"),
        ({"rule": Fifo()}, "one of radius=, rule= and keep="),
        ({"radius": None}, "one of radius=, rule= and keep="),
        ({"fit_after": 10}, "fit_after=10 is for keep="),
        ({"radius": None, "keep": 10}, "need fit_after="),
        ({"radius": None, "keep": 10, "fit_after": 51}, "fit_after must be 100 to 49"),
        ({"group_by": "observation"}, "group_by must be 'auto', None, a function"),
        ({"radius": -1.0}, "radius must be positive"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(options, words):
    with pytest.raises(LofoError, match=words):
        LoFoReplayBuffer(50, BOX, DISCRETE, **({"radius": 0.1} | options))


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("DQN", "CartPole-v1", {}),
        ("QRDQN", "CartPole-v1", {}),
        ("SAC", "Pendulum-v1", {}),
        ("TD3", "Pendulum-v1", {"radius": None, "keep": 30, "fit_after": 110}),
        ("TQC", "Pendulum-v1", {"locality": torch.nn.Linear(3, 2)}),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_algorithms_train_save_and_go_on(algorithm, env, options, n_envs, tmp_path):
    path = tmp_path / "buffer.pkl"

    def train(loads):
        envs = DummyVecEnv([lambda: gymnasium.make(env)] * n_envs)
        library = sb3 if hasattr(sb3, algorithm) else pytest.importorskip("sb3_contrib")
        model = getattr(library, algorithm)(
            "MlpPolicy", envs, seed=3, replay_buffer_class=LoFoReplayBuffer, buffer_size=500,
            replay_buffer_kwargs={"radius": 0.5, "limit": 2} | options, device="cpu", **small(),
        )  # fmt: skip
        model.learn(120)
        assert 0 < model.replay_buffer.size() < 120
        if loads:
            model.replay_buffer.reset()
            model.load_replay_buffer(path)
        else:
            model.save_replay_buffer(path)
        model.learn(40, reset_num_timesteps=False)
        return model

    first, second = train(loads=False), train(loads=True)  # the model's seed is the buffer's, too
    assert first.replay_buffer.metrics() == second.replay_buffer.metrics()
    for a, b in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_normalized_environments_are_stored_as_they_are():
    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    model = sb3.SAC(
        "MlpPolicy", envs, replay_buffer_class=LoFoReplayBuffer, buffer_size=500, device="cpu",
        replay_buffer_kwargs={"rule": Local(0.1, 2)}, **small(),
    )  # fmt: skip
    model.learn(100)
    held = model.replay_buffer.memory.contents().items
    np.testing.assert_allclose(
        np.hypot(held["observation"][:, 0], held["observation"][:, 1]), 1, rtol=1e-5
    )  # a cosine and a sine, unscaled
    drawn = model.replay_buffer.sample(400, env=envs)
    mean = envs.normalize_obs(held["observation"]).mean(0)
    np.testing.assert_allclose(drawn.observations.numpy().mean(0), mean, atol=0.3)
    assert drawn.rewards.dtype == torch.float32


class Dict(gymnasium.ObservationWrapper):
    """Pendulum's observation as a dict."""

    def __init__(self, env):
        super().__init__(env)
        angle, speed = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-8, 8, (1,), np.float32)
        self.observation_space = spaces.Dict({"angle": angle, "speed": speed})

    def observation(self, observation):
        return {"angle": observation[:2], "speed": observation[2:]}


@pytest.mark.parametrize("locality", [None, "angle", lambda observation: observation["speed"]])
def test_dict_observations(locality, tmp_path):
    envs = DummyVecEnv([lambda: Dict(gymnasium.make("Pendulum-v1"))] * 2)
    model = sb3.SAC(
        "MultiInputPolicy", envs, replay_buffer_class=LoFoDictReplayBuffer, buffer_size=500,
        replay_buffer_kwargs={"radius": 0.2, "locality": locality}, device="cpu", **small(),
    )  # fmt: skip
    model.learn(120)
    drawn = model.replay_buffer.sample(5)
    host = DictReplayBuffer(50, envs.observation_space, envs.action_space, "cpu")
    assert drawn.observations.keys() == host.observations.keys()
    assert drawn.observations["angle"].shape == (5, 2) and drawn.rewards.shape == (5, 1)
    assert model.replay_buffer.size() < 120
    assert isinstance(drawn, type(host_sample(host)))
    size = model.replay_buffer.size()
    model.replay_buffer.save(tmp_path / "buffer")
    model.replay_buffer.reset()
    model.replay_buffer.load(tmp_path / "buffer")
    assert model.replay_buffer.size() == size


def host_sample(host):
    rng = np.random.default_rng(0)
    obs = {name: rng.uniform(-1, 1, (1, *s)) for name, s in host.obs_shape.items()}
    host.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    return host.sample(2)


def test_a_key_that_is_not_there_is_named():
    space = spaces.Dict({"angle": BOX})
    with pytest.raises(LofoError, match="no key 'speed': there are angle"):
        LoFoDictReplayBuffer(50, space, BOX, radius=0.1, locality="speed")
    with pytest.raises(LofoError, match="a function of the dict"):
        LoFoDictReplayBuffer(50, space, BOX, radius=0.1, locality=torch.nn.Linear(2, 2))
    with pytest.raises(LofoError, match="take LoFoDictReplayBuffer"):
        LoFoReplayBuffer(50, space, BOX, radius=0.1)
    with pytest.raises(LofoError, match="take LoFoReplayBuffer"):
        LoFoDictReplayBuffer(50, BOX, BOX, radius=0.1)


def test_a_lambda_is_lost_with_a_clear_sentence(tmp_path):
    model = sb3.DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=LoFoReplayBuffer, device="cpu",
        replay_buffer_kwargs={"radius": 0.1, "locality": lambda x: x[:, :2]}, **small(),
    )  # fmt: skip
    model.learn(50)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    with pytest.raises(LofoError, match=r"model\.replay_buffer\.locality = "):
        model.learn(10, reset_num_timesteps=False)
    model.replay_buffer.locality = lambda x: x[:, :2]
    model.learn(10, reset_num_timesteps=False)


def test_a_locality_of_images_is_learned_while_dqn_trains(tmp_path):
    """MiniGridLoCA from pixels: 900 random steps, and then the rule is applied to them."""
    pytest.importorskip("jax")
    import lofo_rl.adapters.gymnasium  # noqa: F401  # registers the ids
    from lofo_rl.adapters.torch_contrastive import ContrastiveLocality

    torch.manual_seed(0)
    env = gymnasium.make("lofo/MiniGridLoCA-v0", observation="pixels")
    locality = ContrastiveLocality((3, 80, 80), num_epochs=2, shared_negatives=True)
    model = sb3.DQN(
        "CnnPolicy", env, seed=0, device="cpu", buffer_size=2_000, learning_starts=900,
        train_freq=10, batch_size=16, replay_buffer_class=LoFoReplayBuffer,
        replay_buffer_kwargs={"locality": locality, "fit_after": 900, "keep": 400},
    )  # fmt: skip
    model.learn(890)
    assert not locality.is_fitted and model.replay_buffer.size() == 890
    model.learn(110, reset_num_timesteps=False)
    buffer = model.replay_buffer
    assert locality.is_fitted and 100 < buffer.size() < 900
    rule = buffer.memory.rule
    assert isinstance(rule, Local) and rule.expected_size is not None
    held = buffer.memory.contents().items
    with torch.no_grad():
        points = locality(torch.as_tensor(held["observation"]))
        after = locality(torch.as_tensor(held["next_observation"]))
    near = (points - after).norm(dim=1).median()
    far = (points - points[torch.randperm(len(points))]).norm(dim=1).median()
    assert far > 2 * near  # one step is short among random pairs
    model.save_replay_buffer(tmp_path / "buffer")
    before = buffer.metrics()
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.locality.is_fitted and model.replay_buffer.metrics() == before
    model.learn(20, reset_num_timesteps=False)


def first_number(item):
    """A group that another program can import."""
    return int(item["action"][0] > 0)


@pytest.mark.parametrize("group_by", [first_number, lambda item: int(item["action"][0] > 0)])
def test_a_group_function_is_kept_or_its_loss_is_said(group_by, tmp_path):
    model = sb3.SAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=LoFoReplayBuffer, device="cpu",
        buffer_size=500, replay_buffer_kwargs={"radius": 0.5, "group_by": group_by}, **small(),
    )  # fmt: skip
    model.learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    if group_by is not first_number:
        with pytest.raises(LofoError, match=r"model\.replay_buffer\.group_by = "):
            model.learn(10, reset_num_timesteps=False)
        model.replay_buffer.group_by = group_by
    model.learn(10, reset_num_timesteps=False)
    assert copy.deepcopy(model.replay_buffer).metrics() == model.replay_buffer.metrics()


def test_a_saved_model_with_a_learned_locality_is_loaded(tmp_path):
    from lofo_rl.adapters.torch import ContrastiveLocality

    locality = ContrastiveLocality((4,), num_epochs=1, num_negatives=4)
    model = sb3.DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=LoFoReplayBuffer, device="cpu",
        buffer_size=500, policy_kwargs={"net_arch": [8]}, learning_starts=100,
        replay_buffer_kwargs={"radius": 0.1, "locality": locality, "fit_after": 100},
    )  # fmt: skip
    model.learn(120)
    model.save(tmp_path / "model")
    again = sb3.DQN.load(tmp_path / "model", env=model.get_env())
    again.learn(20)
