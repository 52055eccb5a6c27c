"""Steps that a recurrence imagines, on a GPU: two kernels each.

A plan imagines steps one after the other. By products of the compiler a step is six kernels, each
of which waits for memory, and most of a plan's time is that waiting. Here the first kernel
takes a tile of states through input layer, gates and GRU, the second through the prior to its
sample. No gradient passes.

Products are made of bfloat16 numbers and added up in float32. The layers are those of `RSSM.ahead`,
with a Gaussian latent, relu and no layer norm: what PlaNet plans with.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo.networks.recurrence import Layers
from lofo.networks.slides import padded
from lofo.networks.sliding_kernels import dot
from lofo.types import Array

MOST = 256  # inputs of a layer: a program has them all at hand
ADVANCE_ROWS, ADVANCE_COLUMNS = 64, 32  # states, and numbers of each, that a program advances
GUESS_ROWS, GUESS_COLUMNS = 16, 64  # states that a program guesses; hidden numbers at a time
ADVANCE_WARPS, GUESS_WARPS = 8, 4


@dataclass(frozen=True)
class Rollout:
    """The sizes of a recurrence whose steps are imagined by kernels."""

    deterministic_size: int
    hidden_size: int
    latent_size: int
    min_std: float
    interpret: bool = False  # run the kernels' meaning on any device, slowly

    @property
    def is_small(self) -> bool:
        """Whether a program can take it."""
        sizes = self.deterministic_size, self.hidden_size, self.latent_size
        return max(sizes) <= MOST

    def advance(
        self, layers: Layers, deterministic: Array, stochastic: Array, action: Array
    ) -> Array:
        """The GRU's next states [M, deterministic_size]."""
        num, size = deterministic.shape
        action_layer, gates = layers["action"], layers["gates"]
        return self._call(
            partial(_advance_kernel, self, num, stochastic.shape[-1]),
            ("advance", ADVANCE_WARPS),
            (pl.cdiv(num, ADVANCE_ROWS), pl.cdiv(size, ADVANCE_COLUMNS)),
            (num, size),
            (deterministic, stochastic, action),
            (layers["input"]["weight"], action_layer["weight"], action_layer["bias"]),
            (gates["weight"], gates["bias"], layers["carried"]["weight"]),
        )

    def guess(self, layers: Layers, deterministic: Array, noise: Array) -> Array:
        """Samples of the prior, with 0s up to the rows of the input layer, [M, rows]."""
        num, width = len(deterministic), len(layers["input"]["weight"])
        out = layers["prior_out"]
        return self._call(
            partial(_guess_kernel, self, num, width),
            ("guess", GUESS_WARPS),
            (pl.cdiv(num, GUESS_ROWS),),
            (num, width),
            (deterministic, noise),
            (layers["carried"]["weight"], layers["prior"]["bias"], out["weight"], out["bias"]),
        )

    def _call(
        self,
        kernel: Any,
        named: tuple[str, int],
        grid: tuple[int, ...],
        shape: tuple[int, int],
        *inputs: tuple[Array, ...],
    ) -> Array:
        name, num_warps = named
        found: Array = pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=jax.ShapeDtypeStruct((shape[0] * shape[1],), jnp.float32),
            compiler_params=plt.CompilerParams(num_warps=num_warps, num_stages=1),
            interpret=self.interpret,
            name=name,
        )(*(x.reshape(-1) for group in inputs for x in group))
        return found.reshape(shape)


