"""A memory in a file: killed writers, second writers, full disks, files that are not what they should be."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apl.store import (
    NewRow,
    OtherSchema,
    RowUpdate,
    SourceShare,
    Store,
    StoreBusy,
    StoreDamaged,
    StoreError,
    backup_memories,
    list_memories,
    open_store,
)
from apl.store.opening import RECORD
from apl.store.reading import ROW_CELLS
from apl.store.rows import checksum, row_checksum, share_checksum
from apl.store.verify import verify

WIDTH = 8
KILLS = 20


class Victims:
    """The other end of `store_victim.py`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("store_victim.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, scenario: str, *arguments: object) -> int:
        self.process.stdin.write(json.dumps([scenario, *arguments]) + "\n")
        self.process.stdin.flush()
        word, pid = self.read()
        assert word == "pid"
        return pid

    def read(self) -> list:
        return json.loads(self.process.stdout.readline())

    def rest(self) -> list[list]:
        """What it had said before it was gone."""
        said = list(iter(self.read, ["gone"]))
        assert not [words for words in said if words[0] == "failed"], said
        return said


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    with victims.process:
        yield victims


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "letters.apl"


def row(label: str | int = "a", **more: object) -> NewRow:
    return NewRow(label, np.zeros(WIDTH, np.float32), **more)


def make(path: Path, rows: int = 3) -> list[int]:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        return store.append([row(number, payload=b"p" * 100) for number in range(rows)])


def test_whatever_was_acknowledged_survives_kill_9_and_no_batch_is_cut_in_two(tmp_path: Path, victims: Victims) -> None:
    chance = random.Random(0)
    acknowledged: dict[str, list[int]] = {}
    gone: set[str] = set()
    killed_early = 0
    for kill in range(KILLS):
        if kill % 5 == 0:
            # A new file now and then, so that making one is interrupted too.
            path = tmp_path / f"{kill}.apl"
            acknowledged, gone = {}, set()
        pid = victims.start("write_forever", str(path), kill)
        # However slow the machine, some are killed while they write.
        said = [victims.read()] if kill % 3 == 2 else []
        time.sleep(chance.choice([0.0, 0.01, 0.03]) * chance.random() * 2)
        os.kill(pid, signal.SIGKILL)
        unsure: tuple[str, str] | None = None
        opened = False
        for word, *details in said + victims.rest():
            match word, details:
                case "opened", _:
                    opened = True
                case "appended", (label, ids):
                    acknowledged[label] = ids
                case "replacing", (old, new):
                    unsure = (old, new)
                case "replaced", (old, new, ids):
                    acknowledged[new], unsure = ids, None
                    gone.add(old)
                    del acknowledged[old]
        killed_early += not opened
        if not opened and not acknowledged and not path.exists():
            continue
        with open_store(path, fingerprint="e", width=WIDTH) as store:
            rows = list(store.rows())
            settings = store.settings()
        sizes = Counter(stored.label for stored in rows)
        found = {label: [r.id for r in rows if r.label == label] for label in sizes}
        for stored in rows:
            assert sizes[stored.label] == int(stored.source), f"half a batch after kill {kill}"
            assert stored.payload == b"p" * 300
        for label, ids in acknowledged.items():
            if unsure is None or label != unsure[0]:
                assert found.get(label) == ids, f"acknowledged rows lost after kill {kill}"
        assert not gone & set(found), f"removed rows came back after kill {kill}"
        if unsure is not None:
            old, new = unsure
            assert (old in found) != (new in found), f"half a replacement after kill {kill}"
            gone |= {old} - set(found)
            acknowledged.pop(old) if old not in found else None
        # What was written but not yet acknowledged may be there, as a whole; from now on it must stay.
        acknowledged |= found
        if rows:
            assert settings["last"] in found
    with open_store(path) as store:
        assert verify(store) == []
    assert not list(tmp_path.glob("*-wal")) and not list(tmp_path.glob("*.lock"))
    assert 0 < killed_early < KILLS


def test_a_second_process_is_told_who_is_writing_and_the_lock_dies_with_its_holder(
    path: Path, victims: Victims
) -> None:
    make(path)
    pid = victims.start("hold", str(path))
    try:
        assert victims.read() == ["opened"]
        with pytest.raises(StoreBusy, match=f"process {pid}.*reading only"):
            open_store(path, fingerprint="e", width=WIDTH)
        with (
            open_store(path, read_only=True) as reader,
            open_store(path, "other", fingerprint="e", width=2) as other,
        ):
            assert reader.count() == 3 and other.count() == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        victims.rest()
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        assert store.count() == 3


def test_writers_in_a_hurry_still_take_turns(path: Path) -> None:
    make(path)
    inside, crowd = [], []

    def visit(number: int) -> None:
        for _ in range(5):
            with open_store(path, fingerprint="e", width=WIDTH, timeout=30.0) as store:
                inside.append(number)
                crowd.append(len(inside))
                store.append([row(number)])
                inside.remove(number)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowd == [1] * 20
    with open_store(path) as store:
        assert store.count() == 23 and store.load().ids.tolist() == list(range(1, 24))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_two_memories_of_a_file_are_written_at_the_same_time(path: Path) -> None:
    def fill(name: str) -> None:
        with open_store(path, name, fingerprint="e", width=WIDTH) as store:
            for _ in range(20):
                store.append([row(name)])

    threads = [threading.Thread(target=fill, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(info.name, info.rows) for info in list_memories(path)] == [("one", 20), ("two", 20)]


def test_on_a_full_disk_a_write_is_refused_whole_and_all_before_it_stays(path: Path, victims: Victims) -> None:
    victims.start("fill_the_disk", str(path), 1_000_000)
    *refusals, (_, readable), (_, acknowledged) = victims.rest()
    assert len(refusals) == 3
    for word, kind, message in refusals:
        assert (word, kind) == ("refused", "StoreError") and "disk is full" in message
    assert readable == acknowledged[:-50] and len(readable) > 50
    with open_store(path) as store:
        assert store.load().ids.tolist() == acknowledged and verify(store) == []


def test_a_memory_on_a_full_disk_opens_and_is_still_one_writer_s(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with open_store(path) as store:
        assert store.count() == 3
        with pytest.raises(StoreBusy, match="open for writing elsewhere"):
            open_store(path, timeout=0.0)


def test_a_file_that_may_not_grow_says_so(path: Path) -> None:
    make(path)
    with open_store(path) as store:
        pages = store._file.connection.execute("PRAGMA page_count").fetchone()[0]
        store._file.connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match="disk is full; nothing of this write was kept"):
            store.append([row(payload=b"x" * 100_000)])
        assert store.count() == 3


@pytest.mark.parametrize("forbidden", ["file", "directory"])
def test_without_the_right_to_write_a_memory_can_be_read_only(
    path: Path, victims: Victims, forbidden: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make(path)
    if os.geteuid() == 0:
        # Otherwise nobody could not even get to it.
        base = tmp_path_factory.getbasetemp()
        for folder in (base, *(parent for parent in base.parents if parent.name.startswith("pytest-"))):
            folder.chmod(0o755)
    with open_store(path) as store:
        store.append([row(3)])
        path.chmod(0o444 if forbidden == "file" else 0o666)
        path.parent.chmod(0o777 if forbidden == "file" else 0o555)
        victims.start("as_nobody", str(path))
        assert "is read-only, and open elsewhere for writing" in victims.rest()[1][1]
        path.parent.chmod(0o755)
    path.parent.chmod(0o777 if forbidden == "file" else 0o555)
    content = path.read_bytes()
    try:
        victims.start("as_nobody", str(path))
        (word, message), read = victims.rest()
    finally:
        path.parent.chmod(0o755)
    assert word == "refused" and "is read-only: open the memory for reading only" in message
    assert read == ["read", [0, 1, 2, 3]]
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kept", [1, 99, 100, 4096, 0.5, -4096, -1])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_cut_short_is_recognised_and_left_alone(path: Path, kept: float, read_only: bool) -> None:
    make(path, rows=200)
    content = path.read_bytes()
    size = len(content) // 2 if kept == 0.5 else int(kept) % len(content)
    path.write_bytes(content[:size])
    with pytest.raises(StoreDamaged, match="was cut short|its beginning is damaged"):
        with open_store(path, fingerprint="e", width=WIDTH, read_only=read_only) as store:
            store.load()
    assert path.read_bytes() == content[:size]


@pytest.mark.parametrize(
    "content", [b"hello\n" * 100, b"SQLite format 3\0" + bytes(range(84)) * 50, b"\x89PNG\r\n" * 40]
)
def test_a_file_of_another_kind_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StoreDamaged, match="is not a memory"):
            open_store(path, fingerprint="e", width=WIDTH, read_only=read_only)
    with pytest.raises(StoreDamaged):
        list_memories(path)
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_sqlite_file_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreDamaged, match="another program"):
        open_store(path, fingerprint="e", width=WIDTH)
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    make(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    content = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(OtherSchema, match="later version of apl .schema 99.*upgrade apl; nothing was touched"):
            open_store(path, fingerprint="e", width=WIDTH, read_only=read_only)
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_older_schema_names_the_archive_as_the_bridge(path: Path) -> None:
    make(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(OtherSchema, match="earlier version of apl .schema 2.*export.*import the archive here"):
        open_store(path, fingerprint="e", width=WIDTH)
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE VIEW extra AS SELECT load_extension('x') AS x",
        "CREATE TRIGGER spy AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
        "CREATE TABLE more (x)",
        "CREATE INDEX other ON rows (written_at)",
        "ALTER TABLE settings ADD COLUMN more TEXT",
    ],
)
def test_a_file_with_other_tables_views_or_triggers_is_not_opened(path: Path, planted: str) -> None:
    make(path)
    with sqlite3.connect(path) as connection:
        connection.execute(planted)
    connection.close()
    content = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreDamaged, match="its tables are others; it was not opened"):
            open_store(path, fingerprint="e", width=WIDTH, read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("generation", "x"),
        ("next_id", 2**63 - 1),
        ("next_id", 0),
        ("width", "4"),
        ("state", "[" * 5000),
        ("state", b"{}"),
        ("created", 1e300),
        ("created", -1.0),
    ],
)
def test_a_record_of_other_types_under_a_right_checksum_is_damage(path: Path, column: str, value: object) -> None:
    make(path)
    strict = "UPDATE sqlite_master SET sql = {} WHERE name = 'memories'"
    for change in ("replace(sql, ') STRICT', ')')", "", "sql || ' STRICT'"):
        with sqlite3.connect(path) as connection:
            if change:
                connection.execute("PRAGMA writable_schema=ON")
                connection.execute(strict.format(change))
            else:
                found = dict(
                    zip(
                        RECORD.split(", "), connection.execute(f"SELECT {RECORD} FROM memories").fetchone(), strict=True
                    )
                )
                sealed = (value, checksum(*(found | {column: value}).values()))
                connection.execute(f"UPDATE memories SET {column} = ?, checksum = ?", sealed)
        connection.close()
    for read_only in (False, True):
        with (
            pytest.raises(StoreDamaged, match="is damaged"),
            open_store(path, fingerprint="e", width=WIDTH, read_only=read_only) as store,
        ):
            store.settings()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("count", -(2**63)),
        ("count", 0),
        ("written_at", -math.inf),
        ("written_at", 1e300),
        ("surprise_nats", -math.inf),
        ("key", np.full(WIDTH, np.inf, "<f4").tobytes()),
    ],
)
def test_a_row_that_cannot_be_under_a_right_checksum_is_damage(path: Path, column: str, value: object) -> None:
    make(path)
    with sqlite3.connect(path) as connection:
        columns = [name for name in ROW_CELLS.split(", ") if name != "checksum"]
        found = connection.execute(f"SELECT {', '.join(columns)} FROM rows WHERE id = 2").fetchone()
        cells = dict(zip(columns, found, strict=True)) | {column: value}
        sealed = (value, row_checksum(*cells.values()))
        connection.execute(f"UPDATE rows SET {column} = ?, checksum = ? WHERE id = 2", sealed)
    connection.close()
    with open_store(path) as store:
        with pytest.raises(StoreDamaged, match="row 2 is not as it was written"):
            store.load()
        assert any("row 2" in problem for problem in verify(store))


