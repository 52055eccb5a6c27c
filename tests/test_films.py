"""Films: what they show is what happened, a resume films the same, and a GIF holds all of it."""

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageColor, ImageSequence

from conftest import arrays, compilations, result_lines, tiny_pack
from lofo_rl import cli
from lofo_rl.agents import Appetite, Dreamer
from lofo_rl.buffers import Fifo, Reservoir
from lofo_rl.environments import Reacher
from lofo_rl.environments.minigrid_pixels import MiniGridPixels
from lofo_rl.environments.reacher import Arm
from lofo_rl.experiments import Buffer, Event, Experiment, Pack, Phase, Schedule, loop, run
from lofo_rl.experiments.compiling import Ahead
from lofo_rl.experiments.film import NUM_SEEN, film, is_filmed
from lofo_rl.experiments.pack import Runs
from lofo_rl.experiments.timeline import evaluation_tasks
from lofo_rl.networks import CNN, MLP, RSSM, Discrete, TransposedCNN
from lofo_rl.records import ROWS, read, thin
from lofo_rl.reports import films as films_module
from lofo_rl.reports import make_films, write_report
from lofo_rl.types import LofoError
from models import TINY, TINY_PLANET, drawn, jit

ROOM = MiniGridPixels(size=4, time_limit=12)
REACHER = Reacher(time_limit=40)
DREAMER = Dreamer(
    replace(
        TINY,
        observation_shape=REACHER.spec.observation_shape,
        action_size=2,
        encoder=CNN((4,) * 4, (4,) * 4, (2,) * 4, "elu", "glorot"),
        decoder=TransposedCNN((4, 4, 4, 3), (5, 5, 6, 6), (2,) * 4, "elu", "glorot"),
        rssm=RSSM(Discrete(4, 4), deterministic_size=8, hidden_size=8),
    ),
    actor=MLP((8,), "elu", "glorot"),
    value=MLP((8,), "elu", "glorot"),
    window=5,
)


class Learnt(NamedTuple):
    """What the dreamy one learns: nothing, but it counts."""

    model: Any  # [] int32


@dataclass(frozen=True)
class Negative:
    """Sees pictures as they are, and imagines the last of them with its colours turned round."""

    def foresee(self, params: Any, observations: Any, actions: Any, num_seen: int, key: Any) -> Any:
        pictures = observations / 255
        turned = 1 - pictures[num_seen - 1]
        is_seen = (jnp.arange(len(pictures)) < num_seen)[:, None, None, None]
        return jnp.where(is_seen, pictures, turned)


@dataclass(frozen=True)
class Dreamy:
    """Acts at random; its policy changes with every update, as a learner's would."""

    model: Negative = Negative()

    @property
    def appetite(self) -> Appetite:
        return Appetite(1, 4)

    def init(self, key: Any) -> Learnt:
        return Learnt(jnp.zeros((), jnp.int32))

    def begin(self) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(self, state: Learnt, memory: Any, observation: Any, key: Any, *, explore: bool) -> Any:
        return jax.random.randint(jax.random.fold_in(key, state.model), (), 0, 3), memory

    def update(self, state: Learnt, batches: Any, key: Any) -> Any:
        return Learnt(state.model + 1), {"number": state.model.astype(jnp.float32)}


