"""`apl suggest`: which pictures or texts to label next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from apl.cli.options import AskedExamples, NumberOption, WithClassifier, check_number
from apl.cli.terminal import print_json, table

if TYPE_CHECKING:
    from apl.classifier.inputs import Examples
    from apl.cli.examples import FoundExample


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Name the pictures or texts that are most worth a label, best first, with the reason. Nothing is learnt.

    Typical examples of unknown groups come first, then those between classes; outliers and copies come last. Labels are not
    looked at.
    """

    examples: AskedExamples
    number: NumberOption = 20

    def run(self) -> int:
        from apl.classifier.inputs import Examples
        from apl.cli.embedding import batches
        from apl.cli.examples import asked_examples

        check_number(self.number)
        read: list[FoundExample] = []
        parts: list[Examples] = []
        with self.open(read_only=True) as classifier:
            asked = asked_examples(self.examples, classifier.input_kind)
            for batch in batches(classifier, asked):
                read += batch.examples
                parts += [] if batch.embedded is None else [batch.embedded]
            found = classifier.suggest(Examples.joined(parts), self.number) if parts else []
        if self.json:
            for one in found:
                print_json({**read[one.index].named(), **one.to_dict()})
        elif found:
            rows = [(read[one.index].where, one.reason, one.probability_new) for one in found]
            print(table(("example", "reason", "new"), rows))
        return 1 if len(read) < len(asked) else 0
