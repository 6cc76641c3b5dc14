"""`apl learn`: a directory of pictures, one folder per label, into a memory."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption, open_classifier
from apl.cli.terminal import one_line

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier
    from apl.cli.examples import FoundExample
    from apl.cli.seen_files import SeenFiles

FILES_AT_ONCE = 64
"""One transaction each: what an interrupted run has learnt so far stays learnt."""
LABELS_NAMED = 10


@dataclass
class Command:
    """Learn pictures from DIR/LABEL/picture.png, or texts from a table. Run again, it learns only what is new or has
    changed.

    Drawings need no option; for photographs give --model photo.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|TABLE")]
    """One folder per label, with pictures inside (in subfolders too); or a .csv, .tsv or .jsonl with the columns text
    and label."""
    memory: MemoryOption
    name: NameOption = "default"
    model: ModelOption = None
    max_rows: Annotated[int | None, tyro.conf.arg(metavar="ROWS")] = None
    """Keep at most so many rows; when they are reached, the row that matters least goes. The memory remembers it."""
    sigma: Annotated[float | None, tyro.conf.arg(metavar="NATS")] = None
    """The threshold of surprise: an example that surprises less leaves no row."""
    ink: InkOption = "auto"
    again: bool = False
    """Learn every picture, also those that were learnt before (after `apl forget`, for example)."""
    forget_gone: bool = False
    """Forget what was learnt from pictures of this directory that are not there any more."""
    json: JsonOption = False

    def run(self) -> int:
        from apl.classifier.interleave import interleaved
        from apl.classifier.parameters import check_parameters
        from apl.cli.batches import photograph_remark
        from apl.cli.examples import find_examples
        from apl.cli.seen_files import SeenFiles
        from apl.progress import progress

        found = find_examples(self.directory)
        texts = isinstance(found.examples[0].content, str)
        parameters = {name: value for name in ("max_rows", "sigma") if (value := getattr(self, name)) is not None}
        check_parameters(**parameters)
        for remark in found.remarks:
            print(one_line(remark), file=sys.stderr)
        new_model = "text" if texts else FOR_DRAWINGS
        with open_classifier(self.memory, self.name, self.model, new_model, ink=self.ink, **parameters) as classifier:
            if texts != (classifier.input_kind == "text"):
                kinds = ("texts", "pictures") if texts else ("pictures", "texts")
                raise ValueError(f"{self.directory} holds {kinds[0]}, and this memory knows {kinds[1]}")
            self.photographs = 0
            seen = SeenFiles(classifier.store.settings(), self.directory)
            files = [(example, seen.source(example.source)) for example in found.examples]
            result = {"learnt": 0, "written": 0, "replaced": 0, "evicted": 0, "forgotten": 0, "unreadable": 0}
            self._forget_gone(classifier, seen, {source for _, source in files}, result)
            before = len(classifier)
            marked = once_each(self._marked(files, result))
            fresh = [file for file in marked if self.again or not seen.knows(file[1], file[2])]
            result["already_known"] = len(marked) - len(fresh)
            fresh = [fresh[i] for i in interleaved([example.label for example, _, _ in fresh])]
            with progress("examples", len(fresh)) as done:
                for start in range(0, len(fresh), FILES_AT_ONCE):
                    self._learn(classifier, seen, fresh[start : start + FILES_AT_ONCE], result)
                    done(min(start + FILES_AT_ONCE, len(fresh)))
            counts = classifier.counts()
            # A row may come and go within one transaction; what is there in the end settles how many went.
            kept = before + result["written"] - result["replaced"]
            result |= {"evicted": kept - len(classifier), "rows": len(classifier), "classes": len(counts)}
            lost = sorted({example.label for example in found.examples} - set(counts))
            budget = classifier.max_rows
        if (remark := photograph_remark(self.photographs, result["learnt"])) is not None:
            print(remark, file=sys.stderr)
        if lost and fresh and budget is not None and result["evicted"]:
            named = one_line(", ".join(lost[:LABELS_NAMED])) + (" …" if len(lost) > LABELS_NAMED else "")
            print(
                f"{budget} rows are not enough: {len(lost)} labels of this directory have no row left ({named}); "
                f"give --max-rows {result['classes'] + len(lost)} or more, and --again",
                file=sys.stderr,
            )
        if self.json:
            print(json_format.dumps({**result, "labels_without_rows": lost}, ensure_ascii=False))
        else:
            print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in result.items()))
            if result["already_known"] and lost and not result["evicted"]:
                print(f"{len(lost)} labels have no row: `apl learn --again` learns them anew", file=sys.stderr)
        return 1 if result["unreadable"] else 0

    def _marked(
        self, files: list[tuple[FoundExample, str]], result: dict[str, int]
    ) -> list[tuple[FoundExample, str, str]]:
        marked = []
        for example, source in files:
            try:
                marked.append((example, source, example.mark(source)))
            except ValueError as error:
                self._unreadable(example, error, result)
        return marked

    def _unreadable(self, found: FoundExample, error: ValueError, result: dict[str, int]) -> None:
        print(one_line(f"{found.where}: {error}"), file=sys.stderr)
        result["unreadable"] += 1

    def _forget_gone(
        self, classifier: OnlineClassifier, seen: SeenFiles, present: set[str], result: dict[str, int]
    ) -> None:
        gone = seen.gone(present)
        if not gone:
            return
        if not self.forget_gone:
            print(f"{len(gone)} examples learnt from here are gone: --forget-gone forgets them", file=sys.stderr)
            return
        for source in gone:
            classifier.forget(source=source)
        result["forgotten"] += len(gone)
        classifier.store.update_settings(seen.entry(dict.fromkeys(gone)))

    def _learn(
        self,
        classifier: OnlineClassifier,
        seen: SeenFiles,
        files: list[tuple[FoundExample, str, str]],
        result: dict[str, int],
    ) -> None:
        from apl.cli.batches import embed_batch

        named = {found.where: (source, mark) for found, source, mark in files}
        batch = embed_batch(classifier, [found for found, _, _ in files])
        for failure in batch.failures:
            print(one_line(failure), file=sys.stderr)
        result["unreadable"] += len(batch.failures)
        self.photographs += batch.photographs
        if batch.embedded is None:
            return
        marks = dict(named[found.where] for found in batch.examples)
        labels = [found.label for found in batch.examples]
        # What changed under its old name replaces what was learnt from it. It is noted as gone first: whoever is interrupted
        # in between has it learnt by the next run.
        if known := [source for source in marks if seen.is_known(source)]:
            classifier.store.update_settings(seen.entry(dict.fromkeys(known)))
        for source in marks:
            result["replaced"] += len(classifier.forget(source=source))
        receipts = classifier.learn_many(batch.embedded, labels, sources=list(marks), settings=seen.entry(marks))
        result["learnt"] += len(receipts)
        result["written"] += sum(receipt.written for receipt in receipts)


def once_each(files: list[tuple[FoundExample, str, str]]) -> list[tuple[FoundExample, str, str]]:
    """A table may hold a text twice: the first line counts, and one that contradicts it is told."""
    first: dict[str, tuple[FoundExample, str, str]] = {}
    for file in files:
        before = first.setdefault(file[1], file)[0]
        if before.label != file[0].label:
            told = (
                f"{file[0].where}: left out, {before.where.rpartition(', ')[2]} says {before.label!r} of the same text"
            )
            print(one_line(told), file=sys.stderr)
    return list(first.values())
