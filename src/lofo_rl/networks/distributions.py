"""Samples that gradients pass through, and how far two distributions lie apart.

Noise always comes in from outside: what a whole scan needs is then drawn at once, before it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.types import Array, Key

EDGE = 1e-6  # how far inside their bounds samples stay
FEW = 2**15  # numbers, of one run, that are sooner added up again than written down
MOST_CLASSES = 64  # that are added up one by one
ROOT_TWO = math.sqrt(2)


class Normal(NamedTuple):
    """A diagonal Gaussian."""

    mean: Array  # [..., size]
    std: Array  # [..., size]

    def sample(self, noise: Array) -> Array:
        """The sample that standard normal noise decides."""
        return self.mean + self.std * noise


class TruncatedNormal(NamedTuple):
    """A diagonal Gaussian cut off at -1 and 1; its mean, which lies between them, is the mode."""

    mean: Array  # [..., size]
    std: Array  # [..., size]

    def sample(self, lot: Array) -> Array:
        """The sample that a lot in [0, 1) decides; gradients pass as if nothing were clipped."""
        low, high = (jax.lax.erf(bound / ROOT_TWO) for bound in self._bounds())
        share = jnp.clip(low + lot * (high - low), -1 + EDGE, 1 - EDGE)
        sample = self.mean + self.std * ROOT_TWO * jax.lax.erf_inv(share)
        clipped = jnp.clip(sample, -1 + EDGE, 1 - EDGE)
        return sample + jax.lax.stop_gradient(clipped - sample)

    def entropy(self) -> Array:
        """Summed over the last axis."""
        low, high = self._bounds()
        mass = 0.5 * (jax.lax.erf(high / ROOT_TWO) - jax.lax.erf(low / ROOT_TWO))
        at_low, at_high = (x * jnp.exp(-0.5 * x**2) for x in (low, high))
        whole = jnp.log(math.sqrt(2 * math.pi * math.e) * self.std * mass)
        return jnp.sum(whole + (at_low - at_high) / (2 * mass * math.sqrt(2 * math.pi)), axis=-1)

    def _bounds(self) -> tuple[Array, Array]:
        """In units of a standard normal."""
        return (-1 - self.mean) / self.std, (1 - self.mean) / self.std


def truncated_normal(raw: Array) -> TruncatedNormal:
    """DreamerV2's policy over a network's output [..., 2 · size]."""
    mean, spread = jnp.split(raw, 2, axis=-1)
    return TruncatedNormal(jnp.tanh(mean), 2 * jax.nn.sigmoid(spread / 2) + 0.1)


@jax.custom_vjp
def straight_through(logits: Array, noise: Array) -> Array:
    """One-hot samples [..., classes] by Gumbel noise, with the gradient of the probabilities.

    By reverse mode alone.
    """
    return jax.nn.one_hot(jnp.argmax(logits + noise, axis=-1), logits.shape[-1])


def _straight_through_back(shares: Array, slope: Array) -> tuple[Array, None]:
    pulls = shares * slope
    return pulls - shares * _add_up(pulls), None


def _add_up(x: Array) -> Array:
    """The sum over the last axis, which stays as one."""
    if x.size > FEW or x.shape[-1] > MOST_CLASSES:
        return jnp.sum(x, axis=-1, keepdims=True)
    # a sum would be a kernel of its own in a loop of small ones; here each who asks adds up itself
    return sum((x[..., k, None] for k in range(1, x.shape[-1])), x[..., :1])


straight_through.defvjp(
    lambda logits, noise: (straight_through(logits, noise), jax.nn.softmax(logits)),
    _straight_through_back,
)


def categorical_kl(logits: Array, other: Array) -> Array:
    """KL(softmax of logits ‖ softmax of other), summed over the classes."""
    log, log_other = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
    return jnp.sum(jnp.exp(log) * (log - log_other), axis=-1)


def gaussian_kl(normal: Normal, other: Normal) -> Array:
    """KL(normal ‖ other), summed over the last axis."""
    ratio = (normal.std / other.std) ** 2
    distance = ((normal.mean - other.mean) / other.std) ** 2
    return 0.5 * jnp.sum(ratio + distance - 1 - jnp.log(ratio), axis=-1)


def unit_gaussian_log_density(x: Array, mean: Array) -> Array:
    """log N(x | mean, 1) of each number, without its constant, which no gradient sees."""
    return -0.5 * (x - mean) ** 2


@dataclass(frozen=True)
class Discrete:
    """A latent of categorical variables, each a one-hot vector; its statistics are logits."""

    num_variables: int = 32
    num_classes: int = 32

    @property
    def size(self) -> int:
        """Of a sample, flattened."""
        return self.num_variables * self.num_classes

    @property
    def raw_size(self) -> int:
        """Numbers that a network gives for the statistics."""
        return self.size

    def statistics(self, raw: Array) -> Array:
        """Logits [..., variables, classes]."""
        return raw.reshape(*raw.shape[:-1], self.num_variables, self.num_classes)

    def noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        """What `sample` needs for samples of a leading shape."""
        return jax.random.gumbel(key, (*shape, self.num_variables, self.num_classes))

    def sample(self, statistics: Array, noise: Array) -> Array:
        """[..., size]"""
        sample = straight_through(statistics, noise)
        return sample.reshape(*sample.shape[:-2], self.size)

    def code(self, statistics: Array, noise: Array) -> Array:
        """The classes [..., variables] of a `sample`."""
        return jnp.argmax(statistics + noise, axis=-1)

    def encode(self, sample: Array) -> Array:
        """The code of a sample [..., size], or of 0s."""
        sample = self.statistics(sample)
        is_blank = jnp.max(sample, axis=-1) == 0
        return jnp.where(is_blank, self.num_classes, jnp.argmax(sample, axis=-1))

    def blank(self, shape: tuple[int, ...]) -> Array:
        """The code of 0s, which is no sample's."""
        return jnp.full((*shape, self.num_variables), self.num_classes)

    def decode(self, code: Array) -> Array:
        """[..., size]"""
        sample = jax.nn.one_hot(code, self.num_classes)
        return sample.reshape(*code.shape[:-1], self.size)

    def look_up(self, weight: Array, code: Array) -> Array:
        """`decode(code)` @ weight in float32: rows of it, added up."""
        tables = weight.reshape(self.num_variables, self.num_classes, -1)
        rows = (
            table.at[code[..., k]].get(mode="fill", fill_value=0).astype(jnp.float32)
            for k, table in enumerate(tables)
        )
        return sum(rows, jnp.zeros((), jnp.float32))

    def kl(self, statistics: Array, other: Array) -> Array:
        """[...], summed over the variables."""
        return jnp.sum(categorical_kl(statistics, other), axis=-1)


