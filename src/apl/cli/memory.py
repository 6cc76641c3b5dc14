"""`apl memory`: list, inspect, copy and verify memories."""

from __future__ import annotations

import json as json_format
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, MemoryPlace, NameOption, TrainedModel
from apl.cli.terminal import one_line, table

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


def show(result: Any, as_json: bool) -> None:
    if as_json:
        print(json_format.dumps(result, ensure_ascii=False))
        return
    for line in result if isinstance(result, list) else [result]:
        print("  ".join(f"{name} {one_line(value)}" for name, value in line.items()))


@dataclass
class List:
    """The memories that live in a file or on a server."""

    memory: MemoryPlace
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import list_memories

        found = [
            {"name": m.name, "rows": m.rows, "width": m.width, "encoder": m.fingerprint, "created": _when(m.created)}
            for m in list_memories(self.memory)
        ]
        show(found, self.json)
        return 0


@dataclass
class Show:
    """The classes, the model and the rows of a memory; and the recall of its approximate index, if it has one."""

    memory: MemoryPlace
    name: NameOption = "default"
    rows: bool = False
    """Every row, not only the classes."""
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store

        with open_store(self.memory, self.name, read_only=True) as store:
            description = described(store)
            every = [shown_row(row) for row in store.rows()] if self.rows else []
        if self.json:
            show({**description, **({"every_row": every} if self.rows else {})}, True)
            return 0
        classes, model = description["classes"], description["model"]
        made_by = f"model {one_line(model)}" if model else "vectors"
        print(
            f"{description['name']}: {description['rows']} rows of {len(classes)} classes, {made_by}, "
            f"encoder {description['encoder']}"
        )
        for bound in BOUNDS:
            if bound in description:
                print(f"{bound.replace('_', ' ')}: {description[bound]}")
        if (recall := description["index_recall_at_16"]) is not None:
            print(f"its approximate index finds {recall:.1%} of the 16 nearest rows")
        show(every if self.rows else classes, False)
        return 0


def described(store: Store) -> dict[str, Any]:
    recorded, info = store.setting("classifier") or {}, store.info
    counts = Counter({label: rows for label, (rows, _) in store.class_counts().items()})
    return {
        "name": info.name,
        "rows": info.rows,
        "width": info.width,
        "encoder": info.fingerprint,
        "model": recorded.get("model") or recorded.get("encoder"),
        **{name: recorded[name] for name in BOUNDS if recorded.get(name)},
        "index_recall_at_16": store.index_recall(),
        "classes": [{"label": label, "rows": count} for label, count in counts.most_common()],
    }


def shown_row(row: Row) -> dict[str, Any]:
    return {
        "row": row.id,
        "label": row.label,
        "surprise_nats": row.surprise_nats,
        "written": _when(row.written_at),
        "source": row.source,
    }


@dataclass
class Review:
    """Rows whose label looks wrong, most suspicious first: by the other rows, another label is more probable."""

    memory: MemoryPlace
    name: NameOption = "default"
    number: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 20
    """How many to name."""
    json: JsonOption = False

    def run(self) -> int:
        from apl.classifier.online import OnlineClassifier

        if self.number < 1:
            raise ValueError(f"-n must be at least 1, got {self.number}")
        with OnlineClassifier.load(self.memory, name=self.name, read_only=True) as classifier:
            found = classifier.review()[: self.number]
        if self.json:
            print(json_format.dumps([suspect.to_dict() for suspect in found], ensure_ascii=False))
        elif found:
            rows = [(s.row, s.label, s.suggested, f"{s.surprise_nats:.2f}", s.source or "") for s in found]
            print(table(("row", "label", "suggested", "surprise", "source"), rows))
        else:
            print("no label looks wrong")
        return 0


