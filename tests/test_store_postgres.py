"""What only memories on PostgreSQL can get wrong."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from apl.classifier.online import OnlineClassifier
from apl.store import (
    AlreadyAnswered,
    NewRow,
    OtherSchema,
    RowChanged,
    RowUpdate,
    SourceShare,
    Store,
    StoreError,
    StoreUnavailable,
    find_memory,
    open_store,
)
from apl.store.schema import SCHEMA_VERSION
from apl.store.verify import verify

psycopg = pytest.importorskip("psycopg")
OPERATIONS = int(os.environ.get("APL_OPERATIONS", "160"))
pytest_plugins = ["store_servers"]


def rows(count: int, width: int = 8) -> list[NewRow]:
    keys = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    return [NewRow(number, key) for number, key in enumerate(keys)]


def test_an_approximate_index_is_used_by_those_who_asked_for_it_only(postgres_url: str) -> None:
    def plan(store: Store) -> str:
        """How the server finds the nearest, when every other way than an index is discouraged."""
        with store._session() as connection, connection.transaction():
            for way in ("seqscan", "bitmapscan", "sort"):
                connection.execute(f"SET LOCAL enable_{way} = off")
            lines = connection.execute(
                "EXPLAIN " + store._recall_query(5).replace("?", "%s"), (np.zeros(8, np.float32),)
            )
            return "\n".join(line for (line,) in lines)

    with open_store(postgres_url, "indexed", fingerprint="e", width=8, approximate=True) as store:
        store.append(rows(300))
        assert "rows_hnsw" in plan(store)
        found = store.recall(rows(300)[17].key[None], 5)
        assert found.ids[0][0] == 18 and found.distances[0][0] == 0
    with open_store(postgres_url, "indexed", fingerprint="e", width=8) as store:
        assert "rows_hnsw" not in plan(store)
    with pytest.raises(StoreError, match="at most 2000"):
        open_store(postgres_url, "wide", fingerprint="e", width=2001, approximate=True)
    assert find_memory(postgres_url, "wide") is None


def test_a_lost_connection_is_one_sentence_and_loses_nothing(postgres_url: str) -> None:
    with open_store(postgres_url, "lost", fingerprint="e", width=8) as store:
        store.append(rows(3))
        with pytest.raises(StoreUnavailable, match="does not answer"):
            with store._writing() as run:
                run.execute("SELECT pg_terminate_backend(pg_backend_pid())").fetchone()
        assert store.count() == 3 and len(store.append(rows(1))) == 1


def test_writers_who_share_a_memory_lose_nothing_and_merge_one_after_the_other(postgres_url: str) -> None:
    merges, clashes, answered = 15, [], []

    def work(number: int) -> None:
        with open_store(postgres_url, "shared", fingerprint="e", width=8) as store:
            for merge in range(merges):
                store.append([NewRow(f"{number}-{merge}", np.ones(8, np.float32))])
                while True:
                    row = store.row(first)
                    mean = row.key + (number + 1 - row.key) / (row.count + 1)
                    update = RowUpdate(first, key=mean, count=row.count + 1, seen_generation=row.generation)
                    try:
                        store.replace([], [], update=[update])
                        break
                    except RowChanged:
                        clashes.append(number)
                try:
                    store.replace([], [], receipts={f"request {merge}": number})
                    answered.append(merge)
                except AlreadyAnswered:
                    pass

    with open_store(postgres_url, "shared", fingerprint="e", width=8) as store:
        (first,) = store.append([NewRow("all", np.zeros(8, np.float32))])
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        merged = store.row(first)
        assert merged.count == 3 * merges + 1
        np.testing.assert_allclose(merged.key, np.full(8, merges * 6 / merged.count), rtol=1e-5)
        assert store.count() == 3 * merges + 1 == len(set(store.ids())) and sorted(answered) == list(range(merges))
        totals = {total.label: total for total in store.totals().classes}
        np.testing.assert_allclose(totals["all"].total, merged.key * merged.count, rtol=1e-5)


def test_four_writers_that_learn_forget_and_keep_a_budget_end_as_one_after_the_other(postgres_url: str) -> None:
    """Each source belongs to one writer, so what a row holds of it does not depend on the order: what was learnt there since the
    source was last forgotten. Examples of a row that was evicted are gone, or a row of their own."""
    centres = 3 * np.random.default_rng(4).standard_normal((6, 8))
    gave_up: list[StoreUnavailable] = []
    evicted: set[int] = set()

    def work(number: int) -> dict[str, list[tuple[int, np.ndarray]]]:
        chance, mine = np.random.default_rng(number), dict[str, list[tuple[int, np.ndarray]]]()
        options = {"memory": postgres_url, "name": "four", "max_rows": 20, "metric": "euclidean"}
        with OnlineClassifier.for_features(8, **options) as classifier:
            for step in range(OPERATIONS // 4):
                source, label = f"{number}-{chance.integers(20)}", int(chance.integers(6))
                if step % 5 == 4:
                    try:
                        classifier.forget(source=source)
                        mine.pop(source, None)
                    except StoreUnavailable as error:
                        gave_up.append(error)
                    continue
                example = (centres[label] + chance.choice([0.1, 2.0]) * chance.standard_normal(8)).astype(np.float32)
                receipt = classifier.learn_one(example, label, source=source)
                mine.setdefault(source, []).append((receipt.row or receipt.merged_into, example))
                evicted.update(receipt.evicted)
        return mine

    with ThreadPoolExecutor(4) as threads:
        learnt = {source: examples for mine in threads.map(work, range(4)) for source, examples in mine.items()}
    assert len(gave_up) <= 0.01 * OPERATIONS / 5
    with open_store(postgres_url, "four") as store:
        rows, shares = {row.id: row for row in store.rows()}, store.shares(store.ids())
        totals = {total.label: total for total in store.totals().classes}
        assert verify(store) == []
    assert len(rows) <= 20 + 3 and evicted.isdisjoint(rows)
    moved = 0
    for id, row in rows.items():
        kept = shares.get(id, [SourceShare(row.source, row.key.astype(np.float64) * row.count, row.count)])
        assert row.count == sum(share.count for share in kept)
        np.testing.assert_allclose(row.key, sum(share.total for share in kept) / row.count, atol=1e-5)
        for share in kept:
            examples = [example for at, example in learnt.get(share.source, []) if at == id]
            if len(examples) != share.count:
                # Merged into a row that another writer evicted at this moment.
                assert len(examples) < share.count <= len(learnt[share.source])
                moved += 1
                continue
            np.testing.assert_allclose(share.total, np.sum(examples, 0, np.float64), atol=1e-4)
    there = {(id, share.source) for id, some in shares.items() for share in some}
    there |= {(id, row.source) for id, row in rows.items() if id not in shares}
    assert {(at, source) for source, some in learnt.items() for at, _ in some if at in rows} <= there
    print(f"{len(gave_up)} of {OPERATIONS // 5} forgettings gave up; {moved} examples went into a row that was evicted")
    assert moved <= 0.01 * OPERATIONS + 2
    for label, total in totals.items():
        own = [row for row in rows.values() if row.label == label]
        assert (total.rows, total.examples) == (len(own), sum(row.count for row in own))
        np.testing.assert_allclose(total.total, sum(row.count * row.key.astype(np.float64) for row in own), atol=1e-3)


def test_rows_that_two_processes_delete_at_once_are_deleted_once(postgres_url: str) -> None:
    def delete(number: int) -> list[int]:
        with open_store(postgres_url, "race", fingerprint="e", width=8) as store:
            return [id for start in range(0, 40, 2) for id in store.delete(ids[start : start + 2 + number])]

    with open_store(postgres_url, "race", fingerprint="e", width=8) as store, ThreadPoolExecutor(2) as two:
        ids = store.append(rows(40))
        deleted = [id for some in two.map(delete, range(2)) for id in some]
        assert sorted(deleted) == ids and store.count() == 0


def test_an_error_of_one_request_is_not_the_server_being_away(postgres_url: str) -> None:
    with open_store(postgres_url, "refuses", fingerprint="e", width=8) as store:
        with pytest.raises(StoreError, match="refused this request: .*; nothing was written") as caught:
            with store._session() as connection:
                connection.execute(
                    "INSERT INTO settings VALUES (%s, (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 500)), '1', 1)",
                    (1,),
                )
        assert not isinstance(caught.value, StoreUnavailable)
        assert len(store.append(rows(1))) == 1


class Listener:
    """Stands between clients and the server's socket, and notes what the clients send."""

    def __init__(self, socket_path: str, folder: Path) -> None:
        self.said: dict[int, bytes] = {}
        self._open: list[socket.socket] = []
        self._path = socket_path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / Path(socket_path).name))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for one in (self._socket, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, server = self._socket.accept()[0], socket.socket(socket.AF_UNIX)
            except OSError:
                return
            self._open += [client, server]
            server.connect(self._path)
            for name, source, target in (("client", client, server), ("server", server, client)):
                threading.Thread(target=self._forward, args=(name, source, target), daemon=True).start()

    def _forward(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                if name == "client":
                    self.said[id(source)] = self.said.get(id(source), b"") + content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def waits(self) -> int:
        """How often clients have asked for everything that was not answered yet: Sync, or a simple query."""
        found = 0
        for content in self.said.values():
            # The first message has no type.
            at = int.from_bytes(content[:4], "big")
            while at < len(content):
                # A Flush is sent behind a Sync, once or more often.
                found += content[at : at + 1] in (b"S", b"Q")
                at += 1 + int.from_bytes(content[at + 1 : at + 5], "big")
        return found


def test_a_lesson_takes_few_round_trips(postgres_url: str, tmp_path: Path) -> None:
    folder = postgres_url.partition("host=")[2]
    (path,) = [path for path in Path(folder).glob(".s.PGSQL.*") if path.suffix != ".lock"]
    listener = Listener(str(path), tmp_path)
    url = postgres_url.replace(f"host={folder}", f"host={tmp_path}")
    with listener, open_store(url, "trips", fingerprint="e", width=8) as store:
        (id,) = store.append(rows(1))
        before, key = store.totals(), np.ones(8, np.float32)
        # Statements are prepared on the server after a few repetitions.
        for _ in range(8):
            store.recall(key[None], 4)
            store.totals(before.generation)
        before_all = listener.waits()
        found = store.recall(key[None], 4).rows[0][0]
        update = RowUpdate(id, key=key, count=2, seen_generation=found.generation)
        store.replace([], [], update=[update], settings={"readers": {"weight": 1}})
        changed = store.totals(before.generation)
        assert listener.waits() - before_all == 3
        assert changed.state == {"weight": 1} and [total.examples for total in changed.classes] == [2]


def test_a_writer_that_hangs_in_its_transaction_holds_nobody_up_for_good(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.store.postgres_database.UNAVAILABLE_SECONDS", 0.2)
    with (
        open_store(postgres_url, "hangs", fingerprint="e", width=8) as store,
        psycopg.connect(postgres_url) as hanging,
    ):
        store.append(rows(2))
        hanging.execute("UPDATE apl.memories SET generation = generation")
        with pytest.raises(StoreUnavailable, match="try again soon"):
            store.append(rows(3))
        hanging.rollback()
        assert store.count() == 2 and len(store.append(rows(3))) == 3


def test_who_lacks_a_right_or_a_connection_is_told_in_a_sentence(postgres_url: str) -> None:
    guest = postgres_url.replace("postgres@/postgres", "guest@/plain")
    plain = postgres_url.replace("@/postgres", "@/plain")
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE DATABASE plain")
        owner.execute("CREATE ROLE guest LOGIN CONNECTION LIMIT 1")
        options = {"fingerprint": "e", "width": 8}
        with pytest.raises(StoreError, match="lacks the extension vector, and this user may not add it"):
            open_store(guest, **options)
        with psycopg.connect(plain, autocommit=True) as there:
            there.execute("CREATE EXTENSION vector")
        with pytest.raises(StoreError, match="may not make tables"):
            open_store(guest, **options)
        owner.execute("GRANT CREATE ON DATABASE plain TO guest")
        with open_store(guest, **options) as store:
            assert store.count() == 0
            with pytest.raises(StoreUnavailable, match="too many connections"):
                open_store(guest, read_only=True)


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    open_store(postgres_url, "newer", fingerprint="e", width=8).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE apl.schema_version SET version = 99")
        try:
            with pytest.raises(OtherSchema, match="schema 99.*upgrade apl"):
                open_store(postgres_url, "newer", fingerprint="e", width=8)
        finally:
            connection.execute("UPDATE apl.schema_version SET version = %s", (SCHEMA_VERSION,))


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="postgresql://127.0.0.1/db cannot be reached") as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/db", fingerprint="e", width=8)
    assert "secret" not in str(caught.value)
