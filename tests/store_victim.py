"""Processes to be killed: `python store_victim.py` forks one for every line it reads.

A line is a scenario and its arguments as a JSON list. The fork reports on stdout, line by line; when it is
gone, however it went, the line `gone` follows. Forking is fast, and safe because torch was never imported.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The package's own __init__ may import torch, the store does not.
package = types.ModuleType("apl")
package.__path__ = [str(Path(__file__).parents[1] / "src" / "apl")]
sys.modules["apl"] = package

import numpy as np  # noqa: E402

# Now, because a fork that has become nobody may not read the library's files any more.
import apl.store.sqlite  # noqa: E402, F401
from apl.store import NewRow, Store, StoreError, backup_memories, open_store  # noqa: E402
from apl.store.transfer import export_memory, import_memory, merge_memories, reembed, save_copy  # noqa: E402

WIDTH = 8


def say(*words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def batch(label: str, size: int) -> list[NewRow]:
    """Rows that know how many they were: their source is the size of the batch."""
    return [NewRow(label, np.full(WIDTH, n, np.float32), source=str(size), payload=b"p" * 300) for n in range(size)]


def write_forever(path: str, seed: int) -> None:
    chance = random.Random(seed)
    with open_store(path, fingerprint="e", width=WIDTH, timeout=10.0) as store:
        say("opened")
        mine: list[tuple[str, list[int]]] = []
        for number in range(10**9):
            label, size = f"{seed}-{number}", chance.randint(1, 6)
            if mine and chance.random() < 0.3:
                old, old_ids = mine.pop(chance.randrange(len(mine)))
                say("replacing", old, label)
                ids = store.replace(old_ids, batch(label, size), settings={"last": label})
                say("replaced", old, label, ids)
            else:
                ids = store.append(batch(label, size), settings={"last": label})
                say("appended", label, ids)
            mine.append((label, ids))


def copy_forever(folder: str, kind: str) -> None:
    """One kind of copy again and again, of a memory that grows in between; acknowledged with its file and rows."""
    with open_store(Path(folder) / "m.apl", fingerprint="e", width=WIDTH, timeout=10.0) as store:
        while True:
            store.append(batch(str(store.count()), 3))
            archive = Path(folder) / f"{store.count()}.zip"
            if kind == "import":
                export_memory(store, archive)
            say("begins", kind)
            say(_copied(kind, store, archive), store.count())


def _copied(kind: str, store: Store, archive: Path) -> str:
    """Make the copy; returns the name of its file."""
    new = archive.with_suffix(".apl")
    if kind == "save":
        save_copy(store, archive.with_name("saved.apl"), "default")
        return "saved.apl"
    if kind == "backup":
        backup_memories(archive.with_name("m.apl"), new)
        return new.name
    if kind == "export":
        export_memory(store, archive)
        return archive.name
    target = new if kind == "reembed" else archive.with_name("taken in.apl")
    with open_store(target, fingerprint="e", width=WIDTH, timeout=10.0) as copy:
        if kind == "import":
            import_memory(archive, copy)
        elif kind == "merge":
            merge_memories(store, copy)
        else:
            reembed(store, copy, lambda payloads: np.ones((len(payloads), WIDTH), np.float32))
    return target.name


def hold(path: str) -> None:
    with open_store(path, fingerprint="e", width=WIDTH):
        say("opened")
        time.sleep(600)


def fill_the_disk(path: str, room: int) -> None:
    """Files of this process cannot grow beyond `room` bytes, for a while."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    acknowledged: list[int] = []
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        for _ in range(3):
            try:
                while True:
                    acknowledged += store.append(batch("before", 50))
            except StoreError as error:
                say("refused", type(error).__name__, str(error))
        say("readable", store.load().ids.tolist())
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        acknowledged += store.append(batch("after", 50))
    say("acknowledged", acknowledged)


def as_nobody(path: str) -> None:
    """Open it without the right to write, for writing and for reading."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open_store(path, fingerprint="e", width=WIDTH).close()
        say("opened")
    except StoreError as error:
        say("refused", str(error))
    try:
        with open_store(path, read_only=True) as store:
            say("read", store.load().labels)
    except StoreError as error:
        say("unreadable", str(error))


def write_two_forever(path: str, seed: int) -> None:
    """Two memories of one file, one row at a time, each acknowledged."""
    with (
        open_store(path, "one", fingerprint="e", width=WIDTH, timeout=10.0) as one,
        open_store(path, "two", fingerprint="e", width=WIDTH, timeout=10.0) as two,
    ):
        say("opened")
        for number in range(10**9):
            for name, store in (("one", one), ("two", two)):
                (id,) = store.append(batch(f"{seed}-{number}", 1))
                say("appended", name, f"{seed}-{number}", id)


def fork_and_close(path: str) -> None:
    """A child of the writer lets go of what it has inherited, in every way it can."""
    store = open_store(path, fingerprint="e", width=WIDTH)
    if (child := os.fork()) == 0:
        try:
            store.append(batch("child", 1))
            say("written by the child")
        except StoreError as error:
            say("refused", str(error))
        store.close()
        del store
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    say("child is gone", store.append(batch("parent", 1)))
    time.sleep(600)


def make_many(folder: str, number: int, rounds: int) -> None:
    """Make one file after the other, at the same moment as others do."""
    for round in range(rounds):
        # Others come to this round by making its flag, too.
        (Path(folder) / f"{round}-{number}.flag").touch()
        until = time.monotonic() + 60
        while len(list(Path(folder).glob(f"{round}-*.flag"))) < 4:
            if time.monotonic() > until:
                raise TimeoutError("the others did not come to this round")
            time.sleep(0.0005)
        with open_store(Path(folder) / f"{round}.apl", f"m{number}", fingerprint="e", width=WIDTH) as store:
            store.append(batch("a", 1))
    say("made", rounds)


SCENARIOS: dict[str, Callable[..., None]] = {
    scenario.__name__: scenario
    for scenario in (
        *(write_forever, write_two_forever, copy_forever, hold, fill_the_disk, as_nobody),
        *(fork_and_close, make_many),
    )
}


def main() -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if (child := os.fork()) == 0:
            run(name, arguments)
        os.waitpid(child, 0)
        say("gone")


def run(name: str, arguments: list[Any]) -> None:
    try:
        say("pid", os.getpid())
        SCENARIOS[name](*arguments)
    except BaseException as error:  # a child must never return into its parent's loop
        say("failed", repr(error))
    finally:
        os._exit(0)


if __name__ == "__main__":
    assert "torch" not in sys.modules
    main()
