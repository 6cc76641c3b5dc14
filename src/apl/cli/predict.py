"""`apl predict`: what pictures show, or what texts are about."""

from __future__ import annotations

import csv as csv_format
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.cli.options import WithClassifier
from apl.cli.terminal import one_line, print_json, utf8

if TYPE_CHECKING:
    from apl.classifier.answers import Probabilities
    from apl.cli.examples import FoundExample
    from apl.cli.score import Score
    from apl.store import Label


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Name what is on pictures, or what texts are about. One line each: which, label, its probability, that of a new
    class.

    A directory stands for all pictures in it, a table for its texts, and - for standard input: a table, or one text (or
    path of a picture) per line. Where folders or the column `label` name classes that the memory knows, a table per
    class follows, and the commonest confusions. --json prints one object per example, then one with the accuracy.
    """

    examples: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|DIR|TEXT|TABLE|- …")]
    """Pictures or directories of pictures; texts or tables of texts (.csv, .tsv, .jsonl)."""
    new_above: Annotated[float | None, tyro.conf.arg(metavar="PROBABILITY")] = None
    """Answer "(new)" when the probability of a new class exceeds this, from 0 to 1."""
    false_alarms: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Answer "(new)" so rarely that this share of examples of known classes gets it, as measured on the memory."""
    top: Annotated[int, tyro.conf.arg(metavar="LABELS")] = 5
    """With --json: how many of the most probable labels to list."""
    csv: bool = False
    """Print CSV with a head; the accuracy goes to stderr."""

    def run(self) -> int:
        from apl.classifier.configuration import check_new_above
        from apl.cli.examples import asked_examples

        check_new_above(self.new_above, self.false_alarms)
        if self.top < 1:
            raise ValueError(f"top must be at least 1, got {self.top}")
        if self.csv and self.json:
            raise ValueError("--csv and --json are two forms of the same output: give one of them")
        with self.open(read_only=True) as classifier:
            asked = asked_examples(self.examples, classifier.input_kind)
            if self.false_alarms is not None:
                self.new_above = classifier.new_threshold(self.false_alarms)
            return self._answer(classifier, asked)

    def _answer(self, classifier: Any, asked: list[FoundExample]) -> int:
        from apl.cli.batches import batches, photograph_remark
        from apl.cli.score import Score
        from apl.progress import progress

        score, known, top = Score(), classifier.counts(), self.top if self.json else 1
        done = photographs = 0
        interrupted = False
        if self.csv:
            print_csv(("example", "label", "probability", "probability_new", "expected"))
        # In a terminal the answers themselves show how far it is.
        with progress("examples", len(asked), shown=not sys.stdout.isatty()) as show:
            try:
                for batch in batches(classifier, asked):
                    for failure in batch.failures:
                        print(one_line(failure), file=sys.stderr)
                    answers = [] if batch.embedded is None else classifier.predict_proba_many(batch.embedded, top=top)
                    for found, probabilities in zip(batch.examples, answers, strict=True):
                        self._tell(found, probabilities, known, score)
                        done += 1
                    score.unreadable += len(batch.failures)
                    photographs += batch.photographs
                    show(done + score.unreadable)
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            print(f"interrupted: {done} of {len(asked)} examples are answered", file=sys.stderr)
        if (remark := photograph_remark(photographs, done)) is not None:
            print(remark, file=sys.stderr)
        if any(found.label is not None for found in asked):
            self._sum_up(score)
        return 130 if interrupted else 1 if score.unreadable else 0

    def _sum_up(self, score: Score) -> None:
        if self.json:
            print_json(score.to_dict())
        elif self.csv:
            print(score, file=sys.stderr)
        else:
            print(f"\n{score}")

    def _tell(self, found: FoundExample, probabilities: Probabilities, known: dict[Label, int], score: Score) -> None:
        label, probability = next(iter(probabilities.items()), (None, 0.0))
        if self.new_above is not None and probabilities.new_class > self.new_above:
            label = None
        expected = None if found.label is None else as_label(found.label, known)
        if expected is not None:
            score.add(expected, label)
        elif found.label is not None:
            score.unknown[found.label] += 1
        if self.json:
            self._print_json(found, label, expected, probabilities)
        elif self.csv:
            text = utf8(str(found.content))
            print_csv((text, label, f"{probability:.4f}", f"{probabilities.new_class:.4f}", found.label))
        else:
            answer = "(new)" if label is None else one_line(label)
            print(f"{one_line(found.where)}\t{answer}\t{probability:.3f}\tnew {probabilities.new_class:.3f}")

    def _print_json(
        self, found: FoundExample, label: Label | None, expected: Label | None, probabilities: Probabilities
    ) -> None:
        answer: dict[str, Any] = {
            "text" if isinstance(found.content, str) else "image": utf8(str(found.content)),
            "label": label,
            "probabilities": [{"label": name, "probability": p} for name, p in islice(probabilities.items(), self.top)],
            "probability_new": probabilities.new_class,
        }
        if expected is not None:
            answer |= {"expected": expected, "right": label == expected}
        print_json(answer)


def print_csv(values: Iterable[object]) -> None:
    csv_format.writer(sys.stdout, lineterminator="\n").writerow(["" if value is None else value for value in values])


def as_label(name: str, known: dict[Label, int]) -> Label | None:
    """The known label that a folder's name means: itself, or the number it spells."""
    if name in known:
        return name
    try:
        number = int(name)
    except ValueError:
        return None
    return number if number in known else None
