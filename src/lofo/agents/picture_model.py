"""A model of what is seen as pictures: three encoders, of which one leads to a drawing."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo.networks import Chain, Initialisation, Network, TransposedCNN, linear
from lofo.types import Array, Key, Tree


class PictureParams(NamedTuple):
    """Dynamics, reward and termination; stacked on a leading axis, or tuples."""

    encoders: Tree  # three
    decoder: Tree  # of the dynamics
    heads: Tree  # two: reward and termination


@dataclass(frozen=True)
class PictureModel:
    """Each part has an encoder of its own; the action joins behind it."""

    encoder: Network
    decoder: TransposedCNN
    head: Network
    output_init: Initialisation
    is_stacked: bool  # the first layers of the encoders are then one product

    def init(
        self, keys: tuple[Key, Key, Key], observation_shape: tuple[int, ...], action_size: int
    ) -> PictureParams:
        """Draws the three parts, one from each key."""
        pairs = [jax.random.split(key) for key in keys]
        encoders, shapes = zip(
            *(self.encoder.init(key, observation_shape) for key, _ in pairs), strict=True
        )
        joined = (shapes[0][0] + action_size,)
        decoder, _ = self.decoder.init(pairs[0][1], joined)
        heads = [self._answer.init(key, joined)[0] for _, key in pairs[1:]]
        return PictureParams(self._bundle(encoders), decoder, self._bundle(heads))

    def apply(self, params: PictureParams, x: Array, action: Array) -> tuple[Array, Array, Array]:
        """What the dynamics draw [..., *picture], the reward [...] and the termination logit [...].

        `action` is embedded, [..., action_size].
        """
        if self.is_stacked:
            encoded = jax.vmap(self.encoder.apply, (0, None))(params.encoders, x)
        else:
            encoded = jnp.stack([self.encoder.apply(part, x) for part in params.encoders])
        actions = jnp.broadcast_to(action, (*encoded.shape[:-1], action.shape[-1]))
        joined = jnp.concatenate([encoded, actions], axis=-1)
        if self.is_stacked:
            answers = jax.vmap(self._answer.apply)(params.heads, joined[1:])
        else:
            heads = zip(params.heads, joined[1:], strict=True)
            answers = jnp.stack([self._answer.apply(head, own) for head, own in heads])
        reward, logit = answers[..., 0]
        return self.decoder.apply(params.decoder, joined[0]), reward, logit

    def _bundle(self, parts: tuple[Tree, ...] | list[Tree]) -> Tree:
        if self.is_stacked:
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
        return tuple(parts)

    @property
    def _answer(self) -> Network:
        return Chain((self.head, linear(1, self.output_init)))
