"""What the classifier answers with: probabilities, receipts, explanations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from apl.classifier.notebook import content, html_table
from apl.store import Label

CARRIED, MOST_CARRIED = 0.9, 8
"""The share of an answer that the rows shown for it carry, and how many are shown at most."""
NEAREST = 5


class Probabilities(dict[Label, float]):
    """The probability of each known class, given that it is one of them; they sum to 1. The classifier puts the
    largest first.

    `new_class` stands apart: the probability that it is none of them. With an empty memory there are no known
    classes, and it is 1.

    Examples:
        >>> Probabilities({"a": 0.75, "b": 0.25}, new_class=0.1)["a"]
        0.75
    """

    def __init__(self, known: dict[Label, float], new_class: float) -> None:
        super().__init__(known)
        self.new_class = new_class

    def __repr__(self) -> str:
        return f"Probabilities({super().__repr__()}, new_class={self.new_class:.4g})"


class Forgotten(list[int]):
    """The ids of the rows that went. `rebuilt`: ids of rows that are now the mean of what others contributed to them."""

    def __init__(self, gone: Iterable[int], rebuilt: Iterable[int] = ()) -> None:
        super().__init__(gone)
        self.rebuilt = tuple(rebuilt)


@dataclass(frozen=True)
class Receipt:
    """What became of one example.

    Examples:
        >>> from apl import OnlineClassifier
        >>> receipt = OnlineClassifier().learn_one([0, 1], "a")
        >>> receipt.written, receipt.new_label, receipt.predicted
        (True, True, None)
    """

    label: Label
    surprise_nats: float
    """-ln of the probability the true label had; more than `threshold_nats` is worth a row."""
    threshold_nats: float
    written: bool
    row: int | None
    """The row's id in the memory; None if not written, or if a later example of the same batch evicted it."""
    merged_into: int | None
    """The row it was merged into because it did not surprise; None if it was written, or ignored."""
    evicted: tuple[int, ...]
    """Rows that had to go to make room."""
    predicted: Label | None
    """The answer before the label was known; None if no class was known."""
    probability: float
    """Of the true label, among the known classes (0 for a label never seen)."""
    probability_new: float
    new_label: bool
    """This was the first example of its class."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        return html_table({"field": name, "value": value} for name, value in self.to_dict().items())


@dataclass(frozen=True)
class LabelSet:
    """The labels that one example may have.

    Examples:
        >>> from apl import OnlineClassifier
        >>> clf = OnlineClassifier()
        >>> _ = clf.learn_many([[n % 2, n / 40] for n in range(40)], ["even", "odd"] * 20)
        >>> clf.predict_set([0, 0.5]).labels
        ('even',)
    """

    labels: tuple[Label, ...]
    """The most probable first. Empty if every known label would be unusual, which is an answer as well."""
    new: bool
    """A class that was never shown belongs to the set."""
    coverage: float
    """The share of examples whose label, or whose being new, such sets contain."""
    examples: int
    """Past examples that the set rests on. With fewer than coverage / (1 - coverage), 9 for 0.9, it holds every label."""

    def __len__(self) -> int:
        return len(self.labels) + self.new

    def __contains__(self, label: object) -> bool:
        return any(label == one and isinstance(label, str) == isinstance(one, str) for one in self.labels)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "labels": list(self.labels)}


@dataclass(frozen=True)
class RecalledRow:
    """One neighbour of the query."""

    row: int
    label: Label
    distance: float
    weight: float
    """Its share of the answer."""
    source: str | None
    examples: int = 1
    """Number of examples that the row is the mean of."""
    payload: bytes | None = None
    """The text or the picture that was kept with the row, as bytes; only of rows that carried the answer."""

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "payload"}


@dataclass(frozen=True)
class ReaderOpinion:
    """One of the readers that share the answer (see `apl.reading.readers`)."""

    reader: str
    weight: float
    """By how well it predicted the examples so far; of scores in units of their usual spread."""
    predicted: Label


def carried(rows: Iterable[RecalledRow]) -> tuple[RecalledRow, ...]:
    """The heaviest rows that together weigh `CARRIED` of all, at most `MOST_CARRIED`."""
    heaviest = sorted(rows, key=lambda row: -row.weight)
    total, found, weight = sum(row.weight for row in heaviest), [], 0.0
    for row in heaviest[:MOST_CARRIED]:
        if weight >= CARRIED * total:
            break
        found.append(row)
        weight += row.weight
    return tuple(found)


@dataclass(frozen=True)
class Explanation:
    """Why it answers so: the rows it recalled, and the readers that share the answer.

    Examples:
        >>> from apl import OnlineClassifier
        >>> clf = OnlineClassifier()
        >>> _ = clf.learn_many([[0, 0], [0, 1], [5, 5]], ["low", "low", "high"])
        >>> clf.explain([0, 0.4]).why
        "1 of the 2 nearest rows is 'low', and the mean of 'low' is the closest; next comes 'high' with 0%."
    """

    predicted: Label | None
    probabilities: Probabilities
    neighbours: tuple[RecalledRow, ...]
    """Nearest first. The weights of the rows of a class add up to its probability, if any were recalled."""
    readers: tuple[ReaderOpinion, ...] = ()
    """Empty if a single reader answers."""

    @property
    def probability_new(self) -> float:
        return self.probabilities.new_class

    def _repr_html_(self) -> str:
        shown = [
            {"kept": content(row.payload), "label": row.label, "weight": row.weight, "examples": row.examples}
            for row in self.carried
        ]
        return html_table(shown, caption=f"{self.predicted!r}: {self.why}")

    @property
    def carried(self) -> tuple[RecalledRow, ...]:
        """The few rows that carried most of the answer, the heaviest first."""
        return carried(self.neighbours)

    @property
    def why(self) -> str:
        """One sentence."""
        if self.predicted is None:
            return "Nothing is known yet."
        if not self.neighbours:
            return f"No row was recalled; {self.predicted!r} is the most probable class."
        nearest = self.neighbours[:NEAREST]
        same = sum(row.label == self.predicted for row in nearest)
        said = f"{same} of the {len(nearest)} nearest rows {'is' if same == 1 else 'are'} {self.predicted!r}"
        if len(nearest) == 1:
            said = f"the nearest row is {nearest[0].label!r}"
        mean = next((opinion.predicted for opinion in self.readers if opinion.reader == "class mean"), None)
        if mean is not None and len(self.probabilities) > 1:
            closest = f"although the mean of {mean!r} is closer"
            said += f", {f'and the mean of {mean!r} is the closest' if mean == self.predicted else closest}"
        if len(self.probabilities) > 1:
            label, probability = list(self.probabilities.items())[1]
            said += f"; next comes {label!r} with {probability:.0%}"
        return said[0].upper() + said[1:] + "."

    def to_dict(self) -> dict[str, Any]:
        return {
            "predicted": self.predicted,
            "probabilities": [{"label": label, "probability": p} for label, p in self.probabilities.items()],
            "probability_new": self.probability_new,
            "why": self.why,
            "neighbours": [neighbour.to_dict() for neighbour in self.neighbours],
            "readers": [asdict(opinion) for opinion in self.readers],
        }
