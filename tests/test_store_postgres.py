"""What only memories on PostgreSQL can get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from apl.store import NewerSchema, NewRow, Store, StoreError, open_store

pytest_plugins = ["store_servers"]


def rows(count: int, width: int = 8) -> list[NewRow]:
    keys = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    return [NewRow(number, key) for number, key in enumerate(keys)]


def test_an_approximate_index_is_used_by_those_who_asked_for_it_only(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
        """How the server finds the nearest, when every other way than an index is discouraged."""
        lines: list[str] = []
        run = store._connection.execute
        for way in ("seqscan", "bitmapscan", "sort"):
            run(f"SET enable_{way} = off")

        def explained(query: str, values: tuple[object, ...]) -> object:
            if query.startswith("SELECT id"):
                lines.extend(line for (line,) in run("EXPLAIN " + query, values))
            return run(query, values)

        with monkeypatch.context() as patch:
            patch.setattr(store._connection, "execute", explained)
            store.nearest(np.zeros(8, np.float32), 5)
        return "\n".join(lines)

    with open_store(postgres_url, "indexed", fingerprint="e", width=8, approximate=True) as store:
        store.append(rows(300))
        assert "rows_hnsw" in plan(store, monkeypatch)
        found = store.nearest(rows(300)[17].key, 5)
        assert found.ids[0] == 18 and found.distances[0] == 0
    with open_store(postgres_url, "indexed", fingerprint="e", width=8) as store:
        assert "rows_hnsw" not in plan(store, monkeypatch)
    with pytest.raises(StoreError, match="at most 2000"):
        open_store(postgres_url, "wide", fingerprint="e", width=2001, approximate=True)


def test_a_lost_connection_is_one_sentence_and_loses_nothing(postgres_url: str) -> None:
    with open_store(postgres_url, "lost", fingerprint="e", width=8) as store:
        store.append(rows(3))
        (backend,) = store._connection.execute("SELECT pg_backend_pid()").fetchone()
        with open_store(postgres_url, "other", fingerprint="e", width=8) as other:
            other._connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
        with pytest.raises(StoreError, match="does not answer"):
            store.append(rows(3))
    # The lock went with the connection.
    with open_store(postgres_url, "lost", fingerprint="e", width=8, timeout=10.0) as store:
        assert store.count() == 3


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
