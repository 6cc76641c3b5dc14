"""What only memories on PostgreSQL can get wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from apl.classifier.durable_memory import forget_source
from apl.store import (
    AlreadyAnswered,
    MergedExample,
    NewerSchema,
    NewRow,
    RowChanged,
    RowUpdate,
    Store,
    StoreAway,
    StoreBusy,
    StoreError,
    open_store,
)

psycopg = pytest.importorskip("psycopg")
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
            lines = connection.execute("EXPLAIN " + store._recall_query(5), (np.zeros(8, np.float32),))
            return "\n".join(line for (line,) in lines)

    with open_store(postgres_url, "indexed", fingerprint="e", width=8, approximate=True) as store:
        store.append(rows(300))
        assert "rows_hnsw" in plan(store)
        found = store.nearest(rows(300)[17].key, 5)
        assert found.ids[0] == 18 and found.distances[0] == 0
        assert 0.9 <= store.index_recall() <= 1
    with open_store(postgres_url, "indexed", fingerprint="e", width=8) as store:
        assert "rows_hnsw" not in plan(store) and store.index_recall() is not None
    with open_store(postgres_url, "not-indexed", fingerprint="e", width=8) as store:
        store.append(rows(3))
        assert store.index_recall() is None
    with pytest.raises(StoreError, match="at most 2000"):
        open_store(postgres_url, "wide", fingerprint="e", width=2001, approximate=True)


def test_a_lost_connection_is_one_sentence_and_loses_nothing(postgres_url: str) -> None:
    with open_store(postgres_url, "lost", fingerprint="e", width=8) as store:
        store.append(rows(3))
        (backend,) = store._connection.execute("SELECT pg_backend_pid()").fetchone()
        with open_store(postgres_url, "other", fingerprint="e", width=8) as other:
            other._connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
        with pytest.raises(StoreAway, match="does not answer"):
            store.append(rows(3))
        # The next call makes the connection, and the lock, anew.
        assert store.count() == 3 and len(store.append(rows(1))) == 1
        with pytest.raises(StoreBusy):
            open_store(postgres_url, "lost", fingerprint="e", width=8)
    # The lock went with the connection.
    with open_store(postgres_url, "lost", fingerprint="e", width=8, timeout=10.0) as store:
        assert store.count() == 4


def test_a_writer_that_lost_its_lock_to_another_is_told(postgres_url: str) -> None:
    with open_store(postgres_url, "stolen", fingerprint="e", width=8) as store:
        store.append(rows(1))
        store._connection.close()
        with open_store(postgres_url, "stolen", fingerprint="e", width=8, timeout=10.0) as thief:
            with pytest.raises(StoreBusy, match="open for writing elsewhere"):
                store.append(rows(1))
            thief.append(rows(1))
        with pytest.raises(StoreBusy, match="written by somebody else meanwhile"):
            store.append(rows(1))


def test_writers_who_share_a_memory_lose_nothing_and_merge_one_after_the_other(postgres_url: str) -> None:
    merges, clashes, answered = 15, [], []

    def work(number: int) -> None:
        with open_store(postgres_url, "shared", fingerprint="e", width=8, shared=True) as store:
            for merge in range(merges):
                store.append([NewRow(f"{number}-{merge}", np.ones(8, np.float32))])
                while True:
                    row = store.row(first)
                    mean = row.key + (number + 1 - row.key) / (row.count + 1)
                    update = RowUpdate(first, key=mean, count=row.count + 1, seen_count=row.count)
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

    with open_store(postgres_url, "shared", fingerprint="e", width=8, shared=True) as store:
        (first,) = store.append([NewRow("all", np.zeros(8, np.float32))])
        with pytest.raises(StoreBusy):
            with open_store(postgres_url, "shared", fingerprint="e", width=8) as alone:
                store.append(rows(1))
                alone.append(rows(1))
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


def test_forgetting_a_source_keeps_what_another_process_merges_at_the_same_instant(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"fingerprint": "e", "width": 8, "shared": True}
    one, two = np.full(8, 1, np.float32), np.full(8, 2, np.float32)
    with open_store(postgres_url, "forget", **options) as store, open_store(postgres_url, "forget", **options) as other:
        alone, mixed = store.append([NewRow("a", one, source="mine"), NewRow("a", one, source="mine")])
        both = (MergedExample("mine", one), MergedExample("theirs", two))
        store.replace([], [], update=[RowUpdate(mixed, key=(one + two) / 2, count=2, merged=both)])
        read = store.merged_into

        def read_and_be_overtaken(ids: Iterable[int]) -> dict[int, list[MergedExample]]:
            found = read(ids)
            if other.row(alone).count == 1:
                for id, first in ((alone, (MergedExample("mine", one),)), (mixed, ())):
                    count = other.row(id).count
                    merged = (*first, MergedExample("late", two))
                    other.replace([], [], update=[RowUpdate(id, count=count + 1, merged=merged, seen_count=count)])
            return found

        monkeypatch.setattr(store, "merged_into", read_and_be_overtaken)
        forgotten = forget_source(store, "mine")
        assert list(forgotten) == [] and sorted(forgotten.rebuilt) == [alone, mixed]
        assert other.row(alone).source == "late" and [e.source for e in other.merged(mixed)] == ["theirs", "late"]
        np.testing.assert_allclose(other.row(mixed).key, two)


def test_a_writer_that_hangs_in_its_transaction_holds_nobody_up_for_good(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apl.store.postgres_database.AWAY_SECONDS", 0.2)
    with (
        open_store(postgres_url, "hangs", fingerprint="e", width=8) as store,
        psycopg.connect(postgres_url) as hanging,
    ):
        store.append(rows(2))
        hanging.execute("UPDATE apl.memories SET generation = generation")
        with pytest.raises(StoreAway, match="try again soon"):
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
            with pytest.raises(StoreAway, match="too many connections"):
                open_store(guest, read_only=True)


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    with open_store(postgres_url, "newer", fingerprint="e", width=8) as store:
        store._connection.execute("UPDATE apl.schema_version SET version = 99")
        try:
            with pytest.raises(NewerSchema, match="schema 99.*upgrade apl"):
                open_store(postgres_url, "newer", fingerprint="e", width=8)
        finally:
            store._connection.execute("UPDATE apl.schema_version SET version = 2")


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="postgresql://127.0.0.1/db cannot be reached") as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/db", fingerprint="e", width=8)
    assert "secret" not in str(caught.value)
