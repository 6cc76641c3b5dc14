"""`apl learn`: a directory of pictures, one folder per label, or a table of texts, into a memory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import WithClassifier
from apl.cli.terminal import counted, one_line, print_json, print_result, remark
from apl.cli.workers import prepare

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier
    from apl.cli.examples import FoundExample
    from apl.cli.learnt import Learnt

LABELS_NAMED = 10


@dataclass
class Counts:
    """What became of the examples."""

    learnt: int = 0
    written: int = 0
    replaced: int = 0
    evicted: int = 0
    forgotten: int = 0
    unreadable: int = 0
    already_known: int = 0
    rows: int = 0
    classes: int = 0


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Learn pictures from DIR/LABEL/picture.png, or texts from a table. Run again, it learns only what is new or has
    changed.

    Drawings need no option; for photographs give --model photo. Ctrl-C keeps what is learnt, and the same command goes on
    from there.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|TABLE")]
    """One folder per label, with pictures inside; or a .csv, .tsv or .jsonl with the columns text and label."""
    max_rows: Annotated[int | None, tyro.conf.arg(metavar="ROWS")] = None
    """Keep at most this many rows; beyond it, the row that matters least goes. The memory keeps this setting."""
    sigma: Annotated[float | None, tyro.conf.arg(metavar="NATS")] = None
    """The threshold of surprise: an example that surprises less gets no row of its own."""
    again: bool = False
    """Learn every example, also those that were learnt before."""
    forget_gone: bool = False
    """Forget what was learnt from pictures or texts of this name that are not there any more."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Read and embed in this many processes; with --ray, this many batches at a time. The memory is the same."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Read and embed on a Ray cluster: HOST:PORT, auto, or local. DIR must be at the same path on every node."""
    verbose: bool = False
    """Print all counts."""

    def run(self) -> int:
        from apl.classifier.configuration import check_parameters
        from apl.cli.examples import labelled_examples

        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.workers not in (None, 1) and self.ray is None:
            prepare()
        found = labelled_examples(self.directory)
        texts = isinstance(found[0].content, str)
        parameters = {name: value for name in ("max_rows", "sigma") if (value := getattr(self, name)) is not None}
        check_parameters(**parameters)
        with self.open("text" if texts else FOR_DRAWINGS, **parameters) as classifier:
            if texts != (classifier.input_kind == "text"):
                kinds = ("texts", "pictures") if texts else ("pictures", "texts")
                raise ValueError(f"{self.directory} holds {kinds[0]}, and this memory knows {kinds[1]}")
            counts, interrupted = self._learn_new(classifier, found)
            lost = sorted({str(one.label) for one in found} - set(map(str, classifier.counts())))
            if classifier.max_rows is not None and counts.evicted and lost:
                named = ", ".join(lost[:LABELS_NAMED]) + (" …" if len(lost) > LABELS_NAMED else "")
                remark(
                    f"{classifier.max_rows} rows are not enough: {len(lost)} labels of this directory have no row left "
                    f"({named}); give --max-rows {counts.classes + len(lost)} or more"
                )
        if self.json:
            print_json({**asdict(counts), "labels_without_rows": lost})
        else:
            self._sum_up(counts, texts)
        return 130 if interrupted else 1 if counts.unreadable else 0

    def _learn_new(self, classifier: OnlineClassifier, found: list[FoundExample]) -> tuple[Counts, bool]:
        """Learn what the memory does not hold yet; True if Ctrl-C ended it."""
        from apl.classifier.inputs import interleaved
        from apl.cli.learnt import Learnt, once_each

        learnt = Learnt(classifier.store, found[0].place.partition("/")[0])
        present, unreadable = once_each(found)
        # The order of all, also of those that are known: a run that was interrupted goes on as if it had not been.
        order = interleaved([one.label for one in present])
        fresh = [present[i] for i in order if self.again or not learnt.holds(present[i])]
        gone = learnt.gone(present)
        counts = Counts(unreadable=unreadable, already_known=len(present) - len(fresh))
        if gone and self.forget_gone:
            counts.forgotten = len(gone)
            for source in gone:
                classifier.forget(source=source)
        elif gone:
            remark(f"{len(gone)} examples learnt from here are gone: --forget-gone forgets them")
        before, interrupted = len(classifier), False
        try:
            self._learn(classifier, learnt, fresh, counts)
        except KeyboardInterrupt:
            interrupted = True
            remark(f"interrupted: {len(fresh) - counts.learnt} examples are left, the same command goes on with them")
        # A row may come and go within one transaction; what is there in the end settles how many went.
        counts.evicted = before + counts.written - counts.replaced - len(classifier)
        counts.rows, counts.classes = len(classifier), len(classifier.counts())
        return counts, interrupted

    def _learn(
        self, classifier: OnlineClassifier, learnt: Learnt, fresh: Sequence[FoundExample], counts: Counts
    ) -> None:
        """Batch by batch, each in one transaction: what an interrupted run has learnt so far stays learnt."""
        from apl.cli.embedding import batches

        for batch in batches(classifier, fresh, self.workers, self.ray):
            counts.unreadable += len(batch.failures)
            if batch.embedded is not None:
                # If it is interrupted between these two, the next run learns what is missing.
                for earlier in (source for one in batch.examples for source in learnt.earlier(one)):
                    counts.replaced += len(classifier.forget(source=earlier))
                labels, sources = [one.label for one in batch.examples], [one.source for one in batch.examples]
                receipts = classifier.learn_many(batch.embedded, labels, sources=sources)
                counts.learnt += len(receipts)
                counts.written += sum(receipt.written for receipt in receipts)

    def _sum_up(self, counts: Counts, texts: bool) -> None:
        if self.verbose:
            print_result(asdict(counts), False)
        done = (
            f"Nothing new: {counted(counts.already_known, 'example')} learnt before"
            if counts.already_known
            else "Nothing learnt"
        )
        if counts.learnt:
            done = f"Learnt {counted(counts.learnt, 'example')}, {counts.written} of them surprising"
        unreadable = f"; {counts.unreadable} could not be read" if counts.unreadable else ""
        memory, name = self.memory, ""
        if self.name != "default":
            memory, name = f"{memory} ({self.name})", f" --name {self.name}"
        held = f"{counted(counts.rows, 'row')} of {counted(counts.classes, 'class')}"
        print(one_line(f"{done}{unreadable}. {memory} holds {held}."))
        if counts.rows:
            asked = "TEXT" if texts else "IMAGE"
            print(one_line(f"Next: apl predict {asked} --memory {shlex.quote(self.memory)}{name}"))