def _advance_kernel(
    sizes: Rollout, num: int, width: int,
    deterministic: Any, stochastic: Any, action: Any, w_input: Any, w_action: Any, b_input: Any,
    w_gates: Any, b_gates: Any, w_carried: Any, found: Any,
) -> None:  # fmt: skip
    """A tile of states, and some of their numbers, one step on."""
    size, hidden = sizes.deterministic_size, sizes.hidden_size
    row = pl.program_id(0) * ADVANCE_ROWS + jnp.arange(ADVANCE_ROWS)
    driven = jnp.arange(padded(hidden))
    sums = _product(
        _tile(stochastic, row, num, jnp.arange(padded(width)), width),
        _tile(w_input, jnp.arange(padded(width)), width, driven, hidden),
    )
    sums += _line(b_input, driven, hidden)
    num_actions = action.shape[0] // num
    for k in range(num_actions):  # few numbers: no product, and all their digits
        numbers = _line(action, row * num_actions + k, action.shape[0], row < num)
        sums += numbers[:, None] * _line(w_action, k * hidden + driven, (k + 1) * hidden)[None, :]
    heard = jnp.maximum(sums, 0.0)  # 0 beyond the hidden layer, as all that is read there
    state = jnp.arange(padded(size))
    before = _tile(deterministic, row, num, state, size)
    own = pl.program_id(1) * ADVANCE_COLUMNS + jnp.arange(ADVANCE_COLUMNS)

    def gate(k: int) -> Array:
        """What the layer gives to the own numbers of the k-th gate."""
        per_row = w_carried.shape[0] // size
        of_input = _tile(w_gates, driven, hidden, own, size, 3 * size, k * size)
        of_state = _tile(w_carried, state, size, own, size, per_row, k * size)
        return (
            _product(heard, of_input)
            + _product(before, of_state)
            + _line(b_gates, k * size + own, (k + 1) * size)[None, :]
        )

    reset, candidate, update = (gate(k) for k in range(3))
    candidate = jnp.tanh(_sigmoid(reset) * candidate)
    update = _sigmoid(update - 1)  # biased towards remembering
    old = _tile(deterministic, row, num, own, size)
    _put(sizes, found, row, num, own, size, update * candidate + (1 - update) * old)


def _guess_kernel(
    sizes: Rollout, num: int, width: int,
    deterministic: Any, noise: Any, w_carried: Any, b_prior: Any, w_out: Any, b_out: Any,
    found: Any,
) -> None:  # fmt: skip
    """Samples of a tile of states."""
    size, hidden, latent = sizes.deterministic_size, sizes.hidden_size, sizes.latent_size
    row = pl.program_id(0) * GUESS_ROWS + jnp.arange(GUESS_ROWS)
    state, own = jnp.arange(padded(size)), jnp.arange(padded(width))
    before = _tile(deterministic, row, num, state, size)
    per_row, per_out = w_carried.shape[0] // size, w_out.shape[0] // hidden
    mean = jnp.zeros((GUESS_ROWS, padded(width)), jnp.float32)
    spread = mean
    for first in range(0, hidden, GUESS_COLUMNS):  # of the hidden layer, which no one keeps
        column = first + jnp.arange(GUESS_COLUMNS)
        weight = _tile(w_carried, state, size, column, hidden, per_row, 3 * size)
        heard = jnp.maximum(_product(before, weight) + _line(b_prior, column, hidden)[None, :], 0.0)
        mean += _product(heard, _tile(w_out, column, hidden, own, latent, per_out))
        spread += _product(heard, _tile(w_out, column, hidden, own, latent, per_out, latent))
    mean += _line(b_out, own, latent)[None, :]
    spread += _line(b_out, latent + own, 2 * latent)[None, :]
    softplus = jnp.maximum(spread, 0.0) + jnp.log(1 + jnp.exp(-jnp.abs(spread)))
    sample = mean + (softplus + sizes.min_std) * _tile(noise, row, num, own, latent)
    _put(sizes, found, row, num, own, width, sample)


def _tile(
    ref: Any,
    row: Array,
    num_rows: int,
    column: Array,
    num_columns: int,
    per_row: int | None = None,
    first: int = 0,
) -> Array:
    """Numbers of a matrix whose rows have `per_row`, from the column `first` on; beyond it, 0."""
    inside = (row < num_rows)[:, None] & (column < num_columns)[None, :]
    at = row[:, None] * (per_row or num_columns) + (first + column)[None, :]
    return plt.load(ref.at[at], mask=inside, other=jnp.zeros((), ref.dtype))


def _line(ref: Any, at: Array, end: int, inside: Array | None = None) -> Array:
    """Numbers of a vector in float32; from `end` on, 0."""
    inside = at < end if inside is None else inside
    return plt.load(ref.at[at], mask=inside, other=jnp.zeros((), ref.dtype)).astype(jnp.float32)


def _put(
    sizes: Rollout, ref: Any, row: Array, num_rows: int, column: Array, num: int, values: Array
) -> None:
    inside = (row < num_rows)[:, None] & (column < num)[None, :]
    at = row[:, None] * num + column[None, :]
    if sizes.interpret:  # a masked store writes what it found there: nowhere, where it is outside
        at = jnp.where(inside, at, ref.shape[0])
    plt.store(ref.at[at], values, mask=inside)


def _product(a: Array, b: Array) -> Array:
    return dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + jnp.exp(-x))
