"""`apl memory`: list, inspect, copy and verify memories. Each verb is a function; its arguments are the options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, MemoryOption, NameOption, NumberOption, TrainedModel, arg, check_number
from apl.cli.terminal import one_line, print_json, print_result, table

Memory = Annotated[MemoryOption, tyro.conf.Positional]
Source = Annotated[Memory, arg(metavar="SOURCE", help="The memory to take from: a path, or a URL.")]
Target = Annotated[Memory, arg(metavar="TARGET", help="The memory to write to; made if needed.")]
SourceName = Annotated[str, arg(metavar="NAME", help="Which of the memories in SOURCE.")]
TargetName = Annotated[str, arg(metavar="NAME", help="Which of the memories in TARGET.")]
Exported = Annotated[
    Path, tyro.conf.Positional, arg(metavar="DIR|FILE.zip", help="The exported memory, one directory or file.")
]
NewFile = Annotated[Path, tyro.conf.Positional, arg(metavar="FILE", help="A new file.")]
EveryRow = Annotated[bool, arg(help="Every row, not only the classes.")]
Sheet = Annotated[Path | None, arg(metavar="FILE", help="Also write their pictures side by side, as a PNG file.")]
MADE_LIKE = ("fingerprint", "width", "metric")
"""What a copy has in common with its source."""
Engine = Annotated[str, arg(metavar="URL", help="The vector engine: milvus+http://host:19530.")]


def list_(memory: Memory, json: JsonOption = False) -> None:
    """The memories that live in a file or on a server."""
    from apl.store import list_memories

    found = [
        {"name": m.name, "rows": m.rows, "width": m.width, "encoder": m.fingerprint, "created": _when(m.created)}
        for m in list_memories(memory)
    ]
    print_result(found, json)


def show(memory: Memory, rows: EveryRow = False, name: NameOption = "default", json: JsonOption = False) -> None:
    """The classes, the model and the rows of a memory."""
    from apl.store import open_store

    with open_store(memory, name, read_only=True) as store:
        info, recorded = store.info, store.setting("classifier") or {}
        counts = sorted(store.class_counts().items(), key=lambda item: -item[1][0])
        every = [
            {
                "row": row.id,
                "label": row.label,
                "surprise_nats": row.surprise_nats,
                "written": _when(row.written_at),
                "source": row.source,
            }
            for row in (store.rows() if rows else ())
        ]
    classes = [{"label": label, "rows": count} for label, (count, _) in counts]
    model = recorded.get("model") or recorded.get("encoder")
    bounds = {"max_rows": recorded["max_rows"]} if recorded.get("max_rows") else {}
    told = {"name": info.name, "rows": info.rows, "width": info.width, "encoder": info.fingerprint, "model": model}
    if json:
        print_json({**told, **bounds, "classes": classes, **({"every_row": every} if rows else {})})
    else:
        print_result({**told, **bounds, "model": model or "of vectors", "classes": len(classes)}, False)
        print_result(every if rows else classes, False)


def review(
    memory: Memory,
    number: NumberOption = 20,
    out: Sheet = None,
    name: NameOption = "default",
    json: JsonOption = False,
) -> None:
    """Rows whose label looks wrong, most suspicious first: by the other rows, another label is more probable."""
    from apl.classifier.online import OnlineClassifier

    check_number(number)
    with OnlineClassifier.load(memory, name=name, read_only=True) as classifier:
        kind, found = classifier.input_kind, classifier.review()[:number]
        payloads = [classifier.store.payload(suspect.row) for suspect in found]
    if out is not None and kind not in ("drawing", "photo"):
        raise ValueError(f"--out is not valid with {memory}, which holds no pictures")
    if json:
        print_json([suspect.to_dict() for suspect in found])
    elif found:
        texts = [payload.decode(errors="replace") if payload and kind == "text" else "" for payload in payloads]
        rows = [
            (s.row, s.label, s.suggested, s.surprise_nats, text or s.source)
            for s, text in zip(found, texts, strict=True)
        ]
        print(table(("row", "label", "suggested", "surprise", "example"), rows))
    else:
        print("no label looks wrong")
    if out is not None and found:
        from apl.cli.contact_sheet import draw, kept_picture

        draw([kept_picture(payload, kind) for payload in payloads], out)


def export(memory: Memory, directory: Exported, name: NameOption = "default", json: JsonOption = False) -> None:
    """Write a memory to a new directory of safetensors and JSON, or to a .zip of them, as the page of `apl serve` does."""
    from apl.store import open_store
    from apl.store.transfer import export_memory

    with open_store(memory, name, read_only=True) as store:
        rows = export_memory(store, directory)
    print_result({"rows": rows, "path": str(directory)}, json)


def import_(directory: Exported, memory: Memory, name: NameOption = "default", json: JsonOption = False) -> None:
    """Copy an exported memory, a directory or a .zip, into one that is there or is made."""
    from apl.store import open_store
    from apl.store.transfer import import_memory, read_exported

    exported = read_exported(directory)
    if problem := settings_problem(exported.settings, exported.width):
        raise ValueError(f"{directory} is damaged: {problem}; nothing was imported")
    options: Any = {name: getattr(exported, name) for name in MADE_LIKE}
    with _gone_if_it_fails(memory, name), open_store(memory, name, **options) as target:
        print_result(vars(import_memory(exported, target)), json)


def merge(
    source: Source,
    target: Target,
    source_name: SourceName = "default",
    target_name: TargetName = "default",
    json: JsonOption = False,
) -> None:
    """Merge the first memory into the second. Rows of one class with the same key become one; merging again does nothing."""
    from apl.store import open_store
    from apl.store.transfer import merge_memories, settings_that_travel

    with open_store(source, source_name, read_only=True) as first, _gone_if_it_fails(target, target_name):
        options: Any = {name: getattr(first, name) for name in MADE_LIKE}
        with open_store(target, target_name, **options) as second:
            if not second.settings():
                second.update_settings(settings_that_travel(first))
            print_result(vars(merge_memories(first, second)), json)


def verify(memory: Memory, name: NameOption = "default", json: JsonOption = False) -> int:
    """Look for damage; exit status 1 if there is any."""
    from apl.store import open_store
    from apl.store.verify import verify

    with open_store(memory, name, read_only=True) as store:
        problems = verify(store)
        if not problems and (problem := settings_problem(store.settings(), store.width)):
            problems = [problem]
    if json:
        print_json({"problems": problems})
    else:
        print("\n".join(map(one_line, problems)) or "nothing is wrong")
    return 1 if problems else 0


def settings_problem(settings: Mapping[str, Any], width: int) -> str | None:
    """What is wrong with the parameters that a memory records, or with what the readers have learnt about it."""
    from apl.classifier import configuration
    from apl.memory.staging import STATE_SETTING
    from apl.reading.ensemble_state import require_readable

    try:
        if (kept := settings.get(STATE_SETTING)) is not None:
            require_readable(kept, width)
    except ValueError as error:
        return str(error)
    return configuration.settings_problem(settings)


def backup(memory: Memory, target: NewFile, json: JsonOption = False) -> None:
    """Copy a file with all its memories. It may be written at the same time."""
    from apl.store import backup_memories, list_memories

    backup_memories(memory, target)
    rows = [info.rows for info in list_memories(target)]
    print_result({"memories": len(rows), "rows": sum(rows), "file": str(target)}, json)


def compact(memory: Memory, name: NameOption = "default", json: JsonOption = False) -> None:
    """Give the space of forgotten rows back: the file of a memory shrinks to what it holds."""
    from apl.store import open_store

    with open_store(memory, name) as store:
        store.compact()
        print_result({"memory": name, "rows": store.count()}, json)


def reindex(memory: Memory, index: Engine, name: NameOption = "default", json: JsonOption = False) -> None:
    """Build the index of a memory on PostgreSQL anew."""
    from apl.store import open_store

    with open_store(memory, name, index=index) as store:
        print_result({"memory": name, "rows": store.reindex()}, json)


def reembed(
    source: Source,
    target: Target,
    model: TrainedModel = FOR_DRAWINGS,
    source_name: SourceName = "default",
    target_name: TargetName = "default",
    json: JsonOption = False,
) -> None:
    """Compute the keys of a memory again with another model, from the pictures or texts kept in its rows, into a new memory."""
    from apl.classifier.online import OnlineClassifier
    from apl.store import StoreError, find_memory, open_store
    from apl.store.transfer import reembed

    with open_store(source, source_name, read_only=True) as first, _gone_if_it_fails(target, target_name):
        # Opening a classifier on a memory in use would change the parameters recorded there.
        if (there := find_memory(target, target_name)) and there.rows:
            raise StoreError(f"memory {target_name!r} is not empty: re-embed into a new one")
        with OnlineClassifier.from_pretrained(model, memory=target, name=target_name) as classifier:
            copied = reembed(first, classifier.store, classifier.embed_payloads)
    print_result(vars(copied), json)


@contextmanager
def _gone_if_it_fails(memory: str, name: str) -> Iterator[None]:
    """A memory that is made in this block, and its file, go again if nothing could be written to it."""
    from apl.store import delete_memory, find_memory, memories_by_name

    there, new_file = find_memory(memory, name), not Path(memory).exists()
    try:
        yield
    except BaseException:
        made = None if there else find_memory(memory, name)
        if made is not None and not made.rows:
            delete_memory(memory, name)
        if new_file and not memories_by_name(memory):
            Path(memory).unlink(missing_ok=True)
        raise


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@dataclass(frozen=True)
class Parsed:
    """A verb with its arguments."""

    run: Callable[[], int | None]


def _parsed(verb: Callable[..., int | None]) -> Any:
    @wraps(verb)
    def with_arguments(*given: Any, **named: Any) -> Parsed:
        return Parsed(partial(verb, *given, **named))

    return Annotated[Any, tyro.conf.subcommand(verb.__name__.rstrip("_"), constructor=with_arguments)]


VERBS: tuple[Callable[..., int | None], ...] = (
    list_,
    show,
    review,
    export,
    import_,
    merge,
    verify,
    backup,
    compact,
    reindex,
    reembed,
)
Command: Any = Union[tuple(map(_parsed, VERBS))]  # noqa: UP007
