"""`apl learn`: a directory of pictures, one folder per label, into a memory."""

from __future__ import annotations

import hashlib
import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier
    from apl.cli.seen_files import SeenFiles

FILES_AT_ONCE = 64
"""One transaction each: what an interrupted run has learnt so far stays learnt."""
LABELS_NAMED = 10


@dataclass
class Command:
    """Learn pictures from DIR/LABEL/picture.png. Run again, it learns only what is new or has changed."""

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """One folder per label, with pictures inside (in subfolders too)."""
    memory: MemoryOption
    name: NameOption = "default"
    model: ModelOption = None
    max_rows: Annotated[int | None, tyro.conf.arg(metavar="ROWS")] = None
    """Keep at most so many rows; when they are reached, the row that matters least goes."""
    sigma: Annotated[float | None, tyro.conf.arg(metavar="NATS")] = None
    """The threshold of surprise: an example that surprises less leaves no row."""
    ink: InkOption = "auto"
    again: bool = False
    """Learn every picture, also those that were learnt before (after `apl forget`, for example)."""
    forget_gone: bool = False
    """Forget what was learnt from pictures of this directory that are not there any more."""
    json: JsonOption = False

    def run(self) -> int:
        from apl.classifier.parameters import check_parameters
        from apl.cli.memory_option import open_classifier
        from apl.cli.picture_folder import find_pictures
        from apl.cli.seen_files import SeenFiles
        from apl.cli.show import progress

        folder = find_pictures(self.directory)
        parameters = {name: value for name in ("max_rows", "sigma") if (value := getattr(self, name)) is not None}
        check_parameters(**parameters)
        for remark in folder.remarks:
            print(remark, file=sys.stderr)
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, **parameters) as classifier:
            seen = SeenFiles(classifier.store.settings(), self.directory)
            files = [(path, label, seen.source(self._relative(path))) for path, label in folder.pictures]
            result = {"learnt": 0, "written": 0, "replaced": 0, "evicted": 0, "forgotten": 0, "unreadable": 0}
            before = len(classifier)
            self._forget_gone(classifier, seen, {source for _, _, source in files}, result)
            marked = [(path, label, source, _mark(path, label, source)) for path, label, source in files]
            fresh = [file for file in marked if self.again or not seen.knows(file[2], file[3])]
            result["already_known"] = len(files) - len(fresh)
            with progress("pictures", len(fresh)) as done:
                for start in range(0, len(fresh), FILES_AT_ONCE):
                    self._learn(classifier, seen, fresh[start : start + FILES_AT_ONCE], result)
                    done(min(start + FILES_AT_ONCE, len(fresh)))
            counts = classifier.counts()
            # A row may come and go within one transaction; what is there in the end settles how many went.
            kept = before + result["written"] - result["replaced"] - result["forgotten"]
            result |= {"evicted": kept - len(classifier), "rows": len(classifier), "classes": len(counts)}
            lost = sorted({label for _, label in folder.pictures} - set(counts))
            budget = classifier.max_rows
        if lost and fresh and budget is not None and result["evicted"]:
            named = ", ".join(lost[:LABELS_NAMED]) + (" …" if len(lost) > LABELS_NAMED else "")
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

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _forget_gone(
        self, classifier: OnlineClassifier, seen: SeenFiles, present: set[str], result: dict[str, int]
    ) -> None:
        gone = seen.gone(present)
        if not gone:
            return
        if not self.forget_gone:
            print(f"{len(gone)} pictures learnt from here are gone: --forget-gone forgets them", file=sys.stderr)
            return
        for source in gone:
            result["forgotten"] += len(classifier.forget(source=source))
        classifier.store.update_settings(seen.entry(dict.fromkeys(gone)))

    def _learn(
        self,
        classifier: OnlineClassifier,
        seen: SeenFiles,
        files: list[tuple[Path, str, str, str]],
        result: dict[str, int],
    ) -> None:
        from apl.classifier.images import read_image
        from apl.cli.picture_folder import open_picture

        images, labels, marks = [], [], {}
        for path, label, source, mark in files:
            try:
                image = open_picture(path)
                read_image(image, self.ink)
            except ValueError as error:
                print(f"{path}: {error}", file=sys.stderr)
                result["unreadable"] += 1
                continue
            images.append(image)
            labels.append(label)
            marks[source] = mark
        if not marks:
            return
        # A picture that changed under its old name replaces what was learnt from it.
        for source in marks:
            result["replaced"] += len(classifier.forget(source=source))
        receipts = classifier.learn_many(images, labels, sources=list(marks), settings=seen.entry(marks))
        result["learnt"] += len(receipts)
        result["written"] += sum(receipt.written for receipt in receipts)


def _mark(path: Path, label: str, source: str) -> str:
    """Changes when the picture, its place or its label does."""
    return hashlib.sha256(f"{label}\0{source}\0".encode() + path.read_bytes()).hexdigest()[:16]
