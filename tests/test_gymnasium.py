"""The worlds in Gymnasium: its own checker and vector semantics, phases, seeds, compilation.

What takes long is compiling: ordinary tests share worlds, kinds of observation and numbers of rows.
"""

import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.error import NameNotFound, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import lofo_rl.adapters.gymnasium as adapter
from conftest import compilations
from lofo_rl.adapters import screen
from lofo_rl.adapters.choices import available, kinds_of
from lofo_rl.adapters.drawing import picture
from lofo_rl.adapters.gymnasium import LocaEnv, LocaVectorEnv
from lofo_rl.environments import Chart, MiniGrid, MountainCar, Spec, World

ROOT = Path(__file__).parents[1]
IDS = adapter.ids()
CAR, ROOM = "lofo/MountainCarLoCA-v0", "lofo/MiniGridLoCA-v0"
KINDS = [(f"lofo/{name}-v0", kind) for name in available() for kind in kinds_of(name)]
INFO = {"phase", "evaluation", "reached_t1", "reached_t2", "in_t1_zone"}
NUM = 3  # rows
REACHER = "lofo/ReacherLoCA-v0"
SMALL = [CAR, ROOM]  # whose programs are compiled in no time
by_id = pytest.mark.parametrize("own_id", [CAR, ROOM, REACHER])
by_small_id = pytest.mark.parametrize("own_id", SMALL)


@dataclass(frozen=True)
class Track(World):
    """A world of one's own: a point on a line, pushed by a vector, with goals that only pay."""

    time_limit: int = 20
    ends_at_goals = False

    @property
    def spec(self):
        return Spec(
            name="track",
            code_shape=(1,),
            code_dtype=np.dtype(np.float32),
            observation_shape=(2,),
            observation_dtype=np.dtype(np.float32),
            observation_low=None,
            observation_high=None,
            num_actions=0,
            action_size=1,
            time_limit=self.time_limit,
            discount=1.0,
        )

    def train_start(self, phase):
        return jnp.float32(0.5 if phase == 2 else -1.0)

    def evaluation_start(self):
        return self.train_start(1)

    def draw_start(self, start, key):
        return jax.random.uniform(key, (), jnp.float32, start, 1.0)

    def advance(self, physical, action):
        low = jnp.where(self.in_t1_zone(physical), 0.5, -1.0)
        place = jnp.clip(physical + 0.3 * action[0], low, 1.0)
        return place, place > 0.9, place < -0.9

    def in_t1_zone(self, physical):
        return physical >= 0.5

    def encode(self, physical):
        return physical[..., None]

    def decode(self, code):
        return jnp.concatenate([code, -code], axis=-1)

    def probe_states(self):
        return jnp.linspace(-0.8, 0.8, 9)

    def chart(self):
        states = (jnp.arange(10) + 0.5) / 5 - 1
        actions, blank = jnp.zeros((10, 1)), jnp.zeros(10, bool)
        return Chart((1, 10), (-1.0, 1.0, 0.0, 1.0), ("place", ""), states, actions, 1.0, blank)

    def cell(self, code):
        return jnp.clip((code[..., 0] + 1) * 5, 0, 9).astype(jnp.int32)


def episode(env, actions, **reset):
    """Everything that an episode tells, up to its end or that of the actions."""
    told = [env.reset(**reset)]
    for action in actions:
        told.append(env.step(action))
        if told[-1][2] or told[-1][3]:
            break
    return told


