"""Prioritized sampling: the numbers of it, for buffers on the host and compiled ones."""

import dataclasses

from lofo_rl.buffers.rules import check_number


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """Sample in proportion to `(error + floor) ** exponent`; a new sample has the highest priority.

    A sample drawn with probability p from n samples has the importance weight `(n * p) ** -beta`,
    divided by the largest weight of the batch.
    """

    exponent: float = 0.6  # 0: uniform, 1: in proportion to the error
    floor: float = 1e-3  # added to every error, so that no sample has probability 0
    beta: float = 0.4  # 0: no correction, 1: the batch stands for a uniform one

    def __post_init__(self) -> None:
        check_number("exponent", self.exponent, lambda x: x >= 0, "at least 0")
        check_number("floor", self.floor, lambda x: x > 0, "positive")
        check_number("beta", self.beta, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
