"""How many answers are right: in all, per class, and which classes are confused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from apl.cli.terminal import counted, one_line, table
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

    def classes(self) -> list[tuple[Label, int, int]]:
        """Label, asked and right of each class, those with the smallest share of right answers first."""
        asked: Counter[Label] = Counter()
        for (expected, _), count in self.answers.items():
            asked[expected] += count
        found = [(label, count, self.answers[label, label]) for label, count in asked.items()]
        return sorted(found, key=lambda c: (c[2] / c[1], -c[1], str(c[0])))

    def confusions(self) -> list[tuple[Label, Label | None, int]]:
        """Expected label, answer and how often, the commonest first."""
        wrong = [(expected, answer, n) for (expected, answer), n in self.answers.items() if expected != answer]
        return sorted(wrong, key=lambda pair: (-pair[2], str(pair[0]), str(pair[1])))

    def to_dict(self) -> dict[str, object]:
        classes = self.classes()
        asked, right = self.answers.total(), sum(right for _, _, right in classes)
        return {
            "asked": asked,
            "right": right,
            "accuracy": right / asked if asked else None,
            "of_unknown_labels": self.unknown.total(),
            "unreadable": self.unreadable,
            "classes": [{"label": c, "asked": asked, "right": right} for c, asked, right in classes],
            "confusions": [{"label": c, "answer": answer, "count": n} for c, answer, n in self.confusions()],
        }

    def __str__(self) -> str:
        """A table per class, the commonest confusions, and how many are right in all."""
        classes, confusions = self.classes(), self.confusions()[:CONFUSIONS_SHOWN]
        lines, in_all = [], []
        if classes:
            shown = [(c, asked, right, f"{right / asked:.1%}") for c, asked, right in classes[:CLASSES_SHOWN]]
            lines.append(table(("class", "asked", "right", ""), shown))
            asked, right = self.answers.total(), sum(right for _, _, right in classes)
            in_all.append(f"{right} of {asked} right ({right / asked:.1%})")
            if left := classes[CLASSES_SHOWN:]:
                least = left[0][2] / left[0][1]
                lines.append(f"and {len(left)} classes more, each at least {least:.1%} right (--json lists all)")
            lines.append("")
        if confusions:
            wrong = [f"  {one_line(c)} → {'(new)' if a is None else one_line(a)}: {n}" for c, a, n in confusions]
            lines += ["Commonest confusions:", *wrong, ""]
        if self.unknown:
            in_all.append(
                f"{self.unknown.total()} of {counted(len(self.unknown), 'class')} that the memory does not know"
            )
        if self.unreadable:
            in_all.append(f"{self.unreadable} unreadable")
        return "\n".join([*lines, "; ".join(in_all)])