def pack_of(world: Any, agent: Any, *rules: Any) -> Pack:
    """Two seeds, two phases, and as many buffers as there are rules."""
    phases = Phase(1, 40, 4.0, 4.0), Phase(2, 40, 2.0, 1.0)
    schedule = Schedule(warmup=10, evaluate_every=20, episodes=2)
    buffers = [
        Buffer(type(rule).__name__, rule, 60, window=agent.appetite.window) for rule in rules
    ]
    return Pack(
        tuple(
            Experiment(f"filmed/{b.name}", "none", world, agent, b, phases, schedule, (3, 5), 1)
            for b in buffers
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted; not to be written to."""
    path = tmp_path_factory.mktemp("filmed")
    run(pack_of(ROOM, Dreamy(), Fifo()), path)
    return path


def frames_of(path: Path) -> Iterator[np.ndarray]:
    with Image.open(path) as gif:
        for frame in ImageSequence.Iterator(gif):
            yield np.asarray(frame.convert("RGB"))


def test_a_model_sees_first_and_imagines_then() -> None:
    """With a Gaussian latent, which any change moves."""
    model, num, num_seen, key = TINY_PLANET, 9, 4, jax.random.key(1)
    params = drawn(model.init)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (num, 8, 8, 1), np.uint8)
    actions = np.float32(rng.uniform(-1, 1, (num, 1)))
    foresee = jit(lambda p, a: model.foresee(params, p, a, num_seen, key))

    def first_changed(pictures: np.ndarray, actions: np.ndarray) -> int:
        changed = (foresee(pictures, actions) != plain).any((1, 2, 3))
        return int(np.argmax(changed)) if changed.any() else num

    plain = np.asarray(foresee(pictures, actions))
    assert plain.shape == pictures.shape and 0 <= plain.min() < plain.max() <= 1
    for k in range(num):
        other = pictures.copy()
        other[k] = 255 - other[k]
        assert first_changed(other, actions) == (k if k < num_seen else num)
        other_actions = actions.copy()
        other_actions[k] = -other_actions[k]
        assert first_changed(pictures, other_actions) == k + 1  # where the action leads


def test_a_film_is_an_episode_of_each_experiments_first_seed() -> None:
    pack = pack_of(REACHER, DREAMER, Fifo(), Reservoir())
    assert is_filmed(pack)
    begun = jax.tree.map(np.asarray, drawn(DREAMER.init))
    agents = jax.tree.map(lambda x: np.stack([x, x + 1, x - 1, x + 1]), begun)
    runs = Runs(agents, None, None, None, (), (), (), pack.streams)  # type: ignore[arg-type]  # no more is asked for
    shoot = jit(unwrap(film), static_argnums=0)
    shot = shoot(pack, runs, REACHER.evaluation_task(1))
    shape = 2, REACHER.spec.time_limit, 64, 64, 3
    assert shot.seen.shape == shot.foreseen.shape == shape
    assert shot.seen.dtype == shot.foreseen.dtype == jnp.uint8
    np.testing.assert_array_equal(shot.seen, jit(REACHER.decode)(shot.codes))
    arms = Arm(shot.codes[..., :2], shot.codes[..., 2:4], shot.codes[..., 4])
    after, at_t1, at_t2 = jit(jax.vmap(jax.vmap(REACHER.advance)))(arms, shot.actions)
    np.testing.assert_allclose(REACHER.encode(after)[:, :-1], shot.codes[:, 1:], atol=1e-5)
    rewards = REACHER.pay(REACHER.evaluation_task(1), at_t1, at_t2)
    np.testing.assert_array_equal(rewards, shot.rewards)
    np.testing.assert_array_equal(shot.codes[0, 0], shot.codes[1, 0])  # the same start
    assert (shot.actions[0] != shot.actions[1]).any()
    others = jax.tree.map(lambda x: np.stack([x, x - 2, x - 1, x - 2]), begun)
    again = shoot(pack, runs._replace(agents=others), REACHER.evaluation_task(2))
    np.testing.assert_array_equal(again.seen, shot.seen)  # as in phase 1, to compare


def test_a_film_is_the_same_whatever_seeds_the_others_have() -> None:
    """Its start and its lots are those of its own seed."""
    task = jax.tree.map(lambda x: x[0], evaluation_tasks(pack_of(ROOM, Dreamy(), Fifo()), 1))

    def films(*seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        experiments = pack_of(ROOM, Dreamy(), Fifo(), Reservoir()).experiments
        pairs = zip(experiments, seeds, strict=True)
        pack = Pack(tuple(replace(e, seeds=own) for e, own in pairs))
        agents = Learnt(pack.tile(jnp.array(pack.seeds)))
        runs = Runs(agents, None, None, None, (), (), (), pack.streams)  # type: ignore[arg-type]  # no more is asked for
        shot = jit(unwrap(film), static_argnums=0)(pack, runs, task)
        return np.asarray(shot.codes), np.asarray(shot.actions)

    ours, threes, fives = films((5,), (3, 5)), films((3,), (3,)), films((5, 3), (5,))
    for own, three, five in zip(ours, threes, fives, strict=True):
        np.testing.assert_array_equal(own, np.stack([five[0], three[1]]))
        np.testing.assert_array_equal(five[0], five[1])
        assert (own[0] != own[1]).any()


def test_only_world_models_and_pictures_are_filmed() -> None:
    assert not is_filmed(tiny_pack())
    assert is_filmed(pack_of(ROOM, Dreamy(), Fifo()))
    assert not is_filmed(pack_of(replace(REACHER, observation="state"), DREAMER, Fifo()))


def test_a_film_is_compiled_ahead() -> None:
    pack = pack_of(replace(ROOM, time_limit=11), Dreamy(), Fifo())  # nobody else's program
    Ahead(pack).wait_for(film)
    runs = loop.init(pack, loop.outline_localities(pack))
    task = jax.tree.map(lambda x: x[0], evaluation_tasks(pack, 2))
    with compilations() as counted:
        film(pack, runs, task)
    assert "film" not in counted


def test_every_phase_of_every_run_is_filmed(folder: Path) -> None:
    rows = [row for row in read(folder)[1] if row.metric == "film"]
    assert [(r.run, r.seed, r.phase, r.step, r.value) for r in rows] == [
        ("filmed/Fifo", 3, phase, 40 * phase, f"filmed-Fifo-phase{phase}-film.npz")
        for phase in (1, 2)
    ]
    for row in rows:
        shot = arrays(folder / str(row.value))
        np.testing.assert_array_equal(shot["seen"], ROOM.decode(shot["codes"]))
        np.testing.assert_array_equal(shot["seen"][:NUM_SEEN], shot["foreseen"][:NUM_SEEN])
        turned = 255 - shot["seen"][NUM_SEEN - 1]
        assert (shot["foreseen"][NUM_SEEN:] == turned).all() and shot["num_seen"] == NUM_SEEN
        ends = np.flatnonzero(shot["rewards"])  # an episode that has ended stands still
        assert len(ends) <= 1 and all(len(set(shot["codes"][e + 1 :])) <= 1 for e in ends)


def test_a_resumed_run_films_the_same(folder: Path, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 40 and event.score is not None:  # filmed, but not in the checkpoint
            raise KeyboardInterrupt

    pack = pack_of(ROOM, Dreamy(), Fifo())
    with pytest.raises(KeyboardInterrupt):
        run(pack, tmp_path, checkpoint_seconds=0, watch=interrupt)
    assert len(list(tmp_path.glob("*-film.npz"))) == 1
    run(pack, tmp_path)
    assert result_lines(tmp_path) == result_lines(folder)
    names = sorted(path.name for path in tmp_path.glob("*-film.npz"))
    assert len(names) == 2
    for name in names:
        ours, theirs = arrays(tmp_path / name), arrays(folder / name)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_a_gif_shows_both_phases(folder: Path, tmp_path: Path) -> None:
    (path,) = make_films([folder], tmp_path)
    assert path == tmp_path / "film-filmed-Fifo.gif"
    shot = arrays(folder / "filmed-Fifo-phase2-film.npz")
    frames = list(frames_of(path))
    assert len(frames) == len(shot["seen"]) == ROOM.time_limit
    height, width, _ = frames[0].shape
    assert width > 4 * 256 and height > 256 and path.stat().st_size < 3e6
    with Image.open(path) as gif:
        assert gif.info["loop"] == 0 and gif.info["duration"] == 100
    top = 3 * films_module.LINE + films_module.MARGIN
    left = width - films_module.MARGIN - 2 * 256 - films_module.GAP  # the second column's
    for time in (0, NUM_SEEN - 1, NUM_SEEN, len(frames) - 1):
        for name, start in (("seen", left), ("foreseen", left + 256 + films_module.GAP)):
            found = frames[time][top : top + 256, start : start + 256]
            expected = Image.fromarray(shot[name][time]).resize((256, 256), 0)
            assert np.abs(found - np.asarray(expected, float)).mean() < 4, (time, name)
        mark = films_module.SEEN if time < NUM_SEEN else films_module.IMAGINED
        assert tuple(frames[time][top - 1, width - 100]) == ImageColor.getrgb(mark)


def test_a_film_is_made_smaller_until_it_fits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = make_films([folder], tmp_path / "large")[0].stat().st_size
    monkeypatch.setattr(films_module, "MOST_BYTES", large)
    (small,) = make_films([folder], tmp_path / "small")
    assert small.stat().st_size < large
    assert next(frames_of(small)).shape[1] < 4 * 256


def test_the_page_and_the_command_line_show_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record"
    thin(folder, record, every=2)
    assert len(list(record.glob("*-film.npz"))) == 2
    cli.main(["watch", str(record), "--out", str(tmp_path)])
    (gif,) = tmp_path.glob("*.gif")
    assert capsys.readouterr().out == f"{gif}\n"
    page = write_report([record], tmp_path / "page").read_text()
    assert f"data:image/gif;base64,{base64.b64encode(gif.read_bytes()).decode()}" in page
    assert page.count("<img") == page.count("data:image/png") + 1
    assert page.count("imagination") == 1


def test_one_finished_phase_is_one_column(folder: Path, tmp_path: Path) -> None:
    for path in (*folder.glob("*-phase1-film.npz"), folder / ROWS):
        shutil.copy(path, tmp_path)
    (path,) = make_films([tmp_path], tmp_path)
    assert 2 * 256 < next(frames_of(path)).shape[1] < 3 * 256


def test_a_record_without_films_is_told_so(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / ROWS, tmp_path)
    with pytest.raises(LofoError, match="where the agent has a world model"):
        make_films([tmp_path], tmp_path)
    assert "image/gif" not in write_report([tmp_path], tmp_path).read_text()
