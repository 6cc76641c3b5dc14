"""`apl memory`: list, inspect, copy and verify memories."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, MemoryPlace, NameOption, TrainedModel
from apl.cli.terminal import one_line, print_json, print_result, table

if TYPE_CHECKING:
    from apl.store import Row, Store

Source = Annotated[MemoryPlace, tyro.conf.arg(metavar="SOURCE", help="The memory to take from: a path, or a URL.")]
Target = Annotated[MemoryPlace, tyro.conf.arg(metavar="TARGET", help="The memory to write to; made if needed.")]
SourceName = Annotated[str, tyro.conf.arg(metavar="NAME", help="Which of the memories in SOURCE.")]
TargetName = Annotated[str, tyro.conf.arg(metavar="NAME", help="Which of the memories in TARGET.")]
BOUNDS = ("max_rows", "max_rows_per_class")
ExportPlace = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="DIR|FILE.zip", help="The exported memory, one directory or file."),
]


@dataclass(kw_only=True)
class OneMemory:
    """What commands on one memory have in common."""

    memory: MemoryPlace
    name: NameOption = "default"
    json: JsonOption = False

    def open(self, **options: Any) -> AbstractContextManager[Store]:
        from apl.store import open_store

        return open_store(self.memory, self.name, **options)


@dataclass(kw_only=True)
class TwoMemories:
    """What commands from one memory to another have in common."""

    source: Source
    target: Target
    source_name: SourceName = "default"
    target_name: TargetName = "default"
    json: JsonOption = False

    def open_source(self) -> AbstractContextManager[Store]:
        from apl.store import open_store

        return open_store(self.source, self.source_name, read_only=True)


@dataclass(kw_only=True)
class List:
    """The memories that live in a file or on a server."""

    memory: MemoryPlace
    json: JsonOption = False

    def run(self) -> None:
        from apl.store import list_memories

        found = [
            {"name": m.name, "rows": m.rows, "width": m.width, "encoder": m.fingerprint, "created": _when(m.created)}
            for m in list_memories(self.memory)
        ]
        print_result(found, self.json)


@dataclass(kw_only=True)
class Show(OneMemory):
    """The classes, the model and the rows of a memory."""

    rows: bool = False
    """Every row, not only the classes."""

    def run(self) -> None:
        with self.open(read_only=True) as store:
            described = description(store)
            every = [shown_row(row) for row in store.rows()] if self.rows else []
        if self.json:
            print_json({**described, **({"every_row": every} if self.rows else {})})
            return
        classes, model = described["classes"], described["model"]
        made_by = f"model {one_line(model)}" if model else "vectors"
        print(
            f"{described['name']}: {described['rows']} rows of {len(classes)} classes, {made_by}, "
            f"encoder {described['encoder']}"
        )
        for bound in BOUNDS:
            if bound in described:
                print(f"{bound.replace('_', ' ')}: {described[bound]}")
        print_result(every if self.rows else classes, False)


def description(store: Store) -> dict[str, Any]:
    recorded, info = store.setting("classifier") or {}, store.info
    counts = sorted(store.class_counts().items(), key=lambda item: -item[1][0])
    return {
        "name": info.name,
        "rows": info.rows,
        "width": info.width,
        "encoder": info.fingerprint,
        "model": recorded.get("model") or recorded.get("encoder"),
        **{name: recorded[name] for name in BOUNDS if recorded.get(name)},
        "classes": [{"label": label, "rows": rows} for label, (rows, _) in counts],
    }


def shown_row(row: Row) -> dict[str, Any]:
    return {
        "row": row.id,
        "label": row.label,
        "surprise_nats": row.surprise_nats,
        "written": _when(row.written_at),
        "source": row.source,
    }


@dataclass(kw_only=True)
class Review(OneMemory):
    """Rows whose label looks wrong, most suspicious first: by the other rows, another label is more probable."""

    number: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 20
    """How many to name."""

    def run(self) -> None:
        from apl.classifier.online import OnlineClassifier

        if self.number < 1:
            raise ValueError(f"-n must be at least 1, got {self.number}")
        with OnlineClassifier.load(self.memory, name=self.name, read_only=True) as classifier:
            found = classifier.review()[: self.number]
        if self.json:
            print_json([suspect.to_dict() for suspect in found])
        elif found:
            rows = [(s.row, s.label, s.suggested, s.surprise_nats, s.source) for s in found]
            print(table(("row", "label", "suggested", "surprise", "source"), rows))
        else:
            print("no label looks wrong")


@dataclass(kw_only=True)
class Export(OneMemory):
    """Write a memory to a new directory of safetensors and JSON, or to a .zip of them, as the page of `apl serve` does."""

    directory: ExportPlace

    def run(self) -> None:
        from apl.store.transfer import export_memory

        with self.open(read_only=True) as store:
            rows = export_memory(store, self.directory)
        print_result({"rows": rows, "directory": str(self.directory)}, self.json)


@dataclass(kw_only=True)
class Import:
    """Copy an exported memory, a directory or a .zip, into one that is there or is made."""

    directory: ExportPlace
    memory: MemoryPlace
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> None:
        from apl.store import open_store
        from apl.store.transfer import import_memory, read_exported

        exported = read_exported(self.directory)
        with open_store(self.memory, self.name, fingerprint=exported.fingerprint, width=exported.width) as target:
            print_result(vars(import_memory(exported, target)), self.json)


@dataclass(kw_only=True)
class Merge(TwoMemories):
    """Merge the first memory into the second. Rows of one class with the same key become one; merging again does nothing."""

    def run(self) -> None:
        from apl.store import open_store
        from apl.store.transfer import merge_memories, settings_that_travel

        with (
            self.open_source() as source,
            open_store(self.target, self.target_name, fingerprint=source.fingerprint, width=source.width) as target,
        ):
            if not target.settings():
                target.update_settings(settings_that_travel(source))
            print_result(vars(merge_memories(source, target)), self.json)


@dataclass(kw_only=True)
class Verify(OneMemory):
    """Look for damage; exit status 1 if there is any."""

    def run(self) -> int:
        from apl.store.transfer import verify

        with self.open(read_only=True) as store:
            problems = verify(store)
        if self.json:
            print_json({"problems": problems})
        else:
            print("\n".join(map(one_line, problems)) or "nothing is wrong")
        return 1 if problems else 0


@dataclass(kw_only=True)
class Backup:
    """Copy a file with all its memories. It may be written at the same time."""

    memory: MemoryPlace
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A new file."""
    json: JsonOption = False

    def run(self) -> None:
        from apl.store import backup_memories, list_memories

        backup_memories(self.memory, self.target)
        rows = [info.rows for info in list_memories(self.target)]
        print_result({"memories": len(rows), "rows": sum(rows), "file": str(self.target)}, self.json)


