"""MountainCarLoCA: T1 on the right hill, T2 at rest in the valley."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.base import Chart, Spec, World, check_horizon
from lofo_rl.types import Array, Key

LOW, HIGH = (-1.2, -0.07), (0.5, 0.07)  # (position, velocity)
ZONE_LOW = (0.4, 0.0)  # the T1-zone reaches from here to HIGH
EVALUATION_LOW, EVALUATION_HIGH = (-0.2, -0.01), (-0.1, 0.01)
FORCE, GRAVITY = 0.001, 0.0025
T2_CENTRE, T2_RADIUS = -0.52, 0.07
PUSH_RIGHT = 2
CHART = (60, 68)  # cells up (velocity) and across (position)
# The ellipse T2 fills 0.65 % of the widest start box, so eight candidates all fall into it with
# probability 3e-18; the narrower boxes do not touch it.
NUM_CANDIDATES = 8


class Car(NamedTuple):
    """The physical state."""

    position: Array  # [] float32
    velocity: Array  # [] float32


class Box(NamedTuple):
    """A start distribution: uniform between two corners, terminal states rejected."""

    low: Array  # [2] float32
    high: Array  # [2] float32


@dataclass(frozen=True)
class MountainCar(World):
    """The car of the paper; `action_noise` is the chance that a random action replaces the own."""

    time_limit: int = 500
    action_noise: float = 0.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        check_horizon(self.time_limit, self.discount)
        if not 0.0 <= self.action_noise <= 1.0:
            raise ValueError(f"action_noise must lie in [0, 1], got {self.action_noise}")

    @property
    def spec(self) -> Spec:
        """Code and observation are both (position, velocity)."""
        return Spec(
            name="mountaincar",
            code_shape=(2,),
            code_dtype=np.dtype(np.float32),
            observation_shape=(2,),
            observation_dtype=np.dtype(np.float32),
            observation_low=LOW,
            observation_high=HIGH,
            num_actions=3,
            time_limit=self.time_limit,
            discount=self.discount,
        )

    def train_start(self, phase: int) -> Box:
        """The whole box in phase 1, the T1-zone in phase 2."""
        return _box(LOW if phase == 1 else ZONE_LOW, HIGH)

    def evaluation_start(self) -> Box:
        """A small box on the right slope, from which either goal can be reached."""
        return _box(EVALUATION_LOW, EVALUATION_HIGH)

    def draw_start(self, start: Box, key: Key) -> Car:
        """The first of some candidates that is not terminal."""
        points = jax.random.uniform(key, (NUM_CANDIDATES, 2), jnp.float32, start.low, start.high)
        at_t1, at_t2 = _reached(Car(points[:, 0], points[:, 1]))
        position, velocity = points[jnp.argmin(at_t1 | at_t2)]
        return Car(position, velocity)

    def disturb(self, action: Array, key: Key) -> Array:
        """With probability `action_noise`, a uniformly random action."""
        if self.action_noise == 0.0:
            return action
        key_whether, key_which = jax.random.split(key)
        noisy = jax.random.bernoulli(key_whether, self.action_noise)
        return jnp.where(noisy, jax.random.randint(key_which, (), 0, 3), action)

    def advance(self, physical: Car, action: Array) -> tuple[Car, Array, Array]:
        """One push; inside the T1-zone every action is a push to the right.

        The zone needs no wall: there a push to the right outweighs gravity, so the velocity
        can only grow and the position only rise until T1.
        """
        position, velocity = physical
        push = jnp.where(self.in_t1_zone(physical), PUSH_RIGHT, action) - 1
        velocity = velocity + FORCE * push - GRAVITY * jnp.cos(3.0 * position)
        velocity = jnp.clip(velocity, LOW[1], HIGH[1])
        position = jnp.clip(position + velocity, LOW[0], HIGH[0])
        at_wall = (position <= LOW[0]) & (velocity < 0.0)
        car = Car(position, jnp.where(at_wall, 0.0, velocity))
        return car, *_reached(car)

    def in_t1_zone(self, physical: Car) -> Array:
        """High on the right hill and not moving left."""
        return (physical.position >= ZONE_LOW[0]) & (physical.velocity >= ZONE_LOW[1])

    def encode(self, physical: Car) -> Array:
        """(position, velocity), raw."""
        return jnp.stack([physical.position, physical.velocity], axis=-1)

    def decode(self, code: Array) -> Array:
        """The code is the observation."""
        return code

    def probe_states(self) -> Car:
        """A grid over the box, finer ones around T2 and in the T1-zone, without terminals."""
        around_t2 = (T2_CENTRE - 0.1, -0.012), (T2_CENTRE + 0.1, 0.012)
        grids = [_grid(LOW, HIGH, 60, 40), _grid(*around_t2, 40, 40), _grid(ZONE_LOW, HIGH, 20, 20)]
        points = jnp.asarray(np.concatenate(grids))
        at_t1, at_t2 = _reached(Car(points[:, 0], points[:, 1]))
        kept = points[~(at_t1 | at_t2)]
        return Car(kept[:, 0], kept[:, 1])

    def chart(self) -> Chart:
        """Velocity over position; in each cell, its centre under the three actions, averaged."""
        num_up, num_across = CHART
        half = [
            (h - low) / (2 * n) for low, h, n in zip(LOW, HIGH, (num_across, num_up), strict=True)
        ]
        inner = [(low + d, high - d) for low, high, d in zip(LOW, HIGH, half, strict=True)]
        low, high = zip(*inner, strict=True)
        points = jnp.asarray(_grid(low, high, num_across, num_up))
        looks = jnp.repeat(points, 3, axis=0)
        return Chart(
            shape=CHART,
            extent=(LOW[0], HIGH[0], LOW[1], HIGH[1]),
            axes=("position", "velocity"),
            states=Car(looks[:, 0], looks[:, 1]),
            actions=jnp.tile(jnp.arange(3, dtype=jnp.int32), len(points)),
            weight=1 / 3,
            # Not even inside T2, where no episode ever acts: its ring of cells alone is too thin
            # to be seen, so the map asks the model what a step from within pays.
            blank=jnp.zeros(len(points), bool),
        )

    def cell(self, code: Array) -> Array:
        """Cells are numbered from the lowest velocity up, and within that by position."""
        low, high = jnp.asarray(LOW), jnp.asarray(HIGH)
        num = jnp.asarray(CHART[::-1])
        across_up = ((code - low) / (high - low) * num).astype(jnp.int32)
        across_up = jnp.clip(across_up, 0, num - 1)
        return across_up[..., 1] * CHART[1] + across_up[..., 0]


def _reached(car: Car) -> tuple[Array, Array]:
    """Whether a car is at T1, and whether at T2; no state is both."""
    at_t1 = (car.position >= HIGH[0]) & (car.velocity >= 0.0)
    distance = (car.position - T2_CENTRE) ** 2 + 100.0 * car.velocity**2
    return at_t1, (distance <= T2_RADIUS**2) & ~at_t1


def _box(low: tuple[float, float], high: tuple[float, float]) -> Box:
    return Box(jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))


def _grid(
    low: tuple[float, float], high: tuple[float, float], num_positions: int, num_velocities: int
) -> np.ndarray:
    axes = np.linspace(low[0], high[0], num_positions), np.linspace(low[1], high[1], num_velocities)
    return np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2).astype(np.float32)