@pytest.mark.parametrize(
    ("count", "total"), [(1, b""), (0, None), (2**62, None), (1, np.full(WIDTH, np.nan, "<f4").tobytes())]
)
def test_a_share_that_cannot_be_under_a_right_checksum_is_damage(path: Path, count: int, total: bytes | None) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        shares = tuple(SourceShare(name, np.ones(WIDTH)) for name in "abc")
        store.append([NewRow("x", np.ones(WIDTH), source="a", count=3, shares=shares)])
    with sqlite3.connect(path) as connection:
        (own,) = connection.execute("SELECT total FROM shares WHERE source = '=b'").fetchone()
        total = own if total is None else total
        sealed = (total, count, share_checksum(1, "=b", total, count))
        connection.execute("UPDATE shares SET total = ?, count = ?, checksum = ? WHERE source = '=b'", sealed)
    connection.close()
    with open_store(path) as store:
        for ask in (lambda: store.shares([1]), lambda: store.forget_source("c")):
            with pytest.raises(StoreDamaged, match="contributed to row 1 is not as it was written"):
                ask()


def test_a_writer_that_comes_around_the_lock_is_refused_instead_of_overwriting(path: Path) -> None:
    make(path)
    with open_store(path) as first:
        first._writer_lock.release()
        with open_store(path) as second:
            second.append([row("second")])
            with pytest.raises(StoreBusy, match="written by another process meanwhile; nothing was written"):
                first.append([row("first")])
            second.append([row("third")])
            assert second.load().labels == [0, 1, 2, "second", "third"] and verify(second) == []


