"""`apl learn`: a directory of pictures, one folder per label, or a table of texts, into a memory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import WithClassifier
from apl.cli.terminal import one_line, print_json, print_result

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier
    from apl.cli.batches import Batch
    from apl.cli.examples import FoundExample
    from apl.cli.sources import Learnt

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

    def fail(self, failure: str) -> None:
        print(one_line(failure), file=sys.stderr)
        self.unreadable += 1


@dataclass(kw_only=True)
class Command(WithClassifier):
    """Learn pictures from DIR/LABEL/picture.png, or texts from a table. Run again, it learns only what is new or has
    changed.

    Drawings need no option; for photographs give --model photo. Ctrl-C keeps what is learnt, and the same command goes on
    from there.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|TABLE")]
    """One folder per label, with pictures inside (in subfolders too); or a .csv, .tsv or .jsonl with the columns text
    and label."""
    max_rows: Annotated[int | None, tyro.conf.arg(metavar="ROWS")] = None
    """Keep at most this many rows; beyond it, the row that matters least goes. The memory keeps this setting."""
    sigma: Annotated[float | None, tyro.conf.arg(metavar="NATS")] = None
    """The threshold of surprise: an example that surprises less gets no row of its own."""
    again: bool = False
    """Learn every example, also those that were learnt before."""
    forget_gone: bool = False
    """Forget what was learnt from pictures or texts of this name that are not there any more."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Read and embed in this many processes; with --ray, in this many actors. One process learns, in the same order, so
    the memory is the same."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Read and embed on a Ray cluster: HOST:PORT, auto, or local for one on this machine. DIR must be at the same path on
    every node."""
    verbose: bool = False
    """Print all counts."""

    def run(self) -> int:
        from apl.classifier.configuration import check_parameters
        from apl.cli.examples import labelled_examples

        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
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
            self._warn_of_budget(classifier.max_rows, counts, lost)
        if self.json:
            print_json({**asdict(counts), "labels_without_rows": lost})
        else:
            self._sum_up(counts, texts)
        return 130 if interrupted else 1 if counts.unreadable else 0

    def _learn_new(self, classifier: OnlineClassifier, found: list[FoundExample]) -> tuple[Counts, bool]:
        """Learn what the memory does not hold yet; True if Ctrl-C ended it."""
        from apl.classifier.inputs import interleaved
        from apl.cli.sources import Learnt

        counts, learnt = Counts(), Learnt(classifier.store, found[0])
        present = once_each(readable(found, counts))
        self._forget_gone(classifier, learnt.gone(present), counts)
        # The order of all, also of those that are known: a run that was interrupted goes on as if it had not been.
        order = interleaved([one.label for one in present])
        fresh = [present[i] for i in order if self.again or not learnt.holds(present[i])]
        counts.already_known = len(present) - len(fresh)
        before, interrupted = len(classifier), False
        try:
            self._learn(classifier, learnt, fresh, counts)
        except KeyboardInterrupt:
            interrupted = True
            left = len(fresh) - counts.learnt
            print(f"interrupted: {left} examples are left, the same command goes on with them", file=sys.stderr)
        # A row may come and go within one transaction; what is there in the end settles how many went.
        counts.evicted = before + counts.written - counts.replaced - len(classifier)
        counts.rows, counts.classes = len(classifier), len(classifier.counts())
        return counts, interrupted

    def _forget_gone(self, classifier: OnlineClassifier, gone: list[str], counts: Counts) -> None:
        if gone and not self.forget_gone:
            print(f"{len(gone)} examples learnt from here are gone: --forget-gone forgets them", file=sys.stderr)
        elif gone:
            for source in gone:
                classifier.forget(source=source)
            counts.forgotten += len(gone)

    def _learn(self, classifier: OnlineClassifier, learnt: Learnt, fresh: list[FoundExample], counts: Counts) -> None:
        """Batch by batch, each in one transaction: what an interrupted run has learnt so far stays learnt."""
        from apl.cli.batches import photograph_remark
        from apl.progress import progress

        photographs = 0
        with progress("examples", len(fresh)) as done:
            for batch in self._batches(classifier, fresh):
                for failure in batch.failures:
                    counts.fail(failure)
                if batch.embedded is not None:
                    these = batch.examples
                    # If it is interrupted between these two, the next run learns what is missing.
                    counts.replaced += sum(len(classifier.forget(source=s)) for o in these for s in learnt.earlier(o))
                    labels, sources = [one.label for one in these], [one.source for one in these]
                    receipts = classifier.learn_many(batch.embedded, labels, sources=sources)
                    counts.learnt += len(receipts)
                    counts.written += sum(receipt.written for receipt in receipts)
                photographs += batch.photographs
                done(counts.learnt + counts.unreadable)
        if (remark := photograph_remark(photographs, counts.learnt)) is not None:
            print(remark, file=sys.stderr)

    def _batches(self, classifier: OnlineClassifier, examples: list[FoundExample]) -> Iterator[Batch]:
        """The examples in their order, read and embedded where --workers and --ray say."""
        if self.ray is not None:
            from apl.cli.ray_workers import embed_with_ray

            return embed_with_ray(classifier, examples, self.ray, self.workers)
        if self.workers is not None and self.workers > 1:
            from apl.cli.workers import embed_in_processes

            return embed_in_processes(classifier, examples, self.workers)
        from apl.cli.batches import batches

        return batches(classifier, examples)

    def _warn_of_budget(self, budget: int | None, counts: Counts, lost: list[str]) -> None:
        if budget is None or not lost or not counts.evicted:
            return
        named = one_line(", ".join(lost[:LABELS_NAMED])) + (" …" if len(lost) > LABELS_NAMED else "")
        print(
            f"{budget} rows are not enough: {len(lost)} labels of this directory have no row left ({named}); "
            f"give --max-rows {counts.classes + len(lost)} or more",
            file=sys.stderr,
        )

    def _sum_up(self, counts: Counts, texts: bool) -> None:
        memory = self.memory if self.name == "default" else f"{self.memory} ({self.name})"
        holds = f"holds {counts.rows} rows of {counts.classes} classes"
        if self.verbose:
            print_result(asdict(counts), False)
        done = f"Nothing new: {counts.already_known} examples are known"
        if counts.learnt:
            done = f"Learnt {counts.learnt} examples; {counts.written} of them surprised"
        unreadable = f", {counts.unreadable} cannot be read" if counts.unreadable else ""
        print(one_line(f"{done}{unreadable}. {memory} {holds}."))
        name = "" if self.name == "default" else f" --name {self.name}"
        asked = "TEXT" if texts else "IMAGE"
        print(one_line(f"Next: apl predict {asked} --memory {shlex.quote(self.memory)}{name}"))


def readable(found: list[FoundExample], counts: Counts) -> list[FoundExample]:
    """The examples that can be read, with their sources."""
    read = []
    for example in found:
        try:
            read.append(example.with_source())
        except ValueError as error:
            counts.fail(f"{example.where}: {error}")
    return read


def once_each(examples: list[FoundExample]) -> list[FoundExample]:
    """A table may hold a text twice: the first line counts, and one that contradicts it is reported."""
    first: dict[str, FoundExample] = {}
    for now in examples:
        before = first.setdefault(now.source, now)
        if before.label != now.label:
            line = before.where.rpartition(", ")[2]
            print(one_line(f"{now.where}: left out, {line} says {before.label!r} of the same text"), file=sys.stderr)
    return list(first.values())
