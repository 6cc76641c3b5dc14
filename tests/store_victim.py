"""Processes to be killed: `python store_victim.py` forks one for every line it reads.

A line is a scenario and its arguments as a JSON list. The fork reports on stdout, line by line; when it is
gone, however it went, the line `gone` follows. Forking is fast, and safe because torch was never imported.
"""

from __future__ import annotations

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
from apl.store import NewRow, StoreError, open_store  # noqa: E402

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


SCENARIOS: dict[str, Callable[..., None]] = {
    scenario.__name__: scenario for scenario in (write_forever, hold, fill_the_disk, as_nobody)
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