@dataclass(kw_only=True)
class Compact(OneMemory):
    """Give the space of forgotten rows back: the file of a memory shrinks to what it holds."""

    def run(self) -> None:
        with self.open() as store:
            store.compact()
            print_result({"memory": self.name, "rows": store.count()}, self.json)


@dataclass(kw_only=True)
class Reindex(OneMemory):
    """Build the index of a memory on PostgreSQL anew."""

    index: Annotated[str, tyro.conf.arg(metavar="URL")]
    """The vector engine: milvus+http://host:19530."""

    def run(self) -> None:
        with self.open(index=self.index, shared=True) as store:
            print_result({"memory": self.name, "rows": store.reindex()}, self.json)


@dataclass(kw_only=True)
class Reembed(TwoMemories):
    """Compute the keys of a memory again with another model, from the pictures or texts kept in its rows, into a new memory."""

    model: TrainedModel = FOR_DRAWINGS

    def run(self) -> None:
        from apl.classifier.online import OnlineClassifier
        from apl.store import StoreError, delete_memory, find_memory
        from apl.store.transfer import reembed

        with self.open_source() as source:
            # Opening a classifier on a memory in use would change the parameters recorded there.
            if (there := find_memory(self.target, self.target_name)) and there.rows:
                raise StoreError(f"memory {self.target_name!r} is not empty: re-embed into a new one")
            with OnlineClassifier.from_pretrained(self.model, memory=self.target, name=self.target_name) as classifier:
                record = classifier.store.settings()
                try:
                    copied = reembed(source, classifier.store, classifier.embed_payloads)
                except BaseException:
                    classifier.close()
                    if there is None:
                        delete_memory(self.target, self.target_name)
                    raise
                # The settings of the source were copied too; the model of the keys is the new one.
                classifier.store.update_settings(record)
        print_result(vars(copied), self.json)


@dataclass
class Command:
    """List, inspect, copy and verify memories."""

    what: Annotated[
        List | Show | Review | Export | Import | Merge | Verify | Backup | Compact | Reindex | Reembed,
        tyro.conf.arg(name=""),
    ]

    def run(self) -> int | None:
        run: Callable[[], int | None] = self.what.run
        return run()


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