def test_what_is_forgotten_is_neither_in_the_file_nor_in_its_log(path: Path) -> None:
    rng = np.random.default_rng(0)
    mine, theirs = rng.standard_normal((2, WIDTH)).astype(np.float32)
    told = {"label": "Zebedee", "merged": 1}
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        ids = store.append(
            [
                NewRow("Zebedee", mine, source="secret.png", payload=b"PICTURE" * 20),
                NewRow("kept", theirs, source="other.png"),
            ]
        )
        merged = RowUpdate(ids[1], key=(mine + theirs) / 2, count=2, shares=(SourceShare("secret.png", mine),))
        store.replace(
            [], [], update=[merged], receipts={"Zebedee": told, "2": {"source": "secret.png"}, "3": {"label": "kept"}}
        )
        deadline = time.monotonic() + 60
        while b"Zebedee" not in path.read_bytes():
            assert time.monotonic() < deadline, "the log is never brought into the file"
            time.sleep(0.02)
        store.forget_source("secret.png")
        store.delete_label("Zebedee")
        for file in path.parent.iterdir():
            content = file.read_bytes()
            for trace in (b"Zebedee", b"secret.png", b"PICTURE", mine.tobytes()):
                assert trace not in content, (file.name, trace)
        assert store.row(ids[1]).key.tobytes() == theirs.tobytes()
        assert store.receipt("Zebedee") == store.receipt("2") == {} and store.receipt("3") == {"label": "kept"}
    content = path.read_bytes()
    assert not [trace for trace in (b"Zebedee", b"secret.png", b"PICTURE", mine.tobytes()) if trace in content]
    assert b"other.png" in content


