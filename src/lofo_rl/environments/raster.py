"""Pictures of Reacher as MuJoCo's renderer draws them: 64×64 pixels from above, in pure JAX.

One ray from the camera through each pixel meets the plane in which links, finger and targets have
their middles. All of these are spheres there, a link being the one nearest to the ray. Edges are
smoothed as renderers do it, by four samples of coverage in each pixel.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.arm import LINK
from lofo_rl.types import Array

Pair: TypeAlias = tuple[Array, Array]  # across and up, each over the pixels

SIZE = 64
TARGET_DISTANCE = 0.15  # m, of both targets from the shoulder
TARGET_RADIUS, LINK_RADIUS, HAND_LENGTH, ROOT_RADIUS = 0.05, 0.01, 0.1, 0.011
MIDDLE = 0.01  # height of links, finger and targets
CAMERA, LIGHT = 0.75, 1.0  # heights
FOCAL = SIZE / 2 / math.tan(math.radians(22.5))  # pixels

LINK_PAINT, FINGER_PAINT = (0.7, 0.5, 0.3), (0.7, 0.4, 0.2)
RED, GREEN = (0.6, 0.3, 0.3), (0.3, 0.6, 0.3)
ROOT_COLOUR = (197.0, 255.0, 255.0)
AMBIENT, LAMP, SPOT = 0.4, 0.8, 0.7  # the lamp is at the camera, the spot above it
LAMP_GLOSS, SPOT_GLOSS = 0.05, 0.15
SPOT_EXPONENT = 10
SHARPNESS = 6  # a highlight is a cosine squared so often

# The floor's colours at its middle, its sides and its corners, as MuJoCo lights them.
FLOOR_EDGE = 0.3  # m
FLOOR_MIDDLE, FLOOR_SIDE, FLOOR_CORNER = (46.3, 94.4, 140.5), (36.0, 73.3, 109.1), (32, 65.4, 97.6)
# The walls by line of pixels, in the order in which one hides another at a corner; a line is a row
# and the column of the same number. Colours from its middle outwards, at some pixels from there.
WALL_KNOTS = (0.0, 9.5, 31.5)
WALLS = (
    (61, ((62.5, 105.0, 145.5), (42.0, 82.5, 121.5), (37.5, 74.5, 111.5))),
    (2, ((66.5, 109.5, 150.0), (46.0, 86.5, 126.5), (41.5, 79.0, 116.0))),
    (62, ((71.0, 114.0, 156.0), (44.5, 86.0, 125.5), (39.0, 77.5, 115.0))),
    (1, ((100.5, 142.0, 185.0), (72.5, 112.5, 153.5), (65.0, 102.5, 141.5))),
    (63, ((41.0, 68.0, 94.5), (40.5, 67.0, 93.0), (37.8, 62.4, 86.0))),
    (0, ((41.0, 68.0, 94.5), (40.5, 67.0, 93.0), (37.8, 62.4, 86.0))),
)

# Where a pixel's coverage is asked for, in pixels from its centre.
SAMPLES = ((-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375))


def draw(angles: Array, direction: Array, green_t2: bool) -> Array:
    """The picture [..., 64, 64, 3] uint8 of arms [..., 2] with T1 in a direction [...]."""
    shoulder, wrist = angles[..., 0, None, None], angles[..., 1, None, None]
    reach = shoulder + wrist
    upper, lower = (jnp.cos(shoulder), jnp.sin(shoulder)), (jnp.cos(reach), jnp.sin(reach))
    colour = [jnp.asarray(FLOOR[..., channel]) for channel in range(3)]
    colour = _draw_arm(colour, upper, lower)
    direction = direction[..., None, None]
    t1 = TARGET_DISTANCE * jnp.cos(direction), TARGET_DISTANCE * jnp.sin(direction)
    colour = _draw_target(colour, t1, RED)
    colour = _draw_target(colour, (-t1[0], -t1[1]), GREEN if green_t2 else RED)
    return _pack(colour)


def _draw_arm(colour: list[Array], upper: Pair, lower: Pair) -> list[Array]:
    """Both links and the finger, under the root."""
    num_link = num_finger = jnp.zeros((), jnp.float32)
    for across, down in SAMPLES:
        place = X + across * PIXEL, Y - down * PIXEL
        distances = (_square(offset) for offset in _offsets(place, upper, lower))
        arm, hand, finger = (distance <= LINK_RADIUS**2 for distance in distances)
        num_link += (arm | hand).astype(jnp.float32)
        num_finger += finger.astype(jnp.float32)
    arm_offset, hand_offset, finger_offset = _offsets(
        (jnp.asarray(X), jnp.asarray(Y)), upper, lower
    )
    nearest = _nearer(_nearer(arm_offset, hand_offset), finger_offset)
    diffuse, gloss = _light(nearest, LINK_RADIUS)
    total = jnp.minimum(num_link + num_finger, 4.0)
    share = num_finger / jnp.maximum(total, 1.0)
    alpha = total / 4.0
    mixed = []
    for below, link, tip, root in zip(colour, LINK_PAINT, FINGER_PAINT, ROOT_COLOUR, strict=True):
        own = _shine((link + (tip - link) * share) * diffuse + gloss)
        mixed.append(jnp.where(ROOT, root, below + alpha * (own - below)))
    return mixed


def _offsets(place: Pair, upper: Pair, lower: Pair) -> tuple[Pair, Pair, Pair]:
    """From the nearest point of the arm, the hand and the finger to a place."""
    along = jnp.clip(place[0] * upper[0] + place[1] * upper[1], 0.0, LINK)
    first = place[0] - along * upper[0], place[1] - along * upper[1]
    beyond = place[0] - LINK * upper[0], place[1] - LINK * upper[1]  # from the elbow
    along = jnp.clip(beyond[0] * lower[0] + beyond[1] * lower[1], 0.0, HAND_LENGTH)
    second = beyond[0] - along * lower[0], beyond[1] - along * lower[1]
    return first, second, (beyond[0] - LINK * lower[0], beyond[1] - LINK * lower[1])


def _draw_target(colour: list[Array], centre: Pair, paint: tuple[float, ...]) -> list[Array]:
    """A sphere that rises above the arm and hides it."""
    offset = X - centre[0], Y - centre[1]
    slant = (offset[0] * X + offset[1] * Y) * PER_RAY
    distance = jnp.sqrt(jnp.maximum(_square(offset) - slant**2, 0.0))
    alpha = jnp.clip((TARGET_RADIUS - distance) / PIXEL + 0.5, 0.0, 1.0)
    diffuse, gloss = _light(offset, TARGET_RADIUS)
    return [
        below + alpha * (_shine(part * diffuse + gloss) - below)
        for below, part in zip(colour, paint, strict=True)
    ]


def _light(offset: Pair, radius: float) -> tuple[Array, Array]:
    """Diffuse light and highlight on a sphere whose middle lies at minus the offset of the ray."""
    slant = (offset[0] * X + offset[1] * Y) * PER_RAY
    facing = jnp.sqrt(jnp.maximum(radius**2 - _square(offset) + slant**2, 0.0))  # lamp's cosine
    back = slant + facing  # from the middle's plane back along the ray to the surface
    spot = offset[0] * SPOT_X + offset[1] * SPOT_Y - back * SPOT_RAY
    halfway = (spot + back * UP) * HALFWAY
    highlight = jnp.maximum(halfway / radius, 0.0)
    for _ in range(SHARPNESS):
        highlight = highlight**2
    diffuse = AMBIENT + (LAMP * facing + SPOT_LIGHT * jnp.maximum(spot, 0.0)) / radius
    return diffuse, GLOSS * highlight


def _shine(light: Array) -> Array:
    return 255.0 * jnp.minimum(light, 1.0)


def _square(offset: Pair) -> Array:
    return offset[0] ** 2 + offset[1] ** 2


def _nearer(one: Pair, two: Pair) -> Pair:
    first = _square(one) <= _square(two)
    return jnp.where(first, one[0], two[0]), jnp.where(first, one[1], two[1])


def _pack(colour: list[Array]) -> Array:
    """Three channels as bytes; through one integer a pixel, so that a pixel is computed once."""
    red, green, blue = ((part + 0.5).astype(jnp.uint32) for part in colour)
    pixel = red | (green << 8) | (blue << 16)
    return jax.lax.bitcast_convert_type(pixel, jnp.uint8)[..., :3]


def _floor() -> np.ndarray:
    """The empty scene [64, 64, 3]: the floor and the four walls around it."""
    side = (np.arange(SIZE) - (SIZE - 1) / 2) * CAMERA / FOCAL / FLOOR_EDGE
    across, up = np.meshgrid(side, -side)
    near, far = np.minimum(abs(across), abs(up)), np.maximum(abs(across), abs(up))
    # Each quarter is two triangles, lit at their corners; neighbors are cut along other diagonals.
    cut = across * up > 0.0
    middle = np.where(cut, np.maximum(1.0 - near - far, 0.0), 1.0 - far)
    corner = np.where(cut, np.maximum(near + far - 1.0, 0.0), near)
    parts = np.stack([middle, 1.0 - middle - corner, corner], axis=-1)
    scene = parts @ np.array([FLOOR_MIDDLE, FLOOR_SIDE, FLOOR_CORNER])
    from_middle = abs(np.arange(SIZE) - (SIZE - 1) / 2)
    for line, shades in WALLS:
        shade = [np.interp(from_middle, WALL_KNOTS, shade) for shade in np.transpose(shades)]
        scene[line] = scene[:, line] = np.stack(shade, axis=-1)
    return scene.astype(np.float32)


PIXEL = (CAMERA - MIDDLE) / FOCAL  # m, a pixel's width in the plane of the middles
_side = (np.arange(SIZE) - (SIZE - 1) / 2) * PIXEL
_across, _up = np.meshgrid(_side, -_side)
_per_ray = 1.0 / np.sqrt(_across**2 + _up**2 + (CAMERA - MIDDLE) ** 2)
_per_beam = 1.0 / np.sqrt(_across**2 + _up**2 + (LIGHT - MIDDLE) ** 2)
_cosine = (LIGHT - MIDDLE) * _per_beam
_dot = -(_across**2 + _up**2 + (CAMERA - MIDDLE) * (LIGHT - MIDDLE)) * _per_ray * _per_beam

X, Y = _across.astype(np.float32), _up.astype(np.float32)
PER_RAY = _per_ray.astype(np.float32)
UP = ((CAMERA - MIDDLE) * _per_ray).astype(np.float32)
SPOT_X, SPOT_Y = (-_across * _per_beam).astype(np.float32), (-_up * _per_beam).astype(np.float32)
SPOT_RAY = _dot.astype(np.float32)
SPOT_LIGHT = (SPOT * _cosine**SPOT_EXPONENT).astype(np.float32)
HALFWAY = (1.0 / np.sqrt(2.0 + 2.0 * _cosine)).astype(np.float32)
GLOSS = (LAMP_GLOSS + SPOT_GLOSS * _cosine**SPOT_EXPONENT).astype(np.float32)
ROOT = np.hypot(_across, _up) < ROOT_RADIUS
FLOOR = _floor()
