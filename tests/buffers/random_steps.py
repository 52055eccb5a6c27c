"""Observations of random policies in small worlds, in NumPy: float32 [num_steps, ...]."""

import numpy as np


def line(num_steps, seed):
    """A walk of normal steps on [0, 1], reflected at its ends."""
    steps = np.random.default_rng(seed).normal(0.0, 0.1, num_steps)
    places = np.abs(np.cumsum(steps) % 2.0)
    return np.minimum(places, 2.0 - places)[:, None].astype(np.float32)


def pendulum(num_steps, seed):
    """Cosine, sine and a fraction of the speed; a new start every 200 steps."""
    rng, seen = np.random.default_rng(seed), np.empty((num_steps, 3), np.float32)
    for t, torque in enumerate(rng.uniform(-2, 2, num_steps)):
        if t % 200 == 0:
            angle, speed = rng.uniform(-np.pi, np.pi), rng.uniform(-1, 1)
        seen[t] = np.cos(angle), np.sin(angle), speed / 8
        speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle += 0.05 * speed
    return seen


def cart_pole(num_steps, seed):
    """Place, speed, angle and its speed; a new start when the pole falls."""
    rng, seen = np.random.default_rng(seed), np.empty((num_steps, 4), np.float32)
    state = rng.uniform(-0.05, 0.05, 4)
    for t, force in enumerate(rng.choice([-10.0, 10.0], num_steps)):
        seen[t] = state
        _, speed, angle, turn = state
        pull = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        inertia = 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        twist = (9.8 * np.sin(angle) - np.cos(angle) * pull) / inertia
        push = pull - 0.05 * twist * np.cos(angle) / 1.1
        state = state + 0.02 * np.array([speed, push, turn, twist])
        if abs(state[0]) > 2.4 or abs(state[2]) > 0.2095:
            state = rng.uniform(-0.05, 0.05, 4)
    return seen


def point_mass(num_steps, seed):
    """Place in a square and velocity, which decays."""
    rng, seen = np.random.default_rng(seed), np.empty((num_steps, 4), np.float32)
    place, velocity = rng.random(2), np.zeros(2)
    for t, push in enumerate(rng.normal(0.0, 0.02, (num_steps, 2))):
        seen[t, :2], seen[t, 2:] = place, 3 * velocity
        velocity = 0.8 * velocity + push
        place = place + velocity
        velocity = np.where((place < 0) | (place > 1), -velocity, velocity)
        place = np.where(place < 0, -place, np.where(place > 1, 2 - place, place))
    return seen


def _cells(num_steps, seed, size):
    """A walk over the cells of a square room, which bumps into its walls: [num_steps, 2]."""
    rng, cell = np.random.default_rng(seed), np.zeros(2, np.int64)
    seen = np.empty((num_steps, 2), np.int64)
    moves = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])
    for t, action in enumerate(rng.integers(0, 4, num_steps)):
        seen[t] = cell
        cell = np.clip(cell + moves[action], 0, size - 1)
    return seen


def grid_world(num_steps, seed):
    """One-hot observations of the 36 cells of a room."""
    row, column = _cells(num_steps, seed, 6).T
    return np.eye(36, dtype=np.float32)[6 * row + column]


def moving_dot(num_steps, seed):
    """Images of 12 x 12 pixels, flat, with one bright pixel."""
    row, column = _cells(num_steps, seed, 12).T
    return np.eye(144, dtype=np.float32)[12 * row + column]


def noise(num_steps, seed):
    """16 independent normal numbers, new at each step."""
    return np.random.default_rng(seed).normal(size=(num_steps, 16)).astype(np.float32)


def noise_image(num_steps, seed):
    """Images of 16 x 16 random pixels, flat, new at each step."""
    return np.random.default_rng(seed).random((num_steps, 256)).astype(np.float32)


def bandit(num_steps, seed):
    """Always the same observation."""
    return np.full((num_steps, 3), 0.5, np.float32)