def same(one, two, exact=True):
    """Whether two answers of an environment are equal, at any depth."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        return all(same(one[key], two[key], exact) for key in one)
    if isinstance(one, tuple | list) or getattr(one, "dtype", None) is np.dtype(object):
        return len(one) == len(two) and all(map(lambda a, b: same(a, b, exact), one, two))
    if one is None or two is None:
        return one is two
    one, two = np.asarray(one), np.asarray(two)
    assert (one.dtype, one.shape) == (two.dtype, two.shape)
    return bool((one == two).all() if exact else np.allclose(one, two, atol=2e-5))


# --- Gymnasium's own rules -----------------------------------------------------------------------


@pytest.mark.parametrize("own_id", IDS)
def test_the_checker_of_gymnasium_has_nothing_to_say(own_id):
    check_strictly(own_id)


@pytest.mark.slow
@pytest.mark.parametrize(("own_id", "kind"), KINDS)
@pytest.mark.parametrize("played", [(1, True), (2, False), (2, True)])
def test_it_is_silent_on_every_kind_of_observation_and_phase(own_id, kind, played):
    check_strictly(own_id, phase=played[0], evaluation=played[1], observation=kind)


def check_strictly(own_id, **wishes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(own_id, **wishes).unwrapped)


@by_small_id
def test_the_vector_form_fits_its_spaces(own_id):
    check_vector(own_id)


@pytest.mark.slow
@pytest.mark.parametrize(("own_id", "kind"), KINDS)
def test_the_vector_form_fits_its_spaces_for_every_kind_of_observation(own_id, kind):
    check_vector(own_id, observation=kind)


def check_vector(own_id, **wishes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec(own_id, num_envs=NUM, **wishes)
    assert isinstance(envs, LocaVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, infos = envs.reset(seed=0)
    assert observation in envs.observation_space and infos.keys() >= INFO
    observation, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
    assert observation in envs.observation_space and observation.flags.writeable
    assert (reward.dtype, reward.shape) == (np.float64, (3,))
    assert terminated.dtype == truncated.dtype == bool and infos.keys() >= INFO


def test_one_id_is_enough_where_nothing_of_ours_was_imported():
    code = (
        "import gymnasium\n"
        f"env = gymnasium.make('lofo_rl.adapters.gymnasium:{ROOM}')\n"
        "envs = gymnasium.make_vec('lofo/MiniGridLoCA-v0', num_envs=2)\n"
        "print(env.spec.id, type(envs).__name__, env.reset(seed=0)[0].sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [ROOM, "LocaVectorEnv", "3.0"], done.stderr


def test_without_gymnasium_the_library_loads_and_the_package_is_named():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import lofo_rl, lofo_rl.adapters\n"
        "try:\n    import lofo_rl.adapters.gymnasium\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs gymnasium: pip install 'lofo-rl[gym]'" in done.stdout, done.stderr


def test_a_spec_survives_being_written_and_read():
    env = gymnasium.make(ROOM, phase=2, observation="code", size=5)
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.world == env.unwrapped.world and again.unwrapped.phase == 2
    assert again.observation_space == gymnasium.spaces.Discrete(5 * 5 * 4)


# --- episodes ------------------------------------------------------------------------------------


@by_id
def test_a_seed_is_an_episode(own_id):
    one, two = (gymnasium.make(own_id, phase=2) for _ in range(2))
    one.action_space.seed(3)
    actions = [one.action_space.sample() for _ in range(30)]
    first = episode(one, actions, seed=7)
    assert same(first, episode(two, actions, seed=7))
    assert same(episode(one, actions), episode(two, actions))  # and so is what follows it
    assert not same(first[0], one.reset(seed=8))
    assert not same(two.reset(seed=8)[0], two.reset()[0])


def test_without_a_seed_two_environments_differ():
    one, two = (gymnasium.make_vec(CAR, num_envs=NUM).reset()[0] for _ in range(2))
    assert not np.isin(one[:, 0], two[:, 0]).any()
    assert not same(gymnasium.make(CAR).reset()[0], gymnasium.make(CAR).reset()[0])


def test_seeds_may_be_large_and_neighbors_are_strangers():
    env = LocaEnv("MountainCarLoCA")
    starts = {tuple(env.reset(seed=seed)[0].tolist()) for seed in (0, 1, 2, 2**32, 2**40 + 1)}
    assert len(starts) == 5


@by_small_id
def test_the_worlds_are_the_ones_of_the_library(own_id):
    """A step of the environment is a step of the world, and so are its limits."""
    env = gymnasium.make(own_id, phase=2).unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        state, action = env._carry.state, env.action_space.sample()
        observation, reward, terminated, _, info = env.step(action)
        task = env.world.train_task(2)
        after, answer = env.world.proceed(task, state, np.asarray(action), jax.random.key(0))
        np.testing.assert_allclose(observation, env.world.decode(answer.successor), atol=1e-5)
        assert reward == float(answer.reward) and terminated == bool(answer.terminated)
        assert info["in_t1_zone"] == bool(env.world.in_t1_zone(after.physical))
        if terminated:
            env.reset()


def test_goals_time_limit_and_zone_are_told_apart():
    env = gymnasium.make(CAR, phase=2)
    _, info = env.reset(seed=0)
    assert info == {"phase": 2, "evaluation": False, "reached_t1": False,
                    "reached_t2": False, "in_t1_zone": True}  # fmt: skip
    *_, last = episode(env, [0] * 100, seed=0)
    _, reward, terminated, truncated, info = last
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["reached_t1"] and info["in_t1_zone"] and not info["reached_t2"]

    env = gymnasium.make(ROOM, time_limit=4)
    told = episode(env, [0] * 10, seed=0)
    assert len(told) == 5 and told[-1][1:4] == (0.0, False, True)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step(0)


def test_evaluation_starts_where_evaluation_does():
    env = gymnasium.make(CAR, evaluation=True)
    position, velocity = np.stack([env.reset(seed=seed)[0] for seed in range(100)]).T
    assert position.min() >= -0.2 and position.max() <= -0.1 and abs(velocity).max() <= 0.01
    env.reset(options={"evaluation": False})
    position, velocity = np.stack([env.reset(seed=seed)[0] for seed in range(100)]).T
    assert position.min() < -0.9 and position.max() > 0.3


def test_gymnasium_may_shorten_episodes():
    env = gymnasium.make(ROOM, max_episode_steps=5)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]
    for own_id, given, limit in ((ROOM, 5, 5), (ROOM, 1000, 100), (REACHER, 30, 30)):
        envs = gymnasium.make_vec(own_id, num_envs=NUM, max_episode_steps=given)
        assert envs.world.spec.time_limit == limit


# --- phases --------------------------------------------------------------------------------------


@by_id
def test_a_reset_switches_the_phase(own_id):
    for make in (gymnasium.make, partial(gymnasium.make_vec, num_envs=NUM)):
        env = make(own_id)
        _, info = env.reset(seed=0)
        assert np.all(info["phase"] == 1) and not np.all(env.reset(seed=4)[1]["in_t1_zone"])
        for _ in range(3):  # it holds until it is switched again
            _, info = env.reset(seed=0, options={"phase": 2})
            assert np.all(info["phase"] == 2) and np.all(info["in_t1_zone"])
            _, info = env.reset()
            assert np.all(info["phase"] == 2) and np.all(info["in_t1_zone"])
        assert env.unwrapped.phase == 2 and not env.unwrapped.evaluation
        _, info = env.reset(options={"phase": 1, "evaluation": True})
        assert np.all(info["phase"] == 1) and np.all(info["evaluation"])


def test_a_switch_cuts_the_running_episode():
    env = gymnasium.make(ROOM)
    env.reset(seed=0)
    env.unwrapped.set_phase(2)
    *_, truncated, info = env.step(0)
    assert truncated and info["phase"] == 1
    _, info = env.reset()
    assert info["phase"] == 2 and info["in_t1_zone"]
    env.unwrapped.set_phase(2)  # no switch
    assert not env.step(0)[3]


def test_an_arrival_in_the_cut_step_still_counts_and_pays_what_it_did():
    env = gymnasium.make(CAR, phase=1)
    env.reset(seed=0)
    world = env.unwrapped.world
    at_t1 = replace_physical(env.unwrapped._carry, world, [0.499, 0.05])
    env.unwrapped._carry = at_t1
    env.unwrapped.set_phase(2)
    _, reward, terminated, truncated, _ = env.step(2)
    assert (reward, terminated, truncated) == (4.0, True, False)


def replace_physical(carry, world, values):
    physical = type(carry.state.physical)(*map(np.float32, values))
    return carry._replace(state=carry.state._replace(physical=physical))


# --- the vector form -----------------------------------------------------------------------------

SHORT = {
    CAR: {"time_limit": 12},
    ROOM: {"size": 4, "time_limit": 9},
    REACHER: {"time_limit": 16, "observation": "state"},
}
slowly = [
    pytest.param(own_id, mode, id=f"{own_id[5:-3]}-{mode.value}",
                 marks=() if own_id == ROOM or (own_id, mode) == (CAR, AutoresetMode.NEXT_STEP)
                 else pytest.mark.slow)
    for own_id in SHORT
    for mode in AutoresetMode
]  # fmt: skip


@pytest.mark.parametrize(("own_id", "mode"), slowly)
def test_rows_live_as_they_would_in_gymnasiums_own_vector_environment(own_id, mode):
    """Answers, infos and masks, over many ends, resets and two switches of the phase."""
    make = partial(gymnasium.make, own_id, **SHORT[own_id])
    ours = gymnasium.make_vec(own_id, num_envs=NUM, autoreset_mode=mode, **SHORT[own_id])
    theirs = SyncVectorEnv([make] * NUM, autoreset_mode=mode)
    ours.action_space.seed(0)
    exact = own_id == ROOM  # elsewhere a batch may round otherwise than one alone
    num_ends = 0
    assert same(theirs.reset(seed=11), ours.reset(seed=11), exact)
    for step in range(60):
        if step in (20, 40):
            ours.set_phase(1 + step // 20 % 2, evaluation=step == 40)
            theirs.call("set_phase", 1 + step // 20 % 2, evaluation=step == 40)
        actions = ours.action_space.sample()
        told = ours.step(actions)
        assert same(theirs.step(actions), told, exact), f"step {step}"
        ended = told[2] | told[3]
        num_ends += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            again = [each.reset(options={"reset_mask": ended}) for each in (theirs, ours)]
            assert same(*again, exact), f"reset after step {step}"
    assert num_ends >= 5 * NUM
    assert same(theirs.reset(), ours.reset(), exact)  # the chains go on


@pytest.mark.skipif(
    tuple(map(int, gymnasium.__version__.split(".")[:3])) < (1, 2, 3),
    reason="DictInfoToList of older versions fails with KeyError '_r'",
)
def test_wrappers_of_gymnasium_understand_the_infos():
    envs = gymnasium.make_vec(ROOM, num_envs=NUM, phase=2, size=4, time_limit=9)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    envs = gymnasium.wrappers.vector.DictInfoToList(envs)
    envs.reset(seed=0)
    lengths = []
    for _ in range(30):
        *_, infos = envs.step(envs.action_space.sample())
        lengths += [info["episode"]["l"] for info in infos if "episode" in info]
    assert len(lengths) >= 8 and max(lengths) <= 9


def test_seeds_of_rows_can_be_given_one_by_one():
    envs = gymnasium.make_vec(ROOM, num_envs=NUM)
    together, _ = envs.reset(seed=[5, 9, 5])
    assert same(together[0], together[2]) and same(
        together[1], LocaEnv(envs.world).reset(seed=9)[0]
    )
    with pytest.raises(ValueError, match="there must be 3 seeds, got 2"):
        envs.reset(seed=[1, 2])


def test_a_row_that_ended_waits_for_its_reset_where_autoreset_is_off():
    envs = gymnasium.make_vec(ROOM, num_envs=NUM, autoreset_mode="Disabled", **SHORT[ROOM])
    with pytest.raises(ResetNeeded, match="no episodes are running"):
        envs.step([0] * NUM)
    envs.reset(seed=0)
    for _ in range(9):  # on the spot, until the time is up
        *_, truncated, _ = envs.step([0] * NUM)
    assert truncated.all()
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(ResetNeeded, match=r"rows \[1\] have ended"):
        envs.step([0] * NUM)
    for mask in ([True], np.array([1, 0, 0]), np.zeros(NUM, bool)):
        with pytest.raises(ValueError, match="reset_mask must be 3 bools"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="a phase holds for all rows"):
        envs.reset(options={"phase": 2, "reset_mask": np.array([True, False, True])})
    assert envs.phase == 1


# --- compiled once -------------------------------------------------------------------------------


def live(env):
    """All that a user does: resets with and without seed, steps, both ways of switching."""
    for options in ({"phase": 2}, {"phase": 1, "evaluation": True}, None):
        env.reset(seed=1, options=options)
        env.reset()
        env.step(env.action_space.sample())
    env.unwrapped.set_phase(2, evaluation=False)
    env.step(env.action_space.sample())
    env.reset()
    env.step(env.action_space.sample())


@pytest.mark.parametrize(
    ("own_id", "num_envs"), [(CAR, None), (ROOM, None), (REACHER, None), (CAR, NUM), (ROOM, NUM)]
)
def test_a_second_environment_and_a_switch_compile_nothing(own_id, num_envs):
    def made():
        if num_envs is None:
            return gymnasium.make(own_id)
        return gymnasium.make_vec(own_id, num_envs=num_envs)

    env = made()
    with compilations() as counted:
        live(env)
    env = made()
    with compilations() as again:
        live(env)
        live(made())
    assert not again.total()
    with compilations() as counted:  # the count itself works
        jax.jit(lambda x: x + 1 + len(own_id) * (num_envs or 1))(np.zeros(17)).block_until_ready()
    assert counted.total()


# --- wrong wishes --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LocaEnv, LocaVectorEnv])
@pytest.mark.parametrize(
    ("wish", "answer"),
    [
        ({"world": "MountainCar"}, "world must be one of 'MountainCarLoCA', 'MiniGridLoCA'"),
        ({"phase": 3}, "phase must be one of 1, 2; got 3"),
        ({"evaluation": "yes"}, "evaluation must be one of False, True; got 'yes'"),
        ({"observation": "pixel"}, "observation must be one of 'state'; got 'pixel'"),
        ({"render_mode": "ansi"}, "render_mode must be one of None, 'rgb_array'"),
        ({"device": "abacus"}, "device must be one of 'cpu'"),
        (
            {"noise": 0.1},
            "a setting of MountainCarLoCA must be one of 'time_limit', 'action_noise'",
        ),
    ],
)
def test_a_wrong_wish_is_answered_with_the_valid_ones(make, wish, answer):
    with pytest.raises(ValueError, match=re.escape(answer)):
        make(**wish)


def test_wrong_phases_options_actions_and_ids_are_named():
    for env in (LocaEnv("MiniGridLoCA"), LocaVectorEnv("MiniGridLoCA", NUM)):
        with pytest.raises(ValueError, match="phase must be one of 1, 2; got 0"):
            env.set_phase(0)
        with pytest.raises(ValueError, match="an option of reset must be one of 'phase', 'eval"):
            env.reset(options={"phaze": 2})
        assert env.phase == 1
        env.reset(seed=0)
        for wrong in (3, -1, 0.5):
            with pytest.raises(ValueError, match="actions must be integers from 0 to 2"):
                env.step(np.full(env.action_space.shape, wrong))
        with pytest.raises(ValueError, match="actions must have the shape"):
            env.step([0, 0])
    with pytest.raises(NameNotFound, match="MountainCarLoCA"):
        gymnasium.make("lofo/MountaincarLoca-v0")
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        LocaVectorEnv("MiniGridLoCA", 0)
    with pytest.raises(ValueError, match="autoreset_mode must be one of 'NextStep', 'SameStep'"):
        LocaVectorEnv("MiniGridLoCA", 2, autoreset_mode="never")
    with pytest.raises(TypeError, match="brings its own settings"):
        LocaEnv(MiniGrid(), size=5)


# --- pictures ------------------------------------------------------------------------------------


@by_small_id
def test_pictures_show_the_state(own_id):
    wishes = {"render_mode": "rgb_array"}
    envs = gymnasium.make_vec(own_id, num_envs=NUM, **wishes)
    with pytest.raises(ResetNeeded):
        envs.render()
    envs.reset(seed=0)
    one, two, three = envs.render()
    assert one.dtype == np.uint8 and one.ndim == 3 and (one != two).any() and (two != three).any()
    env = gymnasium.make(own_id, **wishes)
    env.reset(seed=1)
    assert same(env.render(), two)
    frames = gymnasium.make(own_id, **wishes | {"render_mode": "rgb_array_list"})
    frames.reset(seed=1)
    assert same(frames.render()[0], two)


def test_a_world_of_ones_own_needs_one_line():
    """Vectors as actions, goals that do not end, no picture: drawn as its chart."""
    home = "lofo_rl.adapters.gymnasium"
    gymnasium.register("test/Track-v0", f"{home}:LocaEnv", kwargs={"world": Track()},
                       vector_entry_point=f"{home}:LocaVectorEnv")  # fmt: skip
    env = gymnasium.make("test/Track-v0", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset(seed=0)
    before = env.render()
    terminated = env.step([9.0])[2]  # as far as 1.0 would go
    told = [env.step([1.0]) for _ in range(6)][-1]
    assert (before != env.render()).any() and not terminated
    assert told[0][0] == 1.0 and told[1] == 4.0 and not told[2] and told[4]["reached_t1"]
    with pytest.raises(ValueError, match="actions must be finite"):
        env.step([np.nan])
    envs = gymnasium.make_vec("test/Track-v0", num_envs=2, max_episode_steps=3)
    envs.reset(seed=0)
    ends = [envs.step(np.ones((2, 1)))[3].all() for _ in range(3)]
    assert ends == [False, False, True]


def test_a_window_needs_a_screen(monkeypatch):
    monkeypatch.setattr(screen.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="there is no screen; use render_mode='rgb_array'"):
        gymnasium.make(CAR, render_mode="human")
    assert gymnasium.make(CAR).unwrapped.metadata["render_modes"] == ["rgb_array"]
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(screen, "TOOLKITS", ("no_such_toolkit",))
    with pytest.raises(RuntimeError, match="there is no toolkit"):
        gymnasium.make(CAR, render_mode="human")


def test_a_window_shows_every_step(monkeypatch):
    monkeypatch.setattr(screen, "missing", lambda: None)
    monkeypatch.setattr("lofo_rl.adapters.loca_env.FRAMES_PER_SECOND", 1000)
    env = gymnasium.make(CAR, render_mode="human")  # in tests, matplotlib draws into memory
    env.reset(seed=0)
    image = env.unwrapped._window._image
    first = np.asarray(image.get_array()).copy()
    env.step(2)
    assert env.render() is None and (np.asarray(image.get_array()) != first).any()
    env.close()
    env.close()
    assert env.unwrapped._window._image is None


def test_a_car_is_drawn_where_it_is():
    world = MountainCar()
    car = type(world.probe_states())
    left, right = (picture(world, car(np.float32(x), np.float32(0.0))) for x in (-1.0, 0.2))
    changed = np.flatnonzero((left != right).any(axis=(0, 2)))
    assert changed.min() < 100 and changed.max() > 450


# --- the page ------------------------------------------------------------------------------------


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "gymnasium.md").read_text()
    names = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, "docs/gymnasium.md", "exec"), names)
    capsys.readouterr()
