"""What any reasoner could know in the analogy task: an exact solver of the equations X + S = answer.

Every equation ties a digit's value to a symbol's. Digits x and negated symbols -s are nodes, an equation
says x - (-s) = answer; a union-find that keeps differences knows an answer if, and only if, the equations
seen so far determine it. (A lucky guess or a bound such as "digits end at 9" is no knowledge here.)
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from experiments.data.analogy import DIGITS, Analogies, AnalogyTask


class Differences:
    """Nodes whose values are known relative to one another."""

    def __init__(self, nodes: int) -> None:
        self._parent = list(range(nodes))
        self._above = [0] * nodes
        """Value of a node minus value of its parent."""

    def root(self, node: int) -> tuple[int, int]:
        """The node that stands for the group, and by how much this node exceeds it."""
        above = 0
        while self._parent[node] != node:
            above += self._above[node]
            node = self._parent[node]
        return node, above

    def learn(self, a: int, b: int, difference: int) -> None:
        """value(a) - value(b) = difference; what contradicts earlier knowledge is ignored."""
        (root_a, above_a), (root_b, above_b) = self.root(a), self.root(b)
        if root_a != root_b:
            self._parent[root_a] = root_b
            self._above[root_a] = difference - above_a + above_b

    def difference(self, a: int, b: int) -> int | None:
        """value(a) - value(b), or None if nothing determines it."""
        (root_a, above_a), (root_b, above_b) = self.root(a), self.root(b)
        return above_a - above_b if root_a == root_b else None


def solve(
    task: AnalogyTask, drawn: Analogies, written: Bool[Tensor, "episode time"] | None = None
) -> Int[Tensor, "episode time"]:
    """The answer at each step as determined by the steps before it; -1 where nothing determines it.

    With `written`, only those steps are remembered.
    """
    episodes, length = drawn.digit.shape
    answers = torch.full((episodes, length), -1)
    digits, symbols, labels = drawn.digit.tolist(), drawn.symbol.tolist(), drawn.episodes.label.tolist()
    kept = written.tolist() if written is not None else None
    for e in range(episodes):
        known = Differences(DIGITS + task.symbol_count)
        if task.level == "fixed":
            for digit in range(1, DIGITS):
                known.learn(digit, 0, digit)
        for t in range(length):
            digit, symbol = digits[e][t], DIGITS + symbols[e][t]
            answer = known.difference(digit, symbol)
            if answer is not None:
                answers[e, t] = answer
            if kept is None or kept[e][t]:
                known.learn(digit, symbol, labels[e][t])
    return answers
