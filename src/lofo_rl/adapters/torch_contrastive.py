"""The paper's learned locality in torch: the loss and the settings of `lofo_rl.Contrastive`."""

import math
import sys
from typing import Any, Literal

import numpy as np

from lofo_rl.extras import needs
from lofo_rl.types import LofoError

with needs("torch", __name__):
    import torch
    from torch import nn

NUM_MEASURED = 1_024  # observations, at most, whose mean is the usual one


class ContrastiveLocality(nn.Module):
    """Draws states one action apart together, and pushes random others away.

    Loss of a pair: |f(s) - f(s')|^2 + (beta - sum over K negatives of |f(s) - f(n)|^2)^2, summed
    over the pairs of a batch. The fields are those of `lofo_rl.Contrastive`.
    Observations are vectors, or images with channels first or last; bytes are divided by 255.
    `encoder` is a module from observations [n, ...] to vectors [n, size]; for images it gets
    channels first. Without it: tanh layers 64-64-64 for vectors; for images, convolutions of 32,
    64 and 64 channels and a layer of 512.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        size: int = 16,
        *,
        encoder: nn.Module | None = None,
        negative_target: float = 10.0,  # beta
        num_negatives: int = 128,  # K
        batch_size: int = 32,
        num_epochs: int = 5,
        learning_rate: float = 1e-4,
        reduce_negatives: Literal["sum", "mean"] = "sum",
        square: Literal["pair", "batch"] = "pair",
        negative_weight: float = 1.0,
        shared_negatives: bool = False,
        standardise: bool = False,
    ) -> None:
        super().__init__()
        self.observation_shape = tuple(observation_shape)
        if len(self.observation_shape) not in (1, 3):
            raise LofoError(f"observations must be vectors or images, got {observation_shape}")
        for name, value, allowed in (
            ("reduce_negatives", reduce_negatives, ("sum", "mean")),
            ("square", square, ("pair", "batch")),
        ):
            if value not in allowed:
                raise LofoError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
        for name, number in {
            "size": size, "num_negatives": num_negatives, "batch_size": batch_size,
            "num_epochs": num_epochs, "learning_rate": learning_rate,
            "negative_target": negative_target, "negative_weight": negative_weight,
        }.items():  # fmt: skip
            if not (math.isfinite(number) and number > 0):
                raise LofoError(f"{name} must be positive, got {number!r}")
        self.size, self.negative_target, self.num_negatives = size, negative_target, num_negatives
        self.batch_size, self.num_epochs, self.learning_rate = batch_size, num_epochs, learning_rate
        self.reduce_negatives, self.square = reduce_negatives, square
        self.negative_weight, self.shared_negatives = negative_weight, shared_negatives
        self.standardise = standardise
        self.encoder = encoder or _default_encoder(self.observation_shape, size)
        self.register_buffer("usual", torch.zeros(self.observation_shape))
        self.register_buffer("contrast", torch.ones(()))
        self.register_buffer("was_fitted", torch.zeros((), dtype=torch.bool))

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has come to its end."""
        return bool(self.was_fitted)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The embeddings [n, size] of observations [n, ...]."""
        if tuple(observations.shape[1:]) != self.observation_shape:
            raise LofoError(
                f"the locality is for observations {self.observation_shape}, got "
                f"{tuple(observations.shape[1:])}"
            )
        x = observations.float()
        if self.standardise:
            x = (x - self.usual) * self.contrast
        elif observations.dtype == torch.uint8:
            x = x / 255
        if x.ndim == 4 and _channels_are_last(self.observation_shape):
            x = x.permute(0, 3, 1, 2)
        return self.encoder(x)

    def loss(
        self, anchor: torch.Tensor, positive: torch.Tensor, negatives: torch.Tensor
    ) -> torch.Tensor:
        """The loss of embedded pairs [B, D], [B, D] and their negatives [B or 1, K, D]."""
        attraction = ((anchor - positive) ** 2).sum()
        squares = ((anchor[:, None] - negatives) ** 2).sum(-1)
        spread = squares.sum(-1) if self.reduce_negatives == "sum" else squares.mean(-1)
        if self.square == "batch":
            repulsion = (self.negative_target - spread.mean()) ** 2
        else:
            repulsion = ((self.negative_target - spread) ** 2).sum()
        return attraction + self.negative_weight * repulsion

    def fit(
        self, observations: Any, successors: Any, *, seed: int = 0, num_envs: int = 1
    ) -> dict[str, float]:
        """Learn from states [T, ...] and their successors [T, ...] one action later.

        The states are those of `num_envs` environments in turns.
        Returns the mean loss of a pair in the first batch, and in the last epoch.
        """
        num = len(observations)
        if num < max(self.batch_size, 3):
            raise LofoError(
                f"{num} steps cannot fill a batch of {self.batch_size}: give more steps or lower "
                "batch_size"
            )
        table, places = _distinct(np.concatenate([observations, successors]))
        anchors, positives = places[:num], places[num:]
        if self.standardise:
            count = min(num, NUM_MEASURED)
            seen = self._tensor(observations[np.arange(count) * num // count]).float()
            self.usual.copy_(seen.mean(0))
            self.contrast.fill_(1 / max(float(seen.std(0, correction=0).mean()), 1e-6))
        rng = np.random.default_rng(seed)
        optimizer = torch.optim.Adam(self.encoder.parameters(), self.learning_rate)
        losses: list[float] = []
        num_batches = num // self.batch_size
        for epoch in range(self.num_epochs):
            order = rng.permutation(num)[: num_batches * self.batch_size]
            for batch in order.reshape(num_batches, self.batch_size):
                rows = (
                    anchors[batch],
                    positives[batch],
                    anchors[self._negatives(batch, num, num_envs, rng)],
                )
                loss = self.loss(*self._embed_rows(table, rows))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item() / self.batch_size)
                _show(epoch, self.num_epochs, len(losses) - epoch * num_batches, num_batches)
        if not math.isfinite(losses[-1]):
            raise LofoError(f"the locality diverged: loss {losses[-1]}; lower learning_rate")
        self.was_fitted.fill_(True)
        return {"first_loss": losses[0], "loss": float(np.mean(losses[-num_batches:]))}

    def _negatives(self, batch: Any, num: int, num_envs: int, rng: np.random.Generator) -> Any:
        """For each step t of a batch, [B, K] steps that are neither t nor the next one of its
        environment; or [1, K] for all."""
        if self.shared_negatives:
            return rng.integers(num, size=(1, self.num_negatives))
        drawn = rng.integers(num - 2, size=(len(batch), self.num_negatives))
        drawn += drawn >= batch[:, None]
        return drawn + (drawn >= batch[:, None] + num_envs)

    def _embed_rows(self, table: Any, rows: tuple[Any, ...]) -> list[torch.Tensor]:
        """The embeddings of rows of a table; each distinct one is embedded once."""
        distinct, places = np.unique(np.concatenate([r.ravel() for r in rows]), return_inverse=True)
        points = self(self._tensor(table[distinct]))
        parts = np.split(places.ravel(), np.cumsum([r.size for r in rows])[:-1])
        return [
            points[torch.as_tensor(part, device=points.device)].reshape(*r.shape, -1)
            for part, r in zip(parts, rows, strict=True)
        ]

    def _tensor(self, x: Any) -> torch.Tensor:
        return torch.as_tensor(x, device=self.usual.device)


def embedded(module: nn.Module, observations: Any) -> torch.Tensor:
    """A module's vectors, on its own device, as it computes them when it does not learn."""
    like = next(module.parameters(), next(module.buffers(), None))
    x = torch.as_tensor(observations, device=None if like is None else like.device)
    was_training = module.training
    module.eval()  # no dropout, and no statistics of a batch
    try:
        with torch.no_grad():
            return module(x)
    finally:
        module.train(was_training)


