"""How many answers are right: in all, per class, and which classes are confused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from apl.cli.terminal import one_line, table
from apl.store import Label

CLASSES_SHOWN = 30
CONFUSIONS_SHOWN = 10


@dataclass
class Score:
    """Answers to examples whose label is given."""

    answers: Counter[tuple[Label, Label | None]] = field(default_factory=Counter)
    """How often each pair of expected and answered label occurred; None is "new"."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Examples under labels that the memory does not know."""
    unreadable: int = 0

    def add(self, expected: Label, answer: Label | None, count: int = 1) -> None:
        self.answers[expected, answer] += count

    @property
    def asked(self) -> int:
        return self.answers.total()

    @property
    def right(self) -> int:
        return sum(count for (expected, answer), count in self.answers.items() if expected == answer)

    def classes(self) -> list[tuple[Label, int, int]]:
        """Label, asked and right of each class, those with the smallest share of right answers first."""
        asked: Counter[Label] = Counter()
        right: Counter[Label] = Counter()
        for (expected, answer), count in self.answers.items():
            asked[expected] += count
            right[expected] += count if expected == answer else 0
        return sorted(((c, asked[c], right[c]) for c in asked), key=lambda c: (c[2] / c[1], -c[1], str(c[0])))

    def confusions(self) -> list[tuple[Label, Label | None, int]]:
        """Expected label, answer and how often, the commonest first."""
        wrong = [(expected, answer, n) for (expected, answer), n in self.answers.items() if expected != answer]
        return sorted(wrong, key=lambda pair: (-pair[2], str(pair[0]), str(pair[1])))

    def to_dict(self) -> dict[str, object]:
        return {
            "asked": self.asked,
            "right": self.right,
            "accuracy": self.right / self.asked if self.asked else None,
            "of_unknown_labels": self.unknown.total(),
            "unreadable": self.unreadable,
            "classes": [{"label": c, "asked": asked, "right": right} for c, asked, right in self.classes()],
            "confusions": [{"label": c, "answer": answer, "count": n} for c, answer, n in self.confusions()],
        }

    def __str__(self) -> str:
        return "\n".join(part for part in (self._per_class(), self._confused(), self._in_all()) if part)

    def _per_class(self) -> str:
        classes = self.classes()
        if not classes:
            return ""
        shown = [(c, asked, right, f"{right / asked:.1%}") for c, asked, right in classes[:CLASSES_SHOWN]]
        text = table(("class", "asked", "right", ""), shown)
        if left := classes[CLASSES_SHOWN:]:
            text += (
                f"\nand {len(left)} classes more, each at least {left[0][2] / left[0][1]:.1%} right (--json lists all)"
            )
        return text + "\n"

    def _confused(self) -> str:
        confusions = self.confusions()[:CONFUSIONS_SHOWN]
        lines = [f"  {one_line(c)} → {'(new)' if a is None else one_line(a)}: {n}" for c, a, n in confusions]
        return "\n".join(["Commonest confusions:", *lines, ""]) if lines else ""

    def _in_all(self) -> str:
        parts = []
        if self.asked:
            parts.append(f"{self.right} of {self.asked} right ({self.right / self.asked:.1%})")
        if self.unknown:
            parts.append(f"{self.unknown.total()} under {len(self.unknown)} names that are no known labels")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        return "; ".join(parts)
