"""ReacherLoCA and RandomizedReacherLoCA: a two-link arm, T1 and T2 opposite each other.

The code of a state is five numbers; the picture that an agent sees is drawn from them when it is
asked for, so a buffer stores 20 bytes a frame instead of 12 288.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl import devices
from lofo_rl.environments.arm import LINK, WRIST_LIMIT, Joints, bend, fingertip, move
from lofo_rl.environments.base import Chart, Spec, Task, World, check_horizon
from lofo_rl.environments.raster import SIZE, TARGET_DISTANCE, draw
from lofo_rl.types import Array, Key

FIXED_DIRECTION = math.pi / 4  # of T1, where targets are not random
REWARD_RADIUS = 0.06  # the target's own 0.05 and the finger's 0.01
ZONE_RADIUS = 0.1
ANYWHERE, OUTSIDE, DISC, QUARTER = range(4)  # where an episode begins
# One draw of any kind is good with at least 80 %: all fail in less than one of 1e11 episodes.
NUM_CANDIDATES = 16
CHART_CELLS, CHART_EDGE = 40, 0.25
FEW = 64  # pictures: what some runs see in a step, not what an update looks at
SPEED_SCALE = 12.0  # rad/s, which no joint reaches


class Arm(NamedTuple):
    """The physical state."""

    angles: Array  # [2] float32, shoulder and wrist
    speeds: Array  # [2] float32
    direction: Array  # [] float32, of T1 from the shoulder; T2 lies opposite


class Start(NamedTuple):
    """A start distribution: where the finger is, and which way T1 lies, uniform between two."""

    place: Array  # [] int32
    low: Array  # [] float32
    high: Array  # [] float32


@dataclass(frozen=True)
class Reacher(World):
    """The arm of the paper; an action is a control of shoulder and wrist, kept for some steps.

    `wall` says what holds the finger in the T1-zone: `restore` puts position and velocity back to
    before the step that left it, as the original does; `stop` puts back the position and stops
    the arm. `zone_starts` are phase 2's: anywhere in the zone's `disc` with either elbow, or in
    its outer `quarter` with the elbow of the original.
    """

    action_repeat: int = 2
    time_limit: int = 1000  # physics steps
    wall: Literal["restore", "stop"] = "restore"
    zone_starts: Literal["disc", "quarter"] = "disc"
    observation: Literal["pixels", "state"] = "pixels"
    random_targets: bool = False
    green_t2: bool = False
    discount: float = 1.0

    ends_at_goals: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_horizon(self.time_limit, self.discount)
        if self.action_repeat < 1 or self.time_limit % self.action_repeat:
            raise ValueError(
                f"action_repeat must divide time_limit ({self.time_limit}), "
                f"got {self.action_repeat}"
            )
        choices = {
            "wall": ("restore", "stop"),
            "zone_starts": ("disc", "quarter"),
            "observation": ("pixels", "state"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be {allowed[0]!r} or {allowed[1]!r}, got {getattr(self, name)!r}"
                )

    @property
    def spec(self) -> Spec:
        """The code is (shoulder, wrist, their speeds, T1's direction); actions are two numbers."""
        pixels = self.observation == "pixels"
        bound = (1.0,) * 4 + (SPEED_SCALE,) * 2 + (1.0,) * 2
        return Spec(
            name="randomized_reacher" if self.random_targets else "reacher",
            code_shape=(5,),
            code_dtype=np.dtype(np.float32),
            observation_shape=(SIZE, SIZE, 3) if pixels else (8,),
            observation_dtype=np.dtype(np.uint8 if pixels else np.float32),
            observation_low=None if pixels else tuple(-b for b in bound),
            observation_high=None if pixels else bound,
            num_actions=0,
            action_size=2,
            time_limit=self.time_limit // self.action_repeat,
            discount=self.discount,
        )

    def train_start(self, phase: int) -> Start:
        """Any angles in phase 1, the finger in the T1-zone in phase 2."""
        zone = DISC if self.zone_starts == "disc" else QUARTER
        return self._start(ANYWHERE if phase == 1 else zone)

    def evaluation_start(self) -> Start:
        """Any angles that leave the finger outside the T1-zone."""
        return self._start(OUTSIDE)

    def draw_start(self, start: Start, key: Key) -> Arm:
        """An arm at rest; all kinds of start are drawn and one is chosen, so a kind is data."""
        lots = jax.random.uniform(key, (2 + 4 * NUM_CANDIDATES,), jnp.float32)
        direction = start.low + lots[0] * (start.high - start.low)
        elbow = jnp.where(lots[1] < 0.5, 1.0, -1.0)
        for_angles, for_zone = lots[2:].reshape(2, NUM_CANDIDATES, 2)
        anyhow = (2.0 * for_angles - 1.0) * jnp.array([math.pi, WRIST_LIMIT], jnp.float32)
        outside = anyhow[jnp.argmin(_near_t1(anyhow, direction, ZONE_RADIUS))]
        disc, quarter = _place_in_zone(direction, elbow, for_zone)
        angles = jnp.stack([anyhow[0], outside, disc, quarter])[start.place]
        return Arm(angles, jnp.zeros(2, jnp.float32), direction)

    def advance(self, physical: Arm, action: Array) -> tuple[Arm, Array, Array]:
        """Some physics steps under one control; how many of them ended at T1, and how many at T2.

        Whether the wall holds is asked once, before the first step, as in the original.
        """
        held = self.in_t1_zone(physical)
        joints = Joints(physical.angles, physical.speeds)
        num_t1 = num_t2 = jnp.zeros((), jnp.int32)
        for _ in range(self.action_repeat):
            moved = move(joints, action)
            num_t1 = num_t1 + _near_t1(moved.angles, physical.direction, REWARD_RADIUS)
            num_t2 = num_t2 + _near_t2(moved.angles, physical.direction, REWARD_RADIUS)
            leaving = held & ~_near_t1(moved.angles, physical.direction, ZONE_RADIUS)
            kept = joints.speeds if self.wall == "restore" else jnp.zeros_like(joints.speeds)
            joints = Joints(
                jnp.where(leaving, joints.angles, moved.angles),
                jnp.where(leaving, kept, moved.speeds),
            )
        return Arm(*joints, physical.direction), num_t1, num_t2

    def pay(self, task: Task, at_t1: Array, at_t2: Array) -> Array:
        """Every physics step pays; the rewards of an action are summed."""
        return at_t1 * task.reward_t1 + at_t2 * task.reward_t2

    def most_at_t1(self) -> tuple[Array, Array]:
        """Every physics step of the action."""
        return jnp.int32(self.action_repeat), jnp.int32(0)

    def in_t1_zone(self, physical: Arm) -> Array:
        """The finger lies in the disc around T1."""
        return _near_t1(physical.angles, physical.direction, ZONE_RADIUS)

    def encode(self, physical: Arm) -> Array:
        """(shoulder, wrist, shoulder speed, wrist speed, T1's direction)."""
        parts = physical.angles, physical.speeds, physical.direction[..., None]
        return jnp.concatenate(parts, axis=-1)

    def arm(self, code: Array) -> Arm:
        """The arm of a code: `encode` backwards."""
        return Arm(code[..., :2], code[..., 2:4], code[..., 4])

    def decode(self, code: Array) -> Array:
        """The picture, or the state as cosines and sines of angles and as speeds."""
        angles, speeds, direction = self.arm(code)
        if self.observation == "pixels":
            return self._draw(angles, direction)
        shoulder, wrist = angles[..., 0], angles[..., 1]
        cosines = jnp.cos(shoulder), jnp.sin(shoulder), jnp.cos(wrist), jnp.sin(wrist)
        targets = jnp.cos(direction), jnp.sin(direction)
        return jnp.stack([*cosines, speeds[..., 0], speeds[..., 1], *targets], axis=-1)

    def probe_states(self) -> Arm:
        """A grid of angles at rest and moving, and one of the T1-zone with either elbow."""
        turns = np.linspace(-math.pi, math.pi, 16, endpoint=False)
        bends = np.linspace(-WRIST_LIMIT, WRIST_LIMIT, 9)
        grid = np.stack(np.meshgrid(turns, bends), axis=-1).reshape(-1, 2)
        swings = np.array([[0.0, 0.0], [3.0, -2.0], [-4.0, 3.0]])
        radii, around = np.linspace(0.0, 0.95 * ZONE_RADIUS, 5), np.arange(8) * math.pi / 4
        spokes = np.stack([np.cos(around), np.sin(around)], axis=-1)
        t1 = TARGET_DISTANCE * np.array([math.cos(FIXED_DIRECTION), math.sin(FIXED_DIRECTION)])
        points = t1 + (radii[:, None, None] * spokes).reshape(-1, 2)
        points = np.repeat(points[np.hypot(*points.T) < 2 * LINK], 2, axis=0)
        elbow = np.tile([1.0, -1.0], len(points) // 2)
        zone = np.asarray(bend(jnp.asarray(points), jnp.asarray(elbow)))
        angles = np.concatenate([np.repeat(grid, len(swings), axis=0), zone])
        speeds = np.concatenate([np.tile(swings, (len(grid), 1)), np.zeros_like(zone)])
        # With random targets the whole scene is turned, so that what is in the zone stays there.
        turn = np.arange(len(angles)) % 7 * float(self.random_targets)
        angles[:, 0] += turn
        arrays = angles, speeds, FIXED_DIRECTION + turn
        return Arm(*(jnp.asarray(array, jnp.float32) for array in arrays))

    def chart(self) -> Chart:
        """The floor with T1 at the upper right; in each cell the resting arm, either elbow."""
        centres = (np.arange(CHART_CELLS) + 0.5) / CHART_CELLS * 2 * CHART_EDGE - CHART_EDGE
        points = np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)
        distance = np.hypot(*points.T)
        nearest = 2 * LINK * math.cos(WRIST_LIMIT / 2)
        looks = jnp.asarray(np.repeat(points, 2, axis=0), jnp.float32)
        elbow = jnp.tile(jnp.array([1.0, -1.0], jnp.float32), len(points))
        still = jnp.zeros_like(looks)
        direction = jnp.full(len(looks), FIXED_DIRECTION, jnp.float32)
        return Chart(
            shape=(CHART_CELLS, CHART_CELLS),
            extent=(-CHART_EDGE, CHART_EDGE, -CHART_EDGE, CHART_EDGE),
            axes=("x", "y"),
            states=Arm(bend(looks, elbow), still, direction),
            actions=still,
            weight=0.5 / self.action_repeat,  # rewards a physics step, as the paper draws them
            blank=jnp.asarray((distance > 2 * LINK) | (distance < nearest)),
        )

    def cell(self, code: Array) -> Array:
        """Cells are numbered from the lowest row up; the floor is turned so that T1 is at 45°."""
        arm = self.arm(code)
        turned = arm.angles.at[..., 0].add(FIXED_DIRECTION - arm.direction)
        place = (fingertip(turned) + CHART_EDGE) / (2 * CHART_EDGE) * CHART_CELLS
        across_up = jnp.clip(place.astype(jnp.int32), 0, CHART_CELLS - 1)
        return across_up[..., 1] * CHART_CELLS + across_up[..., 0]

    def _draw(self, angles: Array, direction: Array) -> Array:
        """The pictures; many are drawn in a loop of two, whose outcome is kept.

        Else a compiler draws a pixel anew for every patch that a network takes it into: on a CPU
        an update of a world model then took three times as long.
        """
        shape, num = direction.shape, math.prod(direction.shape)
        is_short = num < FEW and not devices.is_cpu()  # what turns of a loop cost a GPU
        if num % 2 or is_short:
            return draw(angles, direction, self.green_t2)
        halves = angles.reshape(2, -1, 2), direction.reshape(2, -1)
        pictures = jax.lax.map(lambda half: draw(half[0], half[1], self.green_t2), halves)
        return pictures.reshape(*shape, *pictures.shape[2:])

    def _start(self, place: int) -> Start:
        low, high = (-math.pi, math.pi) if self.random_targets else (FIXED_DIRECTION,) * 2
        return Start(jnp.int32(place), jnp.float32(low), jnp.float32(high))


@dataclass(frozen=True)
class RandomizedReacher(Reacher):
    """T1 anywhere on its circle, drawn for every episode, and T2, green, opposite."""

    random_targets: bool = True
    green_t2: bool = True


def target(direction: Array) -> Array:
    """Where T1 is, [..., 2]; T2 is at minus that."""
    return TARGET_DISTANCE * jnp.stack([jnp.cos(direction), jnp.sin(direction)], axis=-1)


def _near_t1(angles: Array, direction: Array, radius: float) -> Array:
    return _length_squared(fingertip(angles) - target(direction)) <= radius**2


def _near_t2(angles: Array, direction: Array, radius: float) -> Array:
    return _length_squared(fingertip(angles) + target(direction)) <= radius**2


def _length_squared(points: Array) -> Array:
    """Of vectors [..., 2]; no sum over an axis, for that would be a kernel of its own on a GPU."""
    return points[..., 0] ** 2 + points[..., 1] ** 2


def _place_in_zone(direction: Array, elbow: Array, lots: Array) -> tuple[Array, Array]:
    """Angles that put the finger in the T1-zone: uniform in its disc, and as the original does.

    The original takes x = U(0, 0.1) and y = √U(0, 0.01 - x²) beyond T1, with the positive elbow.
    """
    one, two = lots[:, 0], lots[:, 1]
    reach = ZONE_RADIUS * (1.0 - 1e-5)  # so that rounding puts no start outside
    around, radius = 2 * math.pi * one, reach * jnp.sqrt(two)
    disc = radius[:, None] * jnp.stack([jnp.cos(around), jnp.sin(around)], axis=-1)
    ahead = reach * one
    quarter = jnp.stack([ahead, jnp.sqrt(two * (reach**2 - ahead**2))], axis=-1)
    quarter = _turn(quarter, direction - FIXED_DIRECTION)
    return bend(_reachable(direction, disc), elbow), bend(_reachable(direction, quarter), 1.0)


def _turn(points: Array, angle: Array) -> Array:
    """Points turned about the origin; by hand, because an accelerator's product may be coarse."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = points[..., 0], points[..., 1]
    return jnp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def _reachable(direction: Array, offsets: Array) -> Array:
    """The first point beside T1 that the finger can reach."""
    points = target(direction) + offsets
    return points[jnp.argmax(_length_squared(points) <= (2 * LINK) ** 2)]
