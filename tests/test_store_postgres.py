"""What only memories on PostgreSQL can get wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from apl.store import (
    AlreadyAnswered,
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
