"""MiniGridLoCA against the running MiniGrid package: every picture and every move."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("minigrid", reason="parity is checked where the MiniGrid package is installed")

from minigrid_tiles import Room, take_tiles

from lofo_rl.environments import MiniGridPixels
from lofo_rl.environments.minigrid_pixels import TILES

WORLDS = (
    MiniGridPixels(),
    MiniGridPixels(size=5, t1_cell=(2, 3), t2_cell=(0, 0)),
    MiniGridPixels(size=11, zone_size=4),
)


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world.side} pixels")
def world(request: pytest.FixtureRequest) -> MiniGridPixels:
    return request.param


def room_of(world: MiniGridPixels) -> Room:
    room = Room(world)
    room.reset(seed=0)
    return room


def test_the_tiles_are_those_of_the_package() -> None:
    np.testing.assert_array_equal(np.load(TILES, allow_pickle=False), take_tiles())


@pytest.mark.parametrize("highlight", [False, True], ids=["plain", "highlight"])
def test_every_picture_is_the_packages(world: MiniGridPixels, highlight: bool) -> None:
    room = room_of(world)
    codes = world.codes()
    pictures = np.asarray(replace(world, highlight=highlight).decode(codes))
    assert len(codes) == 4 * world.size**2 and pictures.dtype == np.uint8
    for code, picture in zip(codes.tolist(), pictures, strict=True):
        np.testing.assert_array_equal(picture, room.picture(code, highlight), err_msg=str(code))


def test_every_move_is_the_packages_but_out_of_the_zone(world: MiniGridPixels) -> None:
    room = room_of(world)
    codes = world.codes()
    poses, actions = world.pose(codes), jnp.arange(3)
    advance = jax.vmap(jax.vmap(world.advance, (None, 0)), (0, None))
    after, at_t1, at_t2 = advance(poses, actions)
    successors, ended = np.asarray(world.encode(after)), np.asarray(at_t1 | at_t2)
    inside = np.asarray(world.in_t1_zone(poses))
    held_back = 0
    for code in np.flatnonzero(world.evaluation_start()):
        for action in range(3):
            room.put_agent(int(code))
            _, _, terminated, _, _ = room.step(action)
            found = room.agent_code()
            if inside[code] and not inside[found]:  # the passage is one-way in LoCA alone
                held_back += 1
                assert successors[code, action] == code
            else:
                assert (successors[code, action], ended[code, action]) == (found, terminated)
    assert held_back == {8: 4, 5: 4, 11: 8}[world.size]  # ways out, none of them from T1 itself