@dataclass(frozen=True)
class Gaussian:
    """A latent of independent normal numbers."""

    size: int = 30
    min_std: float = 0.1

    @property
    def raw_size(self) -> int:
        """Numbers that a network gives for the statistics."""
        return 2 * self.size

    def statistics(self, raw: Array) -> Normal:
        """Mean and standard deviation [..., size]."""
        mean, spread = jnp.split(raw, 2, axis=-1)
        return Normal(mean, jax.nn.softplus(spread) + self.min_std)

    def noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        """What `sample` needs for samples of a leading shape."""
        return jax.random.normal(key, (*shape, self.size))

    def sample(self, statistics: Normal, noise: Array) -> Array:
        """[..., size]"""
        return statistics.sample(noise)

    def code(self, statistics: Normal, noise: Array) -> Array:
        """A `sample`: there is nothing shorter."""
        return self.sample(statistics, noise)

    def encode(self, sample: Array) -> Array:
        """The sample itself."""
        return sample

    def blank(self, shape: tuple[int, ...]) -> Array:
        """The code of 0s."""
        return jnp.zeros((*shape, self.size))

    def decode(self, code: Array) -> Array:
        """[..., size]"""
        return code

    def look_up(self, weight: Array, code: Array) -> Array:
        """`decode(code)` @ weight in float32."""
        return (code.astype(weight.dtype) @ weight).astype(jnp.float32)

    def kl(self, statistics: Normal, other: Normal) -> Array:
        """[...], summed over the numbers."""
        return gaussian_kl(statistics, other)


Latent = Discrete | Gaussian
Statistics = Any  # logits of a discrete latent, a Normal of a Gaussian one
