"""Learned locality: states one action apart are drawn together, random others pushed away."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lofo_rl.locality.base import Pairs, See, as_it_is
from lofo_rl.networks import CNN, Chain, Network, Pixels, check_shape
from lofo_rl.networks.onchip import is_supported
from lofo_rl.types import Array, Key, Metrics, Tree

NUM_MEASURED = 1_024  # observations, at most, that tell what is usual


def pairs_of(observations: Array, successors: Array) -> Pairs:
    """Pairs whose observations are all taken as distinct."""
    count = jnp.arange(len(observations), dtype=jnp.int32)
    return Pairs(jnp.concatenate([observations, successors]), count, count + len(observations))


class Standardised(NamedTuple):
    """Parameters of an encoder that sees how far an observation is from the usual one."""

    usual: Array  # the mean observation
    contrast: Array  # []: one over the mean standard deviation of its numbers
    encoder: Tree


@dataclass(frozen=True)
class Contrastive:
    """The paper's contrastive embedding; the defaults are its MountainCar table.

    Loss of a pair: ‖f(s)−f(s')‖² + (β − Σ ‖f(s)−f(s̄)‖²)², summed over the pairs of a batch.
    The other readings that public code suggests are `reduce_negatives`, `square` and
    `negative_weight`.
    """

    encoder: Network  # from an observation to a vector of `size` numbers
    observation_shape: tuple[int, ...]
    size: int = 16
    negative_target: float = 10.0  # beta
    num_negatives: int = 128
    batch_size: int = 32
    num_epochs: int = 5
    learning_rate: float = 1e-4
    reduce_negatives: Literal["sum", "mean"] = "sum"  # as printed: the sum
    square: Literal["pair", "batch"] = "pair"  # "batch": the mean over the batch inside the square
    negative_weight: float = 1.0  # 0.1 in one public re-implementation
    # A batch draws once for all its pairs: with a square for each pair the loss is the same on
    # average, and far fewer observations are embedded, 192 instead of 4 160 with these sizes.
    shared_negatives: bool = False
    # A picture is nearly all background, and an encoder that sees it as it is learns late what
    # little moves before it. So see what differs from the usual one, by how much it mostly does.
    standardise: bool = False

    def init(self, key: Key) -> Tree:
        params, shape = self.encoder.init(key, self.observation_shape)
        if shape != (self.size,):
            raise ValueError(f"the encoder gives shape {shape}, but size is {self.size}")
        if not self.standardise:
            return params
        if isinstance(_first(self.encoder), Pixels):
            raise ValueError("what is standardised needs no Pixels(): leave it out of the encoder")
        return Standardised(jnp.zeros(self.observation_shape), jnp.ones(()), params)

    def embed(self, params: Tree, observation: Array) -> Array:
        """The encoder's vector, to the last digit of float32."""
        # A GPU's default product is coarser than a whole radius, so ask for every digit.
        with jax.default_matmul_precision("highest"):
            return self._encode(params, observation)

    def fit(
        self, params: Tree, pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[Tree, Metrics]:
        """Trains for `num_epochs` over the pairs, as one compiled program; jit and vmap it."""
        learner, losses = jax.lax.scan(
            lambda learner, key: self.epoch(learner, pairs, key, see),
            self.begin(params, pairs, see),
            jax.random.split(key, self.num_epochs),
        )
        return self.end(learner, losses)

    def begin(self, params: Tree, pairs: Pairs, see: See = as_it_is) -> tuple[Tree, Tree]:
        """The parameters, told what is usual, and an optimiser that has seen nothing."""
        if self.standardise:
            count = min(len(pairs.anchor), NUM_MEASURED)
            steps = jnp.arange(count) * len(pairs.anchor) // max(count, 1)  # from the whole walk
            seen = see(pairs.table[pairs.anchor[steps]]).astype(jnp.float32)
            contrast = 1 / jnp.maximum(seen.std(0).mean(), 1e-6)
            params = Standardised(seen.mean(0), contrast, self._learnt(params))
        return params, optax.adam(self.learning_rate).init(self._learnt(params))

    def epoch(
        self, learner: tuple[Tree, Tree], pairs: Pairs, key: Key, see: See = as_it_is
    ) -> tuple[tuple[Tree, Tree], Array]:
        """Learns from all pairs in a new order, but for those that fill no batch."""
        num_batches = len(pairs.anchor) // self.batch_size
        if not num_batches or len(pairs.anchor) < 3:
            raise ValueError(
                f"{len(pairs.anchor)} random steps cannot fill a batch of {self.batch_size}: "
                "collect more steps or lower batch_size"
            )
        key_order, key_negatives = jax.random.split(key)
        order = jax.random.permutation(key_order, len(pairs.anchor))
        batches = order[: num_batches * self.batch_size].reshape(num_batches, self.batch_size)
        keys = jax.random.split(key_negatives, num_batches)
        return jax.lax.scan(
            lambda carry, own: self._learn(carry, pairs, see, *own), learner, (batches, keys)
        )

    def end(self, learner: tuple[Tree, Tree], losses: Array) -> tuple[Tree, Metrics]:
        """The parameters, the loss of the last epoch and that of the first batch."""
        return learner[0], {"loss": losses[-1].mean(), "first_loss": losses[0, 0]}

    def loss(self, anchor: Array, positive: Array, negatives: Array) -> Array:
        """The loss of embedded pairs [B, D], [B, D] and their negatives [B, K, D]."""
        attraction = jnp.sum((anchor - positive) ** 2, axis=-1)
        squares = jnp.sum((anchor[:, None] - negatives) ** 2, axis=-1)
        spread = squares.sum(-1) if self.reduce_negatives == "sum" else squares.mean(-1)
        if self.square == "batch":
            repulsion = (self.negative_target - spread.mean()) ** 2
        else:
            repulsion = jnp.sum((self.negative_target - spread) ** 2)
        return attraction.sum() + self.negative_weight * repulsion

    def _learn(
        self, learner: tuple[Tree, Tree], pairs: Pairs, see: See, batch: Array, key: Key
    ) -> tuple[tuple[Tree, Tree], Array]:
        params, optimiser = learner
        if self.shared_negatives:  # among many steps, the pair's own two are rare
            negatives = jax.random.randint(key, (1, self.num_negatives), 0, len(pairs.anchor))
        else:
            negatives = draw_others(key, batch, self.num_negatives, len(pairs.anchor))
        rows = pairs.anchor[batch], pairs.successor[batch], pairs.anchor[negatives]
        loss, gradient = jax.value_and_grad(
            lambda p: self.loss(*self._embed_rows(self._with(params, p), pairs.table, see, rows))
        )(self._learnt(params))
        change, optimiser = optax.adam(self.learning_rate).update(gradient, optimiser)
        learnt = optax.apply_updates(self._learnt(params), change)
        return (self._with(params, learnt), optimiser), loss / self.batch_size

    def _learnt(self, params: Any) -> Tree:
        """The part of the parameters that gradients change."""
        return params.encoder if self.standardise else params

    def _with(self, params: Any, learnt: Tree) -> Tree:
        return params._replace(encoder=learnt) if self.standardise else learnt

    def _embed_rows(
        self, params: Tree, table: Array, see: See, rows: tuple[Array, Array, Array]
    ) -> tuple[Array, ...]:
        num_rows = sum(r.size for r in rows)
        if len(table) <= num_rows:  # fewer distinct observations than uses: embed each once
            points = self._embed_many(params, see(table))
            return tuple(points[r] for r in rows)
        seen = see(table[jnp.concatenate([r.reshape(-1) for r in rows])])
        points = self._embed_many(params, seen)
        ends = (rows[0].size, rows[0].size + rows[1].size)
        parts = points[: ends[0]], points[ends[0] : ends[1]], points[ends[1] :]
        return tuple(p.reshape(*r.shape, self.size) for p, r in zip(parts, rows, strict=True))

    def _embed_many(self, params: Tree, observations: Array) -> Array:
        """`embed` where products take the time: as exact, and by tensor cores where there are."""
        with jax.default_matmul_precision(_every_digit()):
            return self._encode(params, observations)

    def _encode(self, params: Any, observation: Array) -> Array:
        check_shape(observation, self.observation_shape, "locality")
        if self.standardise:
            observation = (observation - params.usual) * params.contrast
        elif observation.dtype == jnp.uint8 and isinstance(_first(self.encoder), CNN):
            raise ValueError("bytes need Pixels() in front of the CNN, or standardise=True")
        return self.encoder.apply(self._learnt(params), observation)


def _first(network: Network) -> Network:
    """What of a network sees the observation."""
    if isinstance(network, Chain) and network.parts:
        return _first(network.parts[0])
    return network


def _every_digit() -> str:
    """The fastest precision of products on this device that keeps the digits of float32."""
    # each number is the sum of two short ones, and three products of these make one: tensor cores
    return "TF32_TF32_F32_X3" if is_supported() else "highest"


def draw_others(key: Key, batch: Array, num: int, num_steps: int) -> Array:
    """For each step t of a trajectory, `num` steps that are neither t nor t + 1."""
    lots = jax.random.randint(key, (*batch.shape, num), 0, num_steps - 2)
    return lots + 2 * (lots >= batch[:, None])
