"""Nothing that a file acknowledged is lost, whoever else opens, lists, copies, deletes or damages it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_store_sqlite import WIDTH, Victims, make, row

from apl.store import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    backup_memories,
    find_memory,
    list_memories,
    open_store,
    sqlite_file,
)
from apl.store.transfer import read_exported
from apl.store.verify import verify

KILLS = int(os.environ.get("APL_KILLS", "12"))
"""`APL_KILLS=100 pytest -s tests/test_store_loss.py -k kill_9` kills 100 writers and 100 copies."""
COPIES = ("save", "backup", "export", "import", "merge", "reembed")
ROWS = 300
"""In the memory that is copied, at first."""


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    with victims.process:
        yield victims


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "letters.apl"


def test_kill_9_under_two_memories_a_lister_and_a_reader_loses_nothing_acknowledged(
    path: Path, victims: Victims
) -> None:
    make(path)
    chance = random.Random(1)
    acknowledged: dict[str, dict[int, str]] = {"one": {}, "two": {}}
    for kill in range(KILLS):
        pid = victims.start("write_two_forever", str(path), kill)
        said = [victims.read() for _ in range(chance.randrange(12))]
        # Whoever is the last to let go of a file takes its log along, also if its writers have only lost their locks.
        for _ in range(chance.randrange(3)):
            list_memories(path)
            with open_store(path, read_only=True) as reader:
                assert reader.load().labels == [0, 1, 2]
        said += [victims.read() for _ in range(chance.randrange(6) if said else 0)]
        os.kill(pid, signal.SIGKILL)
        for word, *details in said + victims.rest():
            if word == "appended":
                name, label, id = details
                acknowledged[name][id] = label
        if kill % 10 == 9 or kill == KILLS - 1:
            for name, expected in acknowledged.items():
                with open_store(path, name, read_only=True) as store:
                    found = store.load()
                    labels = dict(zip(found.ids.tolist(), found.labels, strict=True))
                    assert expected.items() <= labels.items(), f"lost after kill {kill}"
                    assert verify(store) == []
    assert len(acknowledged["one"]) > KILLS


def test_kill_9_half_way_through_a_copy_leaves_a_whole_one_or_none(tmp_path: Path, victims: Victims) -> None:
    chance = random.Random(2)
    acknowledged: dict[str, dict[str, int]] = {kind: {} for kind in COPIES}
    half_way = Counter[str]()
    for kill in range(KILLS):
        kind = COPIES[kill % len(COPIES)]
        place, whole = tmp_path / kind, acknowledged[kind]
        if not place.exists():
            place.mkdir()
            make(place / "m.apl", ROWS)
        pid = victims.start("copy_forever", str(place), kind)
        assert victims.read() == ["begins", kind]
        began = time.perf_counter()
        said = [victims.read(), victims.read()]
        time.sleep(chance.random() * (time.perf_counter() - began))
        os.kill(pid, signal.SIGKILL)
        said += victims.rest()
        half_way[kind] += said[-1] == ["begins", kind]
        whole |= {name: rows for name, rows in said if name != "begins"}
        sizes = range(ROWS, find_memory(place / "m.apl", "default").rows + 1, 3)
        for path in {*place.glob("[!.]*.apl"), *place.glob("[!.]*.zip")} - {place / "m.apl"}:
            rows = len(read_exported(path).rows) if path.suffix == ".zip" else rows_of(path)
            # Killed between making a file or a memory and writing into it, all at once.
            empty = rows == 0 and kind in ("import", "merge", "reembed")
            assert rows in sizes or empty, f"{kind}: {path.name} has {rows} rows after kill {kill}"
            assert rows >= whole.get(path.name, 0), f"{kind}: {path.name} has lost rows after kill {kill}"
            if path.name not in ("saved.apl", "taken in.apl"):
                whole.pop(path.name, None)
                path.unlink()
        assert whole.keys() <= {"saved.apl", "taken in.apl"}, f"{kind}: a copy is gone after kill {kill}"
    print(f"killed half-way: {dict(half_way)} of {KILLS} kills")
    assert half_way.total() > KILLS // 4


def rows_of(path: Path) -> int:
    if find_memory(path, "default") is None:
        return 0
    with open_store(path) as store:
        assert verify(store) == []
        return store.count()


def test_another_memory_of_the_same_file_does_not_drop_the_locks_of_the_first(path: Path, victims: Victims) -> None:
    make(path)
    pid = victims.start("write_two_forever", str(path), 0)
    said = [victims.read()]
    while len(said) < 21:
        said.append(victims.read())
    # Without its locks, the writer would go on writing to a log that whoever closes the file now deletes.
    list_memories(path)
    while len(said) < 61:
        said.append(victims.read())
    os.kill(pid, signal.SIGKILL)
    said += victims.rest()
    with open_store(path, "one", read_only=True) as store:
        ids = store.load().ids.tolist()
    assert [words[3] for words in said if words[1:2] == ["one"]] <= ids and len(ids) >= 20


@pytest.mark.parametrize("instead", ["nothing", "another file"])
def test_a_file_deleted_or_replaced_while_open_takes_no_more_lessons(path: Path, instead: str) -> None:
    make(path)
    with open_store(path) as store, open_store(path, read_only=True) as reader:
        store.append([row("a")])
        if instead == "nothing":
            path.unlink()
        else:
            make(path.with_name("other.apl"))
            path.with_name("other.apl").replace(path)
        with pytest.raises(StoreError, match="deleted or replaced while it was open; nothing was written"):
            store.append([row("b")])
        with pytest.raises(StoreError, match="deleted or replaced"):
            reader.load()


def test_a_second_writer_that_comes_by_a_symbolic_link_is_refused(path: Path) -> None:
    make(path)
    link = path.with_name("link.apl")
    link.symlink_to(path)
    with open_store(path):
        with pytest.raises(StoreBusy, match="open for writing elsewhere"):
            open_store(link)
    with open_store(link) as store:
        assert store.count() == 3
        with pytest.raises(StoreBusy):
            open_store(path)


def test_a_forked_child_can_neither_write_nor_let_a_second_writer_in(path: Path, victims: Victims) -> None:
    make(path)
    pid = victims.start("fork_and_close", str(path))
    try:
        word, message = victims.read()
        assert word == "refused" and "open it anew here" in message
        assert victims.read() == ["child is gone", [4]]
        with pytest.raises(StoreBusy, match=f"process {pid}"):
            open_store(path)
    finally:
        os.kill(pid, signal.SIGKILL)
        victims.rest()
    with open_store(path, read_only=True) as store:
        assert store.load().labels == [0, 1, 2, "parent"]


def test_a_file_may_be_made_by_many_at_once(tmp_path: Path) -> None:
    rounds = 5
    crowd = [Victims() for _ in range(4)]
    for number, victims in enumerate(crowd):
        victims.start("make_many", str(tmp_path), number, rounds)
    assert [victims.rest() for victims in crowd] == [[["made", rounds]]] * 4
    for victims in crowd:
        with victims.process:
            victims.process.stdin.close()
    assert {len(list_memories(tmp_path / f"{round}.apl")) for round in range(rounds)} == {4}


class InterruptedAfterBegin(sqlite3.Connection):
    """A connection during whose BEGIN somebody presses Ctrl-C, once."""

    armed = True

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        result = super().execute(statement, *values)
        if statement.startswith("BEGIN") and self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return result


def test_ctrl_c_right_after_the_beginning_of_a_write_does_not_block_the_next(path: Path) -> None:
    make(path)
    with open_store(path) as store:
        holder, attribute = (store._file, "connection") if hasattr(store, "_file") else (store, "_connection")
        getattr(holder, attribute).close()
        for act in (lambda: store.append([row("lost")]), store.load):
            connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, factory=InterruptedAfterBegin
            )
            connection.create_function("add_sums", 2, sqlite_file.add_sums)
            setattr(holder, attribute, connection)
            with pytest.raises(KeyboardInterrupt):
                act()
            store.append([row("kept")])
            connection.close()
        setattr(holder, attribute, sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        assert store.load().labels == [0, 1, 2, "kept", "kept"]


def test_a_plain_copy_of_an_open_memory_soon_holds_all_its_rows(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.apl"

    def copied() -> list[str | int]:
        shutil.copyfile(path, copy)
        with open_store(copy, read_only=True) as store:
            assert verify(store) == []
            return store.load().labels

    with open_store(path, fingerprint="e", width=WIDTH) as store:
        assert copied() == []
        store.append([row("a")])
        store.append([row("b")])
        deadline = time.monotonic() + 60
        while copied() != ["a", "b"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert copied() == ["a", "b"]


def test_a_backup_is_complete_at_once_and_never_overwrites(path: Path, tmp_path: Path) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store, open_store(path, "b", fingerprint="e", width=2):
        store.append([row("a", payload=b"p")], settings={"n": 1})
        backup_memories(path, tmp_path / "copy.apl")
        store.append([row("later")])
        with pytest.raises(StoreError, match="there already"):
            backup_memories(path, tmp_path / "copy.apl")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.apl", "letters.apl"]
    assert [info.name for info in list_memories(tmp_path / "copy.apl")] == ["b", "default"]
    with open_store(tmp_path / "copy.apl", fingerprint="e", width=WIDTH) as copy:
        assert copy.load().labels == ["a"] and copy.payload(1) == b"p" and copy.settings() == {"n": 1}
        assert verify(copy) == []
    with pytest.raises(StoreError, match="does not exist"):
        backup_memories(tmp_path / "nowhere.apl", tmp_path / "x.apl")
    with pytest.raises(StoreError, match="apl memory export"):
        backup_memories("ram:", tmp_path / "x.apl")


def test_a_single_flipped_bit_is_noticed_or_changes_nothing(path: Path) -> None:
    rng = np.random.default_rng(0)
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        store.append(
            [
                row(number % 5, source=f"file {number}", payload=rng.bytes(200), surprise_nats=0.5, written_at=1.5)
                for number in range(40)
            ],
            settings={"sigma": 0.75, "name": "x"},
        )
        store.delete([3, 4])

    def content() -> tuple:
        with open_store(path, read_only=True) as store:
            snapshot = store.load()
            rows = [
                (r.id, r.label, r.key.tobytes(), r.surprise_nats, r.written_at, r.source, r.payload)
                for r in store.rows()
            ]
            return rows, snapshot.generation, store.settings(), store.info, verify(store)

    original, expected = path.read_bytes(), content()
    silent = []
    for number in rng.choice(8 * len(original), size=int(os.environ.get("APL_FLIPS", "30")), replace=False):
        damaged = bytearray(original)
        damaged[number // 8] ^= 1 << number % 8
        path.write_bytes(damaged)
        try:
            found = content()
            if found != expected and not found[-1]:
                silent.append(int(number))
        except StoreError:
            pass
        for beside in path.parent.glob("letters.apl-*"):
            beside.unlink()
    assert silent == []


def test_opening_notices_a_changed_row_and_a_lost_one(path: Path) -> None:
    for damage in ("UPDATE rows SET label = 't9' WHERE id = 2", "DELETE FROM rows WHERE id = 2"):
        path.unlink(missing_ok=True)
        make(path)
        connection = sqlite3.connect(path)
        connection.execute(damage)
        connection.commit()
        connection.close()
        with open_store(path, read_only=True) as store:
            assert verify(store)
            with pytest.raises(StoreDamaged, match="row 2 is not as it was written|2 rows are left of 3"):
                store.load()