@dataclass
class Export:
    """Write a memory to a new directory of safetensors and JSON, or to a .zip of them, as the page of `apl serve` does."""

    memory: MemoryPlace
    directory: ExportPlace
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store
        from apl.store.transfer import export_memory

        with open_store(self.memory, self.name, read_only=True) as store:
            show({"rows": export_memory(store, self.directory), "directory": str(self.directory)}, self.json)
        return 0


@dataclass
class Import:
    """Copy an exported memory, a directory or a .zip, into one that is there or is made."""

    directory: ExportPlace
    memory: MemoryPlace
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store
        from apl.store.transfer import import_memory, read_exported

        exported = read_exported(self.directory)
        with open_store(self.memory, self.name, fingerprint=exported.fingerprint, width=exported.width) as target:
            show(vars(import_memory(exported, target)), self.json)
        return 0


@dataclass
class Merge:
    """Merge the first memory into the second. Rows of one class with the same key become one; merging again does nothing."""

    source: Source
    target: Target
    source_name: SourceName = "default"
    target_name: TargetName = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store
        from apl.store.transfer import merge_memories, settings_that_travel

        with (
            open_store(self.source, self.source_name, read_only=True) as source,
            open_store(self.target, self.target_name, fingerprint=source.fingerprint, width=source.width) as target,
        ):
            if not target.settings():
                target.update_settings(settings_that_travel(source))
            show(vars(merge_memories(source, target)), self.json)
        return 0


@dataclass
class Verify:
    """Look for damage; exit status 1 if there is any."""

    memory: MemoryPlace
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store
        from apl.store.transfer import verify

        with open_store(self.memory, self.name, read_only=True) as store:
            problems = verify(store)
        if self.json:
            print(json_format.dumps({"problems": problems}))
        else:
            print("\n".join(map(one_line, problems)) or "nothing is wrong")
        return 1 if problems else 0


@dataclass
class Backup:
    """Copy a file with all its memories. It may be written at the same time."""

    memory: MemoryPlace
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A new file."""
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import backup_memories, list_memories

        backup_memories(self.memory, self.target)
        found = list_memories(self.target)
        show({"memories": len(found), "rows": sum(info.rows for info in found), "file": str(self.target)}, self.json)
        return 0


@dataclass
class Compact:
    """Give the space of forgotten rows back: the file of a memory shrinks to what it holds."""

    memory: MemoryPlace
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store

        with open_store(self.memory, self.name) as store:
            store.compact()
            show({"memory": self.name, "rows": store.count()}, self.json)
        return 0


@dataclass
class Reindex:
    """Build the index of a memory on PostgreSQL anew."""

    memory: MemoryPlace
    index: Annotated[str, tyro.conf.arg(metavar="URL")]
    """The vector engine: milvus+http://host:19530."""
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store

        with open_store(self.memory, self.name, index=self.index, shared=True) as store:
            show({"memory": self.name, "rows": store.reindex()}, self.json)
        return 0


@dataclass
class Reembed:
    """Compute the keys of a memory again with another model, from the pictures or texts kept in its rows, into a new memory."""

    source: Source
    target: Target
    model: TrainedModel = FOR_DRAWINGS
    source_name: SourceName = "default"
    target_name: TargetName = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.classifier.online import OnlineClassifier
        from apl.store import StoreError, delete_memory, find_memory, open_store
        from apl.store.transfer import reembed

        with open_store(self.source, self.source_name, read_only=True) as source:
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
        show(vars(copied), self.json)
        return 0


@dataclass
class Command:
    """List, inspect, copy and verify memories."""

    what: Annotated[
        Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Show, tyro.conf.subcommand("show")]
        | Annotated[Review, tyro.conf.subcommand("review")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Merge, tyro.conf.subcommand("merge")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Backup, tyro.conf.subcommand("backup")]
        | Annotated[Compact, tyro.conf.subcommand("compact")]
        | Annotated[Reindex, tyro.conf.subcommand("reindex")]
        | Annotated[Reembed, tyro.conf.subcommand("reembed")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> int:
        return self.what.run()


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
