"""The number-analogy task (paper, section 4.5): a digit X and a symbol S are shown, X + S is asked.

What the symbols are worth is drawn anew for every episode; at the `shuffled` level the digits' values are too, so that only
equations seen together determine an answer. Every combination of digit and symbol is shown at most once in an episode, each time
with another picture of the digit: whatever is answered right was never seen and had to be concluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from apl.episode import Episodes
from experiments.data.mnist import DigitPart, mnist_part

Level = Literal["fixed", "shuffled"]

DIGITS = SYMBOLS = 10
COMBINATIONS = DIGITS * SYMBOLS
LOWEST, HIGHEST = -5, 5
"""Values of symbols. The paper's text says ±10, its appendix ±5 in 20 classes; only the latter adds up."""
WAY = DIGITS + HIGHEST - LOWEST
"""Possible answers: from 0 + LOWEST to 9 + HIGHEST."""


@dataclass(frozen=True)
class Examples:
    """Flat inputs (bytes, or embeddings computed before) of digits, and the class of each."""

    inputs: Num[Tensor, "example width"]
    labels: Int[Tensor, " example"]


@dataclass(frozen=True)
class Analogies:
    """Parallel episodes of the task, with what the learner is not told."""

    inputs: Num[Tensor, "example width"]
    """Digit and symbol side by side."""
    episodes: Episodes
    digit: Int[Tensor, "episode time"]
    symbol: Int[Tensor, "episode time"]
    digit_value: Int[Tensor, "episode digit"]
    symbol_value: Int[Tensor, "episode symbol"]


def digit_examples(part: DigitPart) -> Examples:
    """MNIST digits as rows of bytes. "train" are digits the encoder did not learn from."""
    images = mnist_part(part)
    return Examples(images.images.flatten(1), images.labels)


class AnalogySampler:
    """Draws episodes of the task from pictures of digits and one vector for each symbol."""

    def __init__(
        self, level: Level, digits: Examples, symbols: Float[Tensor, "symbol width"], generator: torch.Generator
    ) -> None:
        self.level = level
        self.generator = generator
        self._symbols = symbols
        self._digits = digits.inputs[digits.labels.argsort(stable=True)]
        self._count = digits.labels.bincount()
        self._start = self._count.cumsum(0) - self._count
        if len(self._count) != DIGITS or int(self._count.min()) < SYMBOLS:
            raise ValueError(f"needs pictures of ten digits, at least {SYMBOLS} of each")

    def draw(self, episodes: int, length: int | None = None, each_symbol_first: bool = False) -> Analogies:
        """Combinations in random order, `length` of them (all by default). `each_symbol_first` begins with one combination
        of every symbol."""

        def permutations(of: int) -> Int[Tensor, "episode place"]:
            return torch.rand(episodes, of, generator=self.generator).argsort(1)

        order = permutations(COMBINATIONS)
        if each_symbol_first:
            order = _first_of_each(order, order % SYMBOLS)
        order = order[:, :length]
        digit, symbol = order // SYMBOLS, order % SYMBOLS
        digit_value = permutations(DIGITS) if self.level == "shuffled" else torch.arange(DIGITS).repeat(episodes, 1)
        symbol_value = torch.randint(LOWEST, HIGHEST + 1, (episodes, SYMBOLS), generator=self.generator)
        symbol_class = permutations(SYMBOLS)
        # A digit meets each symbol once, so the symbol's number picks another picture of it every time.
        first = torch.randint(1 << 30, (episodes, DIGITS), generator=self.generator)
        shown_digit = self._digits[self._start[digit] + (first.gather(1, digit) + symbol) % self._count[digit]]
        shown_symbol = self._symbols[symbol_class.gather(1, symbol)]
        label = digit_value.gather(1, digit) + symbol_value.gather(1, symbol) - LOWEST
        inputs = torch.cat([shown_digit, shown_symbol], -1).flatten(0, 1)
        example = torch.arange(order.numel()).view(order.shape)
        return Analogies(inputs, Episodes(example, label, WAY), digit, symbol, digit_value, symbol_value)


def _first_of_each(
    order: Int[Tensor, "episode time"], kind: Int[Tensor, "episode time"]
) -> Int[Tensor, "episode time"]:
    """Move the first of each kind to the front; otherwise the order stays."""
    earlier = (kind[:, :, None] == kind[:, None, :]).tril(-1).any(-1)
    return order.gather(1, earlier.to(torch.int8).argsort(dim=1, stable=True))
