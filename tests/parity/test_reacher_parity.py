"""Reacher against MuJoCo: physics step by step, pictures pixel by pixel.

The frames in `reacher_frames.npz` were drawn by MuJoCo with `make_reacher_frames.py`; where MuJoCo
and a renderer are installed, they are drawn anew. Without `mujoco` the physics tests are skipped.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import uniform_filter

from lofo_rl.environments.arm import LINK, WRIST_LIMIT, Joints, move
from lofo_rl.environments.raster import FOCAL, HAND_LENGTH, draw

HERE = Path(__file__).parent
NUM_STATES = 4000
METRE = FOCAL / 0.74  # pixels, at the height of the arm
OPEN_RENDERER = "from mujoco import *; Renderer(MjModel.from_xml_string('<mujoco/>'), 64, 64)"


class Likeness(NamedTuple):
    """How two stacks of frames differ, frame by frame."""

    everywhere: np.ndarray  # [n] mean absolute difference
    on_arm: np.ndarray  # [n] the same on the pixels of the arm
    structural: np.ndarray  # [n] structural similarity of the grey pictures


class Steps(NamedTuple):
    """One step of MuJoCo from many states."""

    angles: np.ndarray  # [n, 2]
    speeds: np.ndarray  # [n, 2]
    controls: np.ndarray  # [n, 2]
    next_angles: np.ndarray  # [n, 2]
    next_speeds: np.ndarray  # [n, 2]


def random_states(dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles, speeds and controls; a tenth of the wrists are close to their limit or beyond."""
    rng = np.random.default_rng(0)
    angles = rng.uniform((-np.pi, -2.9), (np.pi, 2.9), (NUM_STATES, 2))
    close = slice(NUM_STATES // 10)
    beyond = WRIST_LIMIT + rng.uniform(-0.002, 0.004, NUM_STATES // 10)
    angles[close, 1] = np.sign(angles[close, 1]) * beyond
    speeds = rng.uniform(-6.0, 6.0, (NUM_STATES, 2))
    controls = rng.uniform(-1.2, 1.2, (NUM_STATES, 2))
    # MuJoCo is given the very numbers that we are given, rounded as ours are.
    angles, speeds, controls = (x.astype(dtype).astype(float) for x in (angles, speeds, controls))
    return angles, speeds, controls


def mujoco_steps(dtype: type) -> Steps:
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_path(str(HERE / "reacher.xml"))
    data = mujoco.MjData(model)
    states = random_states(dtype)
    after = []
    for angles, speeds, control in zip(*states, strict=True):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = angles, speeds, control
        mujoco.mj_step(model, data)
        after.append((data.qpos.copy(), data.qvel.copy()))
    return Steps(*states, *(np.stack(part) for part in zip(*after, strict=True)))


@pytest.mark.parametrize(
    ("dtype", "angle_error", "speed_error"),
    [(np.float64, 1e-12, 1e-12), (np.float32, 1e-6, 5e-6)],
    ids=["float64", "float32"],
)
def test_one_step_is_mujocos(dtype: type, angle_error: float, speed_error: float) -> None:
    steps = mujoco_steps(dtype)
    assert (np.abs(steps.angles[:, 1]) > WRIST_LIMIT).sum() > 300
    with jax.enable_x64(dtype is np.float64):
        before = Joints(jnp.asarray(steps.angles, dtype), jnp.asarray(steps.speeds, dtype))
        after = jax.jit(move)(before, jnp.asarray(steps.controls, dtype))
        assert after.angles.dtype == dtype
    np.testing.assert_allclose(after.angles, steps.next_angles, rtol=0, atol=angle_error)
    np.testing.assert_allclose(after.speeds, steps.next_speeds, rtol=0, atol=speed_error)


def test_drift_from_mujoco_stays_small_over_200_steps() -> None:
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_path(str(HERE / "reacher.xml"))
    data = mujoco.MjData(model)
    rng = np.random.default_rng(1)
    # Weak controls of the wrist, so that it seldom meets its limit.
    controls = rng.uniform(-1.0, 1.0, (32, 200, 2)) * (1.0, 0.3)
    true = np.zeros((32, 200, 2))
    for walk, pushes in enumerate(controls.astype(np.float32)):
        mujoco.mj_resetData(model, data)
        for time, push in enumerate(pushes):
            data.ctrl[:] = push
            mujoco.mj_step(model, data)
            true[walk, time] = data.qpos
    pushes = jnp.asarray(controls.transpose(1, 0, 2), jnp.float32)
    rest = Joints(jnp.zeros((32, 2), jnp.float32), jnp.zeros((32, 2), jnp.float32))

    def follow(joints: Joints, push: jax.Array) -> tuple[Joints, jax.Array]:
        joints = move(joints, push)
        return joints, joints.angles

    own = np.asarray(jax.lax.scan(follow, rest, pushes)[1]).transpose(1, 0, 2)
    free = (np.abs(true[..., 1]) < WRIST_LIMIT).all(axis=1)
    assert free.sum() >= 16
    assert np.abs(own - true)[free].max() < 1e-3


def similarity(one: np.ndarray, two: np.ndarray) -> float:
    """Structural similarity of two grey pictures, in windows of 7×7 that lie inside."""

    def mean(picture: np.ndarray) -> np.ndarray:
        return uniform_filter(picture, 7)

    mean_one, mean_two = mean(one), mean(two)
    both = mean(one * two) - mean_one * mean_two
    spread = mean(one**2) - mean_one**2 + mean(two**2) - mean_two**2
    low, contrast = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    bright = (2 * mean_one * mean_two + low) / (mean_one**2 + mean_two**2 + low)
    return float((bright * (2 * both + contrast) / (spread + contrast))[3:-3, 3:-3].mean())


def arm_pixels(angles: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Which pixels [n, 64, 64] show the arm: close to it, outside of targets and root."""
    side = (np.arange(64) - 31.5) / METRE
    place = np.stack(np.meshgrid(side, -side), axis=-1)
    elbow = LINK * np.stack([np.cos(angles[:, 0]), np.sin(angles[:, 0])], axis=-1)
    along = np.stack([np.cos(angles.sum(1)), np.sin(angles.sum(1))], axis=-1)
    near = np.zeros((len(angles), 64, 64), bool)
    tip = elbow + (HAND_LENGTH + 0.02) * along
    for begin, end in ((np.zeros_like(elbow), elbow), (elbow, tip)):
        way = end - begin
        offset = place - begin[:, None, None]
        part = (offset * way[:, None, None]).sum(-1) / (way**2).sum(-1)[:, None, None]
        offset = offset - np.clip(part, 0.0, 1.0)[..., None] * way[:, None, None]
        near |= np.hypot(offset[..., 0], offset[..., 1]) < 0.01 + 0.5 / METRE
    t1 = 0.15 * np.stack([np.cos(directions), np.sin(directions)], axis=-1)[:, None, None]
    for target in (t1, -t1):
        near &= np.linalg.norm(place - target, axis=-1) > 0.06
    return near & (np.hypot(place[..., 0], place[..., 1]) > 0.011)


def compare(drawn: dict[str, np.ndarray], world: str) -> Likeness:
    """Our pictures beside MuJoCo's."""
    frames, angles, directions = (
        drawn[f"{world}_{part}"] for part in ("frames", "angles", "directions")
    )
    own = np.asarray(jax.jit(draw, static_argnums=2)(angles, directions, world == "randomized"))
    difference = np.abs(own.astype(float) - frames)
    arm = arm_pixels(angles, directions)
    greys = own @ np.array([0.299, 0.587, 0.114]), frames @ np.array([0.299, 0.587, 0.114])
    return Likeness(
        difference.mean((1, 2, 3)),
        np.array([d[a].mean() for d, a in zip(difference, arm, strict=True)]),
        np.array([similarity(*pair) for pair in zip(*greys, strict=True)]),
    )


def assert_alike(likeness: Likeness) -> None:
    assert likeness.everywhere.max() < 1.0
    assert likeness.on_arm.max() < 25.0
    assert likeness.structural.min() > 0.98


@pytest.mark.parametrize("world", ["fixed", "randomized"])
def test_pictures_are_like_mujocos(world: str) -> None:
    with np.load(HERE / "reacher_frames.npz", allow_pickle=False) as drawn:
        assert drawn[f"{world}_frames"].shape == (200, 64, 64, 3)
        assert_alike(compare(dict(drawn), world))


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        env={"MUJOCO_GL": "egl", **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pictures_are_like_those_that_mujoco_draws_here(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    opened = run_python("-c", OPEN_RENDERER)
    if opened.returncode:
        pytest.skip(f"no renderer: {opened.stderr.strip().splitlines()[-1]}")
    out = tmp_path / "frames.npz"
    made = run_python(str(HERE / "make_reacher_frames.py"), "--out", str(out), "--num", "20")
    assert not made.returncode, made.stderr
    with np.load(out, allow_pickle=False) as drawn:
        for world in ("fixed", "randomized"):
            assert_alike(compare(dict(drawn), world))
