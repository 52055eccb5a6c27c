"""Benchmark scripts keep up with the code: each starts, and what is cheap to ask of them holds."""

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.environments import Reacher
from lofo_rl.environments.arm import fingertip
from lofo_rl.environments.minigrid_pixels import draw_frames
from lofo_rl.experiments.paper_minigrid import MINIGRID, MINIGRID_ENCODER

FOLDER = Path(__file__).parents[1] / "benchmarks"
KEY = jax.random.key(0)
CODES = np.array([0, 3, 17, 90, 134, 255])


@pytest.fixture(autouse=True)
def among_scripts(monkeypatch):
    """Scripts find each other, and what they ask of the environment goes away with them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_starts_and_tells_its_options(path, monkeypatch, capsys):
    if "__main__" not in path.read_text():  # a part of other scripts
        runpy.run_path(str(path), run_name=path.stem)
        return
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(path), run_name="__main__")
    assert left.value.code == 0 and "usage: " in capsys.readouterr().out


def test_distinct_patches_give_what_the_encoder_gives():
    frames = jnp.asarray(draw_frames(MINIGRID), jnp.float32) / 255
    params, _ = MINIGRID_ENCODER.init(KEY, frames.shape[1:])
    found = jax.jit(import_module("minigrid_locality").embed_all)(params)
    expected = jax.jit(MINIGRID_ENCODER.apply)(params, frames[CODES])
    assert found.shape == (256, 1024) and np.ptp(expected, axis=0).max() > 0.01
    np.testing.assert_allclose(found[CODES], expected, atol=1e-6)


def test_the_fit_by_patches_fits_the_named_locality():
    script = import_module("minigrid_locality")
    named, frames = script.MINIGRID_LOCALITY, draw_frames(MINIGRID)
    quick = script.FittedByPatches(**vars(named))
    params = quick.init(KEY)
    for embed in ("embed", "_embed_many"):  # the second is what a fit asks
        program = str(jax.make_jaxpr(getattr(quick, embed))(params, frames))
        assert "256,80,80,3" not in program.partition(" let")[2]  # no picture is read whole
    few = jnp.asarray(frames[CODES])
    np.testing.assert_allclose(
        jax.jit(quick.embed)(params, frames)[CODES], named.embed(params, few), atol=1e-6
    )


@pytest.mark.parametrize(
    ("network", "shape", "reference"),
    [("MINIGRID_ENCODER", (80, 80, 3), "read_with_lax"), ("DECODER", (1027,), "draw_with_lax")],
)
def test_both_forms_that_are_timed_are_one_function(network, shape, reference):
    script = import_module("convolutions")
    ours = getattr(script, network)
    params, _ = jax.jit(ours.init, static_argnums=1)(KEY, shape)
    x = jax.random.uniform(KEY, (2, *shape))
    found, expected = ours.apply(params, x), getattr(script, reference)(ours, params, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_factors_of_products_are_rounded_as_tf32_rounds_them():
    script = import_module("precision")

    def loss(weight, x):
        return jnp.sum(jax.nn.relu(x @ weight) ** 2)

    def short(x):
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)

    weight, x = jax.random.normal(KEY, (2, 5, 5))
    found = jax.jit(script.with_tf32(jax.grad(loss)))(weight, x)
    expected = short(x).T @ short(2 * jax.nn.relu(short(x) @ short(weight)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.abs(found - jax.grad(loss)(weight, x)).max() > 1e-4
    looped = script.with_tf32(lambda w: jax.lax.scan(lambda c, _: (c @ w, None), w, None, 2)[0])
    with pytest.raises(NotImplementedError, match="a product inside scan"):
        looped(weight)


def test_scripted_arms_rest_at_t1_or_beside_it_or_play_at_random():
    script, world = import_module("scripted_arms"), Reacher(observation="state")
    task, key_steps = world.train_task(1), jax.random.key(1)

    def play(aside, is_random):
        def episode(key):
            state, _ = world.reset(task, key)
            keys = jax.random.split(key_steps, 200)
            pilot = script.as_it_lies(state, key)
            played = script.follow(world, task, state, pilot, keys, is_random, aside)
            paid = world.pay(task, played.at_t1, played.at_t2)
            is_kept = pilot.elbow == jnp.sign(played.code[0, 1])
            return played, is_kept & jnp.all(paid == played.reward)

        return jax.jit(jax.vmap(episode))(jax.random.split(KEY, 8))

    steered, is_as_told = play(0.0, False)
    assert is_as_told.all() and steered.code.shape == (8, 200, 5)
    np.testing.assert_array_equal(steered.code[:, 1:], steered.successor[:, :-1])
    assert (steered.at_t1[:, -50:] > 0).mean() > 0.9
    np.testing.assert_allclose(np.abs(steered.action).max(), 1)  # noise is clipped, too
    beside, _ = play(0.5, False)
    assert (beside.at_t1[:, -50:] > 0).mean() < 0.1
    anyhow, _ = play(0.0, True)
    assert (anyhow.at_t1 > 0).mean() < 0.2


def test_roaming_arms_go_all_over_t1():
    script, world = import_module("radius_in_play"), Reacher()
    spreads = []
    for roams in (False, True):
        codes, at_t1, _ = script.play(world, KEY, 8, 1, False, roams)
        assert codes.shape == (8, 500, 5) and at_t1[:, 100:].mean() > 0.9
        angles = world.arm(codes[:, 100:]).angles.reshape(-1, 2)
        spreads.append(script.spread(np.asarray(jax.vmap(fingertip)(angles))))
    assert spreads[1] > 50 > 3 * spreads[0]
    assert script.spread(np.repeat([[0.1, 0.1], [0.1, -0.1]], 5, axis=0)) == pytest.approx(2)


def test_a_roaming_arm_stays_for_a_while():
    script = import_module("scripted_arms")
    places = script.draw_places(KEY, 4000)
    assert np.linalg.norm(places, axis=1).max() <= script.ROOM
    moves = np.any(np.diff(places, axis=0), axis=1).sum()
    assert moves == pytest.approx(4000 / script.STAY, rel=0.2)


@pytest.mark.parametrize("script", ["foresee", "known_rewards"])
def test_pilots_of_scripts_reach_t1(script):
    world = (Reacher(),) if script == "known_rewards" else ()
    phase = (1,) if world else ()
    play = import_module(script).play
    steered, anyhow = (play(*world, KEY, 8, *phase, is_random)[2] for is_random in (False, True))
    assert (steered[:, -20:] > 0).mean() > 0.8 > 0.3 > (anyhow[:, -20:] > 0).mean()


def test_wandering_actions_go_on_in_their_direction():
    script = import_module("foresee")
    actions = np.asarray(
        jax.vmap(lambda key: script.draw_wandering(key, 100))(jax.random.split(KEY, 64))
    )
    assert actions.shape == (64, 100, 2) and np.abs(actions).max() == 1
    kept = np.corrcoef(actions[:, :-1].ravel(), actions[:, 1:].ravel())[0, 1]
    assert 0.75 < kept < script.KEPT  # less than was drawn, for they are clipped
    assert actions[:, 0].std() == pytest.approx(actions[:, -1].std(), rel=0.1)
    _, own, rewards = script.wander(KEY, 8)
    assert own.shape == (8, 100, 2) and set(np.unique(rewards)) <= {0, 2, 4, 8}