def test_the_old_name_of_a_class_is_neither_in_the_file_nor_in_its_log(path: Path) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        (id,) = store.replace([], [row("Zebedee")], receipts={"1": {"label": "Zebedee"}})
        store.replace([], [], update=[RowUpdate(id, label="kept")])
        assert not [file.name for file in path.parent.iterdir() if b"Zebedee" in file.read_bytes()]
        assert store.row(id).label == "kept" and store.receipt("1") == {}


def test_the_log_stays_small_while_many_rows_are_written(path: Path) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        for _ in range(70):
            store.append([row(payload=b"x" * 100_000)])
        log = path.with_name(path.name + "-wal")
        assert log.stat().st_size < 4_000_000 < path.stat().st_size
        # A write that is larger than the log may be leaves a long one, for a second.
        store.append([row(payload=b"x" * 1000_000) for _ in range(7)])
        deadline = time.monotonic() + 60
        while log.stat().st_size > 3_000_000 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert log.stat().st_size < 3_000_000


def test_a_file_shrinks_when_it_is_compacted(path: Path) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        ids = store.append([row(payload=b"x" * 5000) for _ in range(200)])
        store.delete(ids[1:])
        before = path.stat().st_size
        store.compact()
        assert path.stat().st_size < before / 5 and store.load().ids.tolist() == ids[:1] and verify(store) == []


def test_files_are_for_their_owner_alone(path: Path) -> None:
    make(path)
    backup_memories(path, path.with_name("copy.apl"))
    with open_store(path) as store:
        store.append([row()])
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) >= 4


def test_storage_does_not_grow_with_examples(path: Path) -> None:
    rng = np.random.default_rng(0)
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        ids = store.append([row(number) for number in range(5)])

        def learn(examples: int) -> int:
            for _ in range(examples):
                old = store.row(ids[int(rng.integers(5))])
                example = rng.standard_normal(WIDTH)
                key = (old.key + (example - old.key) / (old.count + 1)).astype(np.float32)
                shares = (SourceShare(None, example),)
                store.replace([], [], update=[RowUpdate(old.id, key=key, count=old.count + 1, shares=shares)])
            return sum(table_sizes(store).values())

        assert learn(10) == learn(30) == 5 + 5
        assert store.load().counts.sum() == 45


def table_sizes(store: Store) -> dict[str, int]:
    """Records of every table that could grow with examples."""
    run = store._file.connection
    return {name: run.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("rows", "shares", "classes")}


