"""The number-analogy task (paper, section 4.5): a digit X and a symbol S are shown, X + S is asked.

What the symbols are worth is drawn anew for every episode; at the `shuffled` level the digits' values are
too, so that only equations seen together determine an answer. Every combination of digit and symbol is
shown at most once in an episode, each time with another picture of the digit: whatever is answered right
was never seen and had to be concluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, Num
from torch import Tensor

from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.data.mnist import DigitPart, mnist_part
from apl.episode import Episodes

Level = Literal["fixed", "shuffled"]
SymbolForm = Literal["one_hot", "glyphs"]

DIGITS = 10
GLYPH_CLASSES = {"train": 400, "validation": 100, "test": 100}
GLYPH_SEEDS = {"train": 11, "validation": 12, "test": 13}
"""Each part invents its own characters: no symbol of one can be in another."""


@dataclass(frozen=True)
class AnalogyTask:
    """What is shuffled, what symbols look like and what they may be worth."""

    level: Level = "shuffled"
    symbols: SymbolForm = "one_hot"
    symbol_count: int = 10
    lowest: int = -5
    highest: int = 5
    """Values of symbols. The paper's text says ±10, its appendix ±5 in 20 classes; only the latter adds up."""

    def __post_init__(self) -> None:
        if self.symbol_count < 2 or self.lowest > self.highest:
            raise ValueError("a task needs at least two symbols and a lowest value not above the highest")

    @property
    def combinations(self) -> int:
        return DIGITS * self.symbol_count

    @property
    def way(self) -> int:
        """Possible answers: from 0 + lowest to 9 + highest."""
        return DIGITS + self.highest - self.lowest

    def label(self, digit_value: Tensor, symbol_value: Tensor) -> Tensor:
        """The answer's class: sums counted from the lowest possible one."""
        return digit_value + symbol_value - self.lowest


@dataclass(frozen=True)
class Examples:
    """Flat inputs (bytes, or embeddings computed before) of digits or of symbols, and the class of each."""

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
    """Which of the episode's symbols, 0 to `symbol_count` - 1."""
    digit_value: Int[Tensor, "episode digit"]
    symbol_value: Int[Tensor, "episode symbol"]


def digit_examples(part: DigitPart) -> Examples:
    """MNIST digits as rows of bytes. "train" are digits the encoder did not learn from."""
    images = mnist_part(part)
    return Examples(images.images.flatten(1), images.labels)


def symbol_examples(task: AnalogyTask, part: Literal["train", "validation", "test"]) -> Examples:
    """One-hot vectors (in bytes, as images are), or drawings of invented characters."""
    if task.symbols == "one_hot":
        return Examples(255 * torch.eye(task.symbol_count, dtype=torch.uint8), torch.arange(task.symbol_count))
    generator = np.random.default_rng(GLYPH_SEEDS[part])
    glyphs = LabelledImages.of_glyphs(draw_glyphs(GLYPH_CLASSES[part], 2 * DIGITS, generator))
    return Examples(glyphs.images.flatten(1), glyphs.labels)


class AnalogySampler:
    """Draws episodes of the task."""

    def __init__(self, task: AnalogyTask, digits: Examples, symbols: Examples, generator: torch.Generator) -> None:
        self.task = task
        self.generator = generator
        self._digits = _ByClass(digits)
        self._symbols = _ByClass(symbols)
        if len(self._digits.count) != DIGITS or int(self._digits.count.min()) < task.symbol_count:
            raise ValueError(f"needs pictures of ten digits, at least {task.symbol_count} of each")
        if len(self._symbols.count) < task.symbol_count:
            raise ValueError(f"needs {task.symbol_count} symbols, there are {len(self._symbols.count)}")

    def draw(self, episodes: int, length: int | None = None, each_symbol_first: bool = False) -> Analogies:
        """Combinations in random order, `length` of them (all by default). `each_symbol_first` begins with one combination
        of every symbol."""
        task, count = self.task, self.task.symbol_count

        def permutations(of: int) -> Int[Tensor, "episode place"]:
            return torch.rand(episodes, of, generator=self.generator).argsort(1)

        order = permutations(task.combinations)
        if each_symbol_first:
            order = _first_of_each(order, order % count)
        order = order[:, :length]
        digit, symbol = order // count, order % count
        digit_value = permutations(DIGITS) if task.level == "shuffled" else torch.arange(DIGITS).repeat(episodes, 1)
        symbol_value = torch.randint(task.lowest, task.highest + 1, (episodes, count), generator=self.generator)
        symbol_class = permutations(len(self._symbols.count))[:, :count]
        # A digit meets each symbol once, so the symbol's number picks another picture of it every time.
        shown_digit = self._digits.pick(self._some(episodes, DIGITS).gather(1, digit) + symbol, digit)
        shown_symbol = self._symbols.pick(
            self._some(episodes, count).gather(1, symbol) + digit, symbol_class.gather(1, symbol)
        )
        label = task.label(digit_value.gather(1, digit), symbol_value.gather(1, symbol))
        inputs = torch.cat([shown_digit, shown_symbol], -1).flatten(0, 1)
        example = torch.arange(order.numel()).view(order.shape)
        return Analogies(inputs, Episodes(example, label, task.way), digit, symbol, digit_value, symbol_value)

    def _some(self, *shape: int) -> Tensor:
        return torch.randint(1 << 30, shape, generator=self.generator)


class _ByClass:
    """Examples found by class and number; numbers beyond the last begin again."""

    def __init__(self, examples: Examples) -> None:
        self.inputs = examples.inputs[examples.labels.argsort(stable=True)]
        self.count = examples.labels.bincount()
        self._start = self.count.cumsum(0) - self.count

    def pick(self, number: Int[Tensor, "*any"], which: Int[Tensor, "*any"]) -> Num[Tensor, "*any width"]:
        return self.inputs[self._start[which] + number % self.count[which]]


def _first_of_each(
    order: Int[Tensor, "episode time"], kind: Int[Tensor, "episode time"]
) -> Int[Tensor, "episode time"]:
    """Move the first of each kind to the front; otherwise the order stays."""
    earlier = (kind[:, :, None] == kind[:, None, :]).tril(-1).any(-1)
    return order.gather(1, earlier.to(torch.int8).argsort(dim=1, stable=True))
