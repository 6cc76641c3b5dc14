"""`apl predict`: what pictures show, or what texts are about."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.options import AskedExamples, WithClassifier
from apl.cli.terminal import one_line, print_json, remark

if TYPE_CHECKING:
    from apl.classifier.answers import Probabilities
    from apl.classifier.online import OnlineClassifier
    from apl.cli.examples import FoundExample
    from apl.cli.score import Score
    from apl.store import Label

TOP = 5
"""The most probable labels that --json lists."""


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Name what is on pictures, or what texts are about. One line each: which, label, its probability, that of a new
    class.

    A directory stands for all pictures in it, a table for its texts, and - for standard input: a table, or one text (or
    path of a picture) per line. Where folders or the column `label` name classes that the memory knows, a table per
    class follows, and the commonest confusions. --json prints one object per example, then one with the accuracy.
    """

    examples: AskedExamples
    new_above: Annotated[float | None, tyro.conf.arg(metavar="PROBABILITY")] = None
    """Answer "(new)" when the probability of a new class exceeds this, from 0 to 1."""
    false_alarms: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Answer "(new)" so rarely that this share of examples of known classes gets it, as measured on the memory."""
    csv: bool = False
    """Print CSV with a head; the accuracy goes to stderr."""

    def run(self) -> int:
        from apl.classifier.configuration import check_new_above
        from apl.cli.examples import asked_examples

        check_new_above(self.new_above, self.false_alarms)
        if self.csv and self.json:
            raise ValueError("--csv and --json are two forms of the same output: give one of them")
        with self.open(read_only=True) as classifier:
            asked = asked_examples(self.examples, classifier.input_kind)
            if self.false_alarms is not None:
                self.new_above = classifier.new_threshold(self.false_alarms)
            return self._answer(classifier, asked)

    def _answer(self, classifier: OnlineClassifier, asked: list[FoundExample]) -> int:
        from apl.cli.embedding import batches
        from apl.cli.score import Score

        score, known, done, interrupted = Score(), classifier.counts(), 0, False
        if self.csv:
            print("example,label,probability,probability_new,expected")
        try:
            # A bar among answers on the same terminal would tear them apart.
            for batch in batches(classifier, asked, bar=not sys.stdout.isatty()):
                score.unreadable += len(batch.failures)
                if batch.embedded is not None:
                    answers = classifier.predict_proba_many(batch.embedded, top=TOP if self.json else 1)
                    for found, probabilities in zip(batch.examples, answers, strict=True):
                        self._tell(found, probabilities, known, score)
                        done += 1
        except KeyboardInterrupt:
            interrupted = True
            remark(f"interrupted: {done} of {len(asked)} examples are answered")
        if self.json and any(found.label is not None for found in asked):
            print_json(score.to_dict())
        elif score.answers and not self.json:
            print(f"\n{score}", file=sys.stderr if self.csv else sys.stdout)
        return 130 if interrupted else 1 if score.unreadable else 0

    def _tell(self, found: FoundExample, probabilities: Probabilities, known: dict[Label, int], score: Score) -> None:
        from apl.cli.examples import as_label

        label, probability = next(iter(probabilities.items()), (None, 0.0))
        new = probabilities.new_class
        if self.new_above is not None and new > self.new_above:
            label = None
        expected = None if found.label is None else as_label(found.label, known)
        if expected is not None:
            score.add(expected, label)
        elif found.label is not None:
            score.unknown[found.label] += 1
        if self.json:
            top = [{"label": name, "probability": p} for name, p in islice(probabilities.items(), TOP)]
            told = {**found.named(), "label": label, "probabilities": top, "probability_new": new}
            print_json(told if expected is None else {**told, "expected": expected, "right": label == expected})
        elif self.csv:
            (name,) = found.named().values()
            cells = (name, label, f"{probability:.4f}", f"{new:.4f}", found.label)
            csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
        else:
            answer = "(new)" if label is None else one_line(label)
            print(f"{one_line(found.where)}\t{answer}\t{probability:.3f}\tnew {new:.3f}")
