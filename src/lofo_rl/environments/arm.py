"""The two-link arm of Reacher in closed form: the same steps as MuJoCo's, without MuJoCo.

Two hinges about the vertical axis, driven by motors and slowed by damping; only the wrist is
limited, by a soft stop. Works in float32 and, where jax allows it, in float64: constants are
Python numbers and follow the dtype of what they meet.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lofo_rl.types import Array

TIMESTEP = 0.02  # s
LINK = 0.12  # m, shoulder to elbow, and elbow to fingertip
WRIST_LIMIT = 2.792526803190927  # rad, 160 degrees
TORQUE, DAMPING = 0.05, 0.01  # N m at full control; N m s


def _inertias() -> tuple[float, float, float]:
    """Shoulder without coupling, coupling, elbow: two capsules and a sphere of water's density."""
    density, radius, hand_length = 1000.0, 0.01, 0.1
    ball = density * 4.0 / 3.0 * math.pi * radius**3
    ball_inertia = 0.4 * ball * radius**2

    def capsule(length: float) -> tuple[float, float]:
        """Mass, and inertia about the middle across the axis."""
        rod = density * math.pi * radius**2 * length
        caps = ball_inertia + ball * (0.25 * length**2 + 0.375 * length * radius)
        return rod + ball, rod * (radius**2 / 4.0 + length**2 / 12.0) + caps

    arm, arm_inertia = capsule(LINK)
    hand, hand_inertia = capsule(hand_length)
    elbow = hand_inertia + hand * (hand_length / 2.0) ** 2 + ball_inertia + ball * LINK**2
    shoulder = arm_inertia + arm * (LINK / 2.0) ** 2 + (hand + ball) * LINK**2 + elbow
    return shoulder, LINK * (hand * hand_length / 2.0 + ball * LINK), elbow


_SHOULDER_INERTIA, _COUPLING, _ELBOW_INERTIA = _inertias()

# The soft stop: its impedance rises with the depth of violation, over a millimetre-like width.
_STOP_WIDTH, _STOP_SOFTEST, _STOP_HARDEST = 0.001, 0.9, 0.95
_LIMIT_ROUNDED = float(np.float32(WRIST_LIMIT))
_LIMIT_REST = WRIST_LIMIT - _LIMIT_ROUNDED
_STOP_TIME = 2.0 * TIMESTEP  # the stop's time constant, the shortest that the timestep allows
_STOP_STIFFNESS = 1.0 / (_STOP_HARDEST * _STOP_TIME) ** 2
_STOP_DAMPING = 2.0 / (_STOP_HARDEST * _STOP_TIME)
_STRETCHED = _SHOULDER_INERTIA + 2.0 * _COUPLING, _ELBOW_INERTIA + _COUPLING
# What the stop takes the wrist's inverse inertia to be: that of the stretched arm.
_STOP_SCALE = _STRETCHED[0] / (_STRETCHED[0] * _ELBOW_INERTIA - _STRETCHED[1] ** 2)


class Joints(NamedTuple):
    """Shoulder and wrist."""

    angles: Array  # [..., 2] rad
    speeds: Array  # [..., 2] rad/s


def move(joints: Joints, control: Array) -> Joints:
    """One physics step of TIMESTEP under a control in [-1, 1] for each motor."""
    wrist = joints.angles[..., 1]
    shoulder_speed, wrist_speed = joints.speeds[..., 0], joints.speeds[..., 1]
    torque = TORQUE * jnp.clip(control, -1.0, 1.0) - DAMPING * joints.speeds
    swing = _COUPLING * jnp.sin(wrist)
    force_shoulder = torque[..., 0] + swing * wrist_speed * (2.0 * shoulder_speed + wrist_speed)
    force_wrist = torque[..., 1] - swing * shoulder_speed**2
    coupling = _COUPLING * jnp.cos(wrist)
    inertia = _SHOULDER_INERTIA + 2.0 * coupling, _ELBOW_INERTIA + coupling
    force_wrist = force_wrist + _stop(wrist, wrist_speed, inertia, force_shoulder, force_wrist)
    # Damping is implicit: an explicit one would make the light wrist swing without end.
    gain = TIMESTEP * DAMPING
    accelerations = _solve(
        (inertia[0] + gain, inertia[1], _ELBOW_INERTIA + gain), force_shoulder, force_wrist
    )
    speeds = joints.speeds + TIMESTEP * jnp.stack(accelerations, axis=-1)
    return Joints(joints.angles + TIMESTEP * speeds, speeds)


def fingertip(angles: Array) -> Array:
    """Where the finger is, [..., 2] m from the shoulder."""
    shoulder, reach = angles[..., 0], angles[..., 0] + angles[..., 1]
    across = jnp.cos(shoulder) + jnp.cos(reach)
    up = jnp.sin(shoulder) + jnp.sin(reach)
    return LINK * jnp.stack([across, up], axis=-1)


def bend(points: Array, elbow: Array | float) -> Array:
    """The angles that put the finger on a point, the wrist of the sign of `elbow`.

    Of a point out of reach, those of the arm stretched towards it.
    """
    distance = jnp.sqrt(jnp.sum(points**2, axis=-1))
    half = jnp.arccos(jnp.clip(distance / (2.0 * LINK), 0.0, 1.0))
    wrist = jnp.clip(2.0 * half, 0.0, WRIST_LIMIT) * elbow
    shoulder = jnp.arctan2(points[..., 1], points[..., 0]) - half * elbow
    return jnp.stack([shoulder, wrist], axis=-1)


def _stop(
    wrist: Array,
    wrist_speed: Array,
    inertia: tuple[Array, Array],
    force_shoulder: Array,
    force_wrist: Array,
) -> Array:
    """The torque with which the soft stop pushes the wrist back; none within the limit."""
    inward = -jnp.sign(wrist)
    # In two parts, because the stop is so stiff that the limit's own rounding would be felt; in
    # units of its width, because a compiler would join two constants that are merely added.
    violation = (jnp.abs(wrist) - _LIMIT_ROUNDED) / _STOP_WIDTH - _LIMIT_REST / _STOP_WIDTH
    depth = jnp.clip(violation, 0.0, 1.0)
    rise = jnp.where(depth <= 0.5, 2.0 * depth**2, 1.0 - 2.0 * (1.0 - depth) ** 2)
    give = (1.0 - _STOP_SOFTEST) - (_STOP_HARDEST - _STOP_SOFTEST) * rise
    impedance = 1.0 - give
    wanted = (
        -_STOP_DAMPING * inward * wrist_speed
        + _STOP_STIFFNESS * impedance * _STOP_WIDTH * violation
    )
    shoulder_inertia, shared = inertia
    _, free = _solve((shoulder_inertia, shared, _ELBOW_INERTIA), force_shoulder, force_wrist)
    yielding = shoulder_inertia / (shoulder_inertia * _ELBOW_INERTIA - shared**2)
    softness = give / impedance * _STOP_SCALE
    push = jnp.maximum(0.0, (wanted - inward * free) / (yielding + softness))
    return jnp.where(violation > 0.0, inward * push, 0.0)


def _solve(inertia: tuple, force_shoulder: Array, force_wrist: Array) -> tuple[Array, Array]:
    """The accelerations under forces, by the inertia (shoulder, shared, wrist)."""
    shoulder, shared, wrist = inertia
    determinant = shoulder * wrist - shared**2
    return (
        (wrist * force_shoulder - shared * force_wrist) / determinant,
        (shoulder * force_wrist - shared * force_shoulder) / determinant,
    )
