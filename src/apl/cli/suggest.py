"""`apl suggest`: which pictures or texts to label next."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.options import WithClassifier
from apl.cli.terminal import one_line, print_json, table, utf8

if TYPE_CHECKING:
    from apl.classifier.suggest import Suggestion
    from apl.cli.examples import FoundExample


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Name the pictures or texts that are most worth a label, best first, with the reason. Nothing is learnt.

    What looks new comes first, and what several classes compete for; each unlike those before it.
    """

    examples: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|DIR|TEXT|TABLE|- …")]
    """Pictures or directories of pictures; texts or tables of texts (.csv, .tsv, .jsonl). Labels are not looked at."""
    number: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 20
    """How many to name."""

    def run(self) -> int:
        from apl.classifier.inputs import Examples
        from apl.cli.batches import batches
        from apl.cli.examples import asked_examples

        if self.number < 1:
            raise ValueError(f"-n must be at least 1, got {self.number}")
        with self.open(read_only=True) as classifier:
            read: list[FoundExample] = []
            parts: list[Examples] = []
            failures = 0
            for batch in batches(classifier, asked_examples(self.examples, classifier.input_kind)):
                for failure in batch.failures:
                    print(one_line(failure), file=sys.stderr)
                failures += len(batch.failures)
                read += batch.examples
                parts += [] if batch.embedded is None else [batch.embedded]
            found = classifier.suggest(Examples.joined(parts), self.number) if parts else []
        self._show(found, read)
        return 1 if failures else 0

    def _show(self, found: list[Suggestion], read: list[FoundExample]) -> None:
        if self.json:
            for one in found:
                content = read[one.index].content
                kind = "text" if isinstance(content, str) else "image"
                print_json({kind: utf8(str(content)), **one.to_dict()})
        elif found:
            rows = [(read[one.index].where, one.reason, one.probability_new) for one in found]
            print(table(("example", "reason", "new"), rows))