def test_a_lesson_takes_few_statements(path: Path) -> None:
    statements: list[str] = []
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        (id,) = store.append([row()], settings={"readers": {"weight": 1}})
        store._file.connection.set_trace_callback(statements.append)
        store.append([row()], settings={"readers": {"weight": 2}})
        assert len(statements) <= 6, statements
        statements.clear()
        store.replace([], [], update=[RowUpdate(id, count=2)], settings={"readers": {"weight": 3}})
        assert len(statements) <= 6, statements


def test_a_source_is_found_by_its_index(path: Path) -> None:
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        query, values = store._source_ids("x")
        plan = [line for *_, line in store._file.connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    for table in ("rows", "shares"):
        assert any(f"SEARCH {table} USING INDEX {table}_source (memory=? AND source=?)" in line for line in plan), plan


def test_pages_overwritten_inside_are_noticed(path: Path) -> None:
    make(path, rows=300)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    # Whichever table the pages belonged to: opening, verifying or reading says so, and nothing is answered as if all were well.
    with (
        pytest.raises(StoreDamaged, match="is damaged"),
        open_store(path, fingerprint="e", width=WIDTH) as store,
    ):
        assert verify(store)
        list(store.rows())


def test_paths_that_cannot_hold_a_memory_are_named(path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        open_store(path.parent, fingerprint="e", width=WIDTH)
    with pytest.raises(StoreError, match="the directory .*nowhere does not exist"):
        open_store(path.parent / "nowhere" / "x.apl", fingerprint="e", width=WIDTH)
    with pytest.raises(StoreError, match="does not exist"):
        open_store(path, fingerprint="e", width=WIDTH, read_only=True)
    with pytest.raises(StoreError, match="does not exist"):
        open_store(path)
    assert not path.exists()
    os.mkfifo(path.with_name("pipe"))
    with pytest.raises(StoreError, match="pipe is not a file"):
        open_store(path.with_name("pipe"), fingerprint="e", width=WIDTH)
    assert [one.name for one in path.parent.iterdir()] == ["pipe"]


def test_an_empty_file_is_a_memory_not_yet_begun(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match="holds no memories"):
        open_store(path, read_only=True)
    assert make(path) == [1, 2, 3]


def test_verify_names_every_wrong_row(path: Path) -> None:
    make(path, rows=6)
    nan = np.full(WIDTH, np.nan, np.float32).tobytes()
    sealed = (5, "i4", 0.0, 1.0, None, nan, 1, 0, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rows SET label = 'x' WHERE id = 2")
        connection.execute("UPDATE rows SET key = x'0000' WHERE id = 4")
        connection.execute("INSERT INTO payloads VALUES (1, 77, x'00', 0)")
        connection.execute("INSERT INTO receipts VALUES (1, 'r', '1', 1, 0)")
        connection.execute("UPDATE rows SET id = 70 WHERE id = 6")
        connection.execute("UPDATE payloads SET payload = x'01' WHERE id = 3")
        # Somebody who knows the checksum cannot plant what nobody can compute with.
        connection.execute("DELETE FROM rows WHERE id = 5")
        connection.execute(
            "INSERT INTO rows VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*sealed, row_checksum(*sealed))
        )
    connection.close()
    with open_store(path) as store:
        problems = "\n".join(verify(store))
        for expected in (
            *("row 2 is not", "a key has not 32 bytes", "row 5 is not", "row 70 is not", "the payload of row 3"),
            *("payload 77", "payload 6 belongs to no row", "receipt 'r'", "class '1'"),
        ):
            assert expected in problems, expected
        with pytest.raises(StoreDamaged, match="is damaged .*apl memory verify"):
            store.load()


def test_a_reader_of_a_deleted_memory_is_told(path: Path) -> None:
    from apl.store import delete_memory

    make(path)
    with open_store(path, read_only=True) as reader:
        delete_memory(path, "default")
        with pytest.raises(StoreError, match="has been deleted"):
            reader.load()
    assert list_memories(path) == []


def test_a_memory_of_many_blocks_of_rows_opens_whole(path: Path) -> None:
    keys = np.random.default_rng(0).standard_normal((2_000, WIDTH)).astype(np.float32)
    make(path, rows=0)
    with sqlite3.connect(path) as connection:
        records = [(n, "ta", 0.5, 1.5, None, key.tobytes(), 1, 0, 0) for n, key in enumerate(keys, 1)]
        connection.executemany(
            "INSERT INTO rows VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((*record, row_checksum(*record)) for record in records),
        )
        connection.execute("INSERT INTO classes VALUES (1, 'ta', ?, ?, zeroblob(64), 1, 0)", (len(keys),) * 2)
    connection.close()
    with open_store(path, fingerprint="e", width=WIDTH) as store:
        snapshot = store.load()
    assert snapshot.keys.tobytes() == keys.tobytes()