class _ChannelsLast(nn.Module):
    """Flattens images as the networks of `lofo_rl` do, so that both can have the same weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def _channels_are_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] < shape[0]


def _default_encoder(shape: tuple[int, ...], size: int) -> nn.Module:
    if len(shape) == 1:
        layers: list[nn.Module] = []
        for num_inputs in (shape[0], 64, 64):
            layers += [nn.Linear(num_inputs, 64), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(64, size))
    depth, *sides = (shape[-1], *shape[:-1]) if _channels_are_last(shape) else shape
    layers = []
    for channels, kernel, stride in ((32, 8, 4), (64, 3, 2), (64, 3, 2)):
        layers += [nn.Conv2d(depth, channels, kernel, stride), nn.ReLU()]
        depth, sides = channels, [(side - kernel) // stride + 1 for side in sides]
    if min(sides) < 1:
        raise LofoError(f"images of shape {shape} are too small for the usual encoder: give one")
    num_features = depth * math.prod(sides)
    layers += [_ChannelsLast(), nn.Linear(num_features, 512), nn.ReLU(), nn.Linear(512, size)]
    return nn.Sequential(*layers)


def _distinct(observations: Any) -> tuple[Any, Any]:
    """The distinct observations, and of each given one its row among them [n]."""
    rows: dict[bytes, int] = {}
    firsts: list[int] = []
    places = np.empty(len(observations), np.int64)
    for number, observation in enumerate(np.ascontiguousarray(observations)):
        row = rows.setdefault(observation.tobytes(), len(rows))
        if row == len(firsts):
            firsts.append(number)
        places[number] = row
    return observations[firsts], places


def _show(epoch: int, num_epochs: int, batch: int, num_batches: int) -> None:
    """How far a fit is: a line that is written over on a terminal, else a line for each epoch."""
    is_terminal = sys.stderr.isatty()
    if batch < num_batches and not (is_terminal and batch % 20 == 0):
        return
    words = f"fitting the locality: epoch {epoch + 1} of {num_epochs}, {batch / num_batches:.0%}"
    is_last = epoch + 1 == num_epochs and batch == num_batches
    end = "\r" if is_terminal and not is_last else "\n"
    print(words, end=end, file=sys.stderr, flush=True)
