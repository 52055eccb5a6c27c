"""Loops whose small arrays travel together compute what plain loops do, to the bit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.experiments.parcels import SMALL, Parcel, lean_loop, lean_scan
from lofo_rl.types import Array


class Carried(NamedTuple):
    """Arrays of all kinds: those that share, and those of other widths or too large."""

    count: Array
    flags: Array
    numbers: Array
    bits: Array
    half: Array
    table: Array
    nothing: Array


def carried() -> Carried:
    rng = np.random.default_rng(0)
    return Carried(
        count=jnp.int32(-3),
        flags=jnp.asarray(rng.random((2, 3)) < 0.5),
        numbers=jnp.asarray([0.1, -0.0, np.inf, np.nan], jnp.float32),
        bits=jnp.asarray([0, 2**32 - 1], jnp.uint32),
        half=jnp.asarray([1.5, -2.5], jnp.bfloat16),
        table=jnp.asarray(rng.random(SMALL + 1), jnp.float32),
        nothing=jnp.zeros((2, 0)),
    )


def body(now: Carried, given: tuple[Array, Array]) -> tuple[Carried, dict[str, Array]]:
    shift, flag = given
    then = now._replace(
        count=now.count + 1,
        flags=now.flags ^ flag,
        numbers=now.numbers * shift.sum(),
        bits=now.bits ^ jnp.uint32(5),
        half=now.half + shift[:2].astype(jnp.bfloat16),
        table=now.table.at[now.count].add(shift[0], mode="drop"),
    )
    return then, {"count": now.count, "half": now.half, "any": now.flags.any(), "numbers": shift}


def check_same(one: object, two: object) -> None:
    def check(x: Array, y: Array) -> None:
        assert x.dtype == y.dtype and x.shape == y.shape
        # by bytes, for 0 is not -0, nor is one nan another
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()

    jax.tree.map(check, one, two)


def test_what_is_wrapped_comes_out_again() -> None:
    tree = carried()
    words, rest = Parcel.like(tree).wrap(tree)
    assert words.shape == (1 + 6 + 4 + 2,)
    assert [x.size for x in rest] == [2, SMALL + 1]
    check_same(Parcel.like(tree).open((words, rest)), tree)


def test_no_bit_of_a_number_is_lost() -> None:
    strange = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32)  # nan, -0, tiny
    tree = {"numbers": jnp.asarray(strange.view(np.float32)), "flag": jnp.ones((), bool)}
    parcel = Parcel.like(tree)
    check_same(jax.jit(lambda x: parcel.open(parcel.wrap(x)))(tree), tree)


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x: x.T, r"float32\[2, 3\], not float32\[3, 2\]"),
        (lambda x: x.astype(jnp.int32), r"float32\[2, 3\], not int32"),
    ],
    ids=["shape", "dtype"],
)
def test_what_comes_back_otherwise_is_named(num_steps: int, change: Any, fault: str) -> None:
    with pytest.raises(TypeError, match=fault):
        lean_scan(lambda c, x: (change(c), x), jnp.ones((2, 3)), jnp.arange(num_steps))


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_lean_scan_is_a_scan(num_steps: int) -> None:
    rng = np.random.default_rng(1)
    shifts = jnp.asarray(rng.random((num_steps, 3)), jnp.float32)
    xs = shifts, jnp.asarray(rng.random(num_steps) < 0.5)
    plain = jax.jit(lambda c, xs: jax.lax.scan(body, c, xs))(carried(), xs)
    check_same(jax.jit(lambda c, xs: lean_scan(body, c, xs))(carried(), xs), plain)


def test_a_lean_loop_is_a_loop() -> None:
    def step(number: Array, now: Carried, total: Array) -> tuple[Carried, Array]:
        shift = jnp.arange(3.0) + number
        return body(now, (shift, number % 2 == 0))[0], total + shift.sum()

    start = carried(), jnp.float32(0)
    plain = jax.lax.fori_loop(0, 5, lambda i, both: step(i, *both), start)
    check_same(jax.jit(lambda num: lean_loop(num, step, *start))(jnp.int32(5)), plain)
