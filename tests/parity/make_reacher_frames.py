"""Draws Reacher with MuJoCo: makes and remakes the reference frames of the tests.

    MUJOCO_GL=egl python tests/parity/make_reacher_frames.py

The scene is `reacher.xml`, beside this file, written from the published measures of the domain.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

HERE = Path(__file__).parent
MODEL = HERE / "reacher.xml"
FRAMES = HERE / "reacher_frames.npz"
NUM_FRAMES = 200
SIZE, TARGET_DISTANCE, HEIGHT, WRIST_LIMIT = 64, 0.15, 0.01, 2.792526803


class Scenes(NamedTuple):
    """What is drawn."""

    angles: np.ndarray  # [n, 2] float32, shoulder and wrist
    directions: np.ndarray  # [n] float32, of T1


def draw_scenes(randomized: bool, num: int = NUM_FRAMES) -> Scenes:
    """Random arms, and T1 at the upper right or anywhere on its circle."""
    rng = np.random.default_rng(int(randomized))
    limits = np.array([np.pi, WRIST_LIMIT])
    angles = rng.uniform(-limits, limits, (num, 2))
    directions = rng.uniform(-np.pi, np.pi, num) if randomized else np.full(num, np.pi / 4)
    return Scenes(angles.astype(np.float32), directions.astype(np.float32))


class Studio:
    """MuJoCo's own renderer above the arm, kept open from frame to frame."""

    def __init__(self, green_t2: bool) -> None:
        self.model = mujoco.MjModel.from_xml_path(str(MODEL))
        if green_t2:
            self.model.geom("t2").matid = self.model.material("green").id
        self.data = mujoco.MjData(self.model)
        self.renderer = mujoco.Renderer(self.model, SIZE, SIZE)

    def photograph(self, angles: np.ndarray, direction: float) -> np.ndarray:
        """The picture [64, 64, 3] of one scene."""
        t1 = TARGET_DISTANCE * np.array([np.cos(direction), np.sin(direction)])
        self.data.qpos[:] = angles
        self.data.mocap_pos[:, :2] = t1, -t1
        self.data.mocap_pos[:, 2] = HEIGHT
        mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, camera="above")
        return self.renderer.render().copy()


def photograph(randomized: bool, num: int) -> dict[str, np.ndarray]:
    """Scenes of one world and their pictures [num, 64, 64, 3], by name."""
    studio, scenes = Studio(green_t2=randomized), draw_scenes(randomized, num)
    frames = [studio.photograph(*scene) for scene in zip(*scenes, strict=True)]
    name = "randomized" if randomized else "fixed"
    return {f"{name}_frames": np.stack(frames)} | {
        f"{name}_{part}": array for part, array in scenes._asdict().items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FRAMES)
    parser.add_argument("--num", type=int, default=NUM_FRAMES, help="of each world")
    arguments = parser.parse_args()
    worlds = photograph(False, arguments.num) | photograph(True, arguments.num)
    np.savez_compressed(arguments.out, mujoco=np.array(mujoco.__version__), **worlds)
    size = arguments.out.stat().st_size / 1e6
    print(f"{arguments.out.name}: {size:.2f} MB, MuJoCo {mujoco.__version__}")


if __name__ == "__main__":
    main()
