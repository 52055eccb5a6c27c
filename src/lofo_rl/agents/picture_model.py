"""A model of what is seen as pictures: three encoders, of which one leads to a drawing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.networks import Chain, Initialisation, Network, TransposedCNN, linear
from lofo_rl.networks.blocks import mix
from lofo_rl.types import Array, Key, Tree


class PictureParams(NamedTuple):
    """Dynamics, reward and termination; stacked on a leading axis, or tuples.

    The first layers of decoder and heads keep the weights of the action apart, as "action".
    """

    encoders: Tree  # three
    decoder: Tree  # of the dynamics
    heads: Tree  # two: reward and termination


@dataclass(frozen=True)
class PictureModel:
    """Each part has an encoder of its own; the action joins behind it.

    Joining is adding: what the action says to the next layer, beside what the picture says. Rows of
    both would not begin where a GPU likes them to, and products with them take thrice the time.
    """

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

        def part(layer: Tree) -> Tree:
            weight, action = jnp.split(layer["weight"], shapes[0])
            return layer | {"weight": weight, "action": action}

        decoder = _first(self.decoder.init(pairs[0][1], joined)[0], part)
        heads = [_first(self._answer.init(key, joined)[0], part) for _, key in pairs[1:]]
        return PictureParams(self._bundle(encoders), decoder, self._bundle(heads))

    def apply(self, params: PictureParams, x: Array, action: Array) -> tuple[Array, Array, Array]:
        """What the dynamics draw [..., *picture], the reward [...] and the termination logit [...].

        `action` is embedded, [..., action_size].
        """
        drawing, reward, logit = self._prepare(params, x, action)
        return self.decoder.apply(*drawing), reward, logit

    def miss(
        self, params: PictureParams, before: Any, after: Any, action: Array, terminated: Array
    ) -> tuple[Array, Array, Array]:
        """The same with the `dynamics_loss` of `before` and what is drawn, instead of a drawing.

        `before` and `after` are pictures that the decoder `compares`.
        """
        drawing, reward, logit = self._prepare(params, before, action)
        counts = jnp.where(terminated, 0.0, 1 / terminated.size)
        return self.decoder.miss(*drawing, before, after, counts), reward, logit

    def _prepare(
        self, params: PictureParams, x: Array, action: Array
    ) -> tuple[tuple[Tree, Array], Array, Array]:
        """What the decoder draws from, its layers and a vector; the reward and the logit."""
        if self.is_stacked:
            encoded = jax.vmap(self.encoder.apply, (0, None))(params.encoders, x)
            heads = jax.vmap(_tell, (0, None))(params.heads, action)
            answers = jax.vmap(self._answer.apply)(heads, encoded[1:])
        else:
            encoded = jnp.stack([self.encoder.apply(part, x) for part in params.encoders])
            heads = [_tell(head, action) for head in params.heads]
            own = zip(heads, encoded[1:], strict=True)
            answers = jnp.stack([self._answer.apply(head, x) for head, x in own])
        reward, logit = answers[..., 0]
        return (_tell(params.decoder, action), encoded[0]), reward, logit

    def _bundle(self, parts: tuple[Tree, ...] | list[Tree]) -> Tree:
        if self.is_stacked:
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
        return tuple(parts)

    @property
    def _answer(self) -> Network:
        return Chain((self.head, linear(1, self.output_init)))


def _tell(params: Tree, action: Array) -> Tree:
    """The layers of a network for given actions [..., action_size]: they shift the first bias."""

    def shift(layer: Tree) -> Tree:
        rows = layer["action"].reshape(action.shape[-1], -1)
        said = mix(rows, action, jnp.zeros(()))
        said = said.reshape(*action.shape[:-1], *layer["action"].shape[1:])
        return {"weight": layer["weight"], "bias": layer["bias"] + said}

    return _first(params, shift)


def _first(params: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """The layers of a network with the first one changed."""
    if isinstance(params, dict):
        return change(params)
    k = next(k for k, part in enumerate(params) if part)
    return (*params[:k], _first(params[k], change), *params[k + 1 :])
