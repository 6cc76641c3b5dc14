"""Writers to Milvus that die half-way: its memories have transactions of their own making."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from apl.store import NewerSchema, NewRow, Store, StoreAway, StoreError, open_store

MilvusException = pytest.importorskip("pymilvus").MilvusException
pytest_plugins = ["store_servers"]


class Died(Exception):
    pass


def die(*_: object) -> None:
    raise Died


def row(label: str, **more: object) -> NewRow:
    return NewRow(label, np.zeros(4, np.float32), **more)


def opened(url: str, **options: object) -> Store:
    # The memory of the contract suite: making another one takes seconds.
    return open_store(url, "memory", **{"fingerprint": "encoder-1", "width": 4} | options)


@pytest.fixture
def url(milvus_url: str) -> str:
    with opened(milvus_url) as store:
        store.delete(store.load().ids.tolist())
        store.append([row("a"), row("b")])
    return milvus_url


def test_rows_of_a_write_that_never_ended_do_not_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url) as writer, opened(url, read_only=True) as reader:
        monkeypatch.setattr(writer._journal, "commit", die)
        with pytest.raises(Died):
            writer.append([row("c"), row("d")], settings={"n": 1})
        for store in (reader, writer):
            assert store.load().labels == ["a", "b"] and store.count() == 2
            assert len(store.nearest(np.zeros(4, np.float32), 9).ids) == 2
        torn = max(entity["id"] for entity in writer._query("batch > 0", ["id"]))
    with opened(url) as store:
        assert store.load().labels == ["a", "b"]
        assert store.append([row("e")])[0] > torn
        assert [r.label for r in store.rows()] == ["a", "b", "e"] and len(store._query("batch > 0", ["id"])) == 3


def test_a_writer_that_failed_once_goes_on_where_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url) as store:
        with monkeypatch.context() as failing:
            failing.setattr(store._journal, "commit", die)
            with pytest.raises(Died):
                store.append([row("c")])
        store.append([row("d")])
        assert store.load().labels == ["a", "b", "d"] and store.count() == 3


def test_a_removal_that_was_decided_is_finished_later(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url) as writer, opened(url, read_only=True) as reader:
        first = int(writer.load().ids[0])
        monkeypatch.setattr(writer, "_erase", die)
        with pytest.raises(Died):
            writer.replace([first], [row("c")])
        for store in (reader, writer):
            assert store.load().labels == ["b", "c"] and store.count() == 2
            assert first not in store.nearest(np.zeros(4, np.float32), 9).ids
    with opened(url) as store:
        assert store.load().labels == ["b", "c"] and len(store._query("batch > 0", ["id"])) == 2


def test_a_journal_whose_maker_died_before_it_was_loaded_can_be_used(
    milvus_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apl.store import milvus_journal

    monkeypatch.setattr(milvus_journal, "JOURNAL", "apl_journal_torn")
    for half_way in ("create_index", "load_collection"):
        client = milvus_journal.connect(milvus_url.removeprefix("milvus+"))
        journal = milvus_journal.Journal(client)
        with monkeypatch.context() as dying:
            dying.setattr(client, half_way, die)
            with pytest.raises(Died):
                journal.make()
        assert journal.exists() and journal.memories() == []
        client.drop_collection("apl_journal_torn")
        client.close()


def test_what_milvus_cannot_hold_is_refused_whole(url: str) -> None:
    with opened(url) as store:
        store.append([row("c", payload=b"x" * 49_000)])
        with pytest.raises(StoreError, match="payload of 50000 bytes is too large for Milvus; nothing was written"):
            store.append([row("d"), row("e", payload=b"x" * 50_000)])
        assert store.load().labels == ["a", "b", "c"] and len(store.payload(int(store.load().ids[2]))) == 49_000


def test_a_newer_schema_is_refused(url: str) -> None:
    from dataclasses import replace

    with opened(url) as store:
        newest = store._own
        store._journal.commit(replace(newest, batch=newest.batch + 1, schema_version=99))
        with pytest.raises(NewerSchema, match="schema 99.*upgrade apl"):
            opened(url)
        store._journal.erase("memory")
        store._journal.commit(newest)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="no Milvus server answers at http://127.0.0.1:1: ") as caught:
        open_store("milvus+http://me:secret@127.0.0.1:1", fingerprint="e", width=8)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_still_starting_is_away_and_a_refusal_is_not(url: str) -> None:
    with opened(url, shared=True) as store:
        for code, kind in ((101, StoreAway), (503, StoreAway), (1100, StoreError)):
            with pytest.raises(StoreError) as raised, store._plain_errors():
                raise MilvusException(code, "so it is")
            assert type(raised.value) is kind and "so it is" in str(raised.value)


def test_a_search_tells_the_generation_and_a_sample_takes_the_oldest(url: str) -> None:
    with opened(url, shared=True) as one, opened(url, shared=True) as other:
        key = np.zeros((1, 4), np.float32)
        before = one.recall(key, 3).generation
        assert before == one.generation()
        other.append([row("c") for _ in range(9)])
        assert one.recall(key, 3).generation == other.generation() > before
        assert one.oldest(2).labels == ["a", "b"] and one.ids(most=3) == one.ids()[:3]


def test_settings_and_receipts_of_any_number_and_length_fit(url: str) -> None:
    with opened(url) as store:
        store.update_settings({"long": "é" * 70_000})
        for number in range(3):
            store.replace(
                [],
                [],
                settings={f"files seen/{number}-{n}": ["0123456789abcdef" * 4] * 64 for n in range(20)},
                receipts={f"{number}-{n}": {"row": n, "text": "x" * 500} for n in range(100)},
            )
        assert store.settings()["long"] == "é" * 70_000 and len(store.settings()) >= 61
        assert store.receipt("1-99")["row"] == 99


def test_a_memory_of_the_first_version_is_brought_up_to_date(milvus_url: str) -> None:
    from apl.store import milvus_journal, milvus_rows
    from apl.store.milvus_journal import DataType

    address = milvus_url.removeprefix("milvus+")
    client = milvus_journal.connect(address)
    journal = milvus_journal.Journal(client)
    journal.make()
    record = milvus_journal.Record(
        "old", "e", 2, 1.0, schema_version=1, batch=3, next_id=4, removed=[2], settings={"n": "1"}
    )
    text, number = {"datatype": DataType.VARCHAR, "max_length": 9000}, {"datatype": DataType.INT64}
    fields = {
        **{"id": number, "batch": number, "label": text, "label_hash": number, "source": text, "source_hash": number},
        **{"surprise_nats": {"datatype": DataType.DOUBLE}, "written_at": {"datatype": DataType.DOUBLE}},
        **{"payload": text, "key": {"datatype": DataType.FLOAT_VECTOR, "dim": 2}},
    }
    milvus_journal.make_collection(client, milvus_rows.collection_name("old", 1), fields)
    milvus_journal.make_ready(client, milvus_rows.collection_name("old", 1), "key")
    for id in (1, 2, 3):
        kept = NewRow(f"label {id}", np.ones(2, np.float32), 0.5, 1.5, "s", b"p", id=id)
        entity = milvus_rows.entity_of(3, kept)
        client.insert(milvus_rows.collection_name("old", 1), [{name: entity[name] for name in fields}])
    journal.commit(record)
    client.close()
    with pytest.raises(StoreError, match="open it for writing once"):
        open_store(milvus_url, "old", read_only=True)
    with open_store(milvus_url, "old", fingerprint="e", width=2) as store:
        assert store.load().labels == ["label 1", "label 3"] and store.settings() == {"n": 1}
        assert store.row(1).payload == b"p" and store.load().counts.tolist() == [1, 1]
        assert store.append([NewRow("new", np.zeros(2, np.float32))])[0] >= 4


def test_writers_who_share_a_memory_take_turns_and_lose_nothing(url: str) -> None:
    from apl.store import AlreadyAnswered, RowChanged, RowUpdate

    merges, answered = 3, []

    def work(number: int) -> None:
        with opened(url, shared=True) as store:
            for merge in range(merges):
                while True:
                    seen = store.row(first)
                    mean = seen.key + (number + 1 - seen.key) / (seen.count + 1)
                    update = RowUpdate(first, key=mean, count=seen.count + 1, seen_count=seen.count)
                    try:
                        store.replace([], [row(f"{number}-{merge}")], update=[update])
                        break
                    except RowChanged:
                        continue
                try:
                    store.replace([], [], receipts={f"request {merge}": number})
                    answered.append(merge)
                except AlreadyAnswered:
                    pass

    with opened(url) as alone:
        (first,) = alone.append([NewRow("all", np.zeros(4, np.float32))])
        before = alone.count()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with opened(url, read_only=True) as store:
        merged, ids = store.row(first), store.ids()
        assert merged.count == 2 * merges + 1 and sorted(answered) == list(range(merges))
        np.testing.assert_allclose(merged.key, np.full(4, merges * 3 / merged.count), rtol=1e-5)
        assert store.count() == before + 2 * merges == len(set(ids))
        totals = {total.label: total for total in store.totals().classes}
        np.testing.assert_allclose(totals["all"].total, merged.key * merged.count, rtol=1e-5)


def test_the_turn_of_a_dead_writer_is_taken_over_and_its_write_is_void(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apl.store import StoreBusy, milvus_turn

    with opened(url, shared=True) as sleeper, opened(url, shared=True) as other:
        other.append([row("before")])
        finish = sleeper._finish

        def asleep(*everything: object) -> None:
            # Its rows are there and its lease is over: the other writes, and only then does it wake.
            monkeypatch.setattr(milvus_turn, "LEASE_SECONDS", 0.1)
            other.append([row("after")])
            monkeypatch.setattr(milvus_turn, "LEASE_SECONDS", 1000.0)
            finish(*everything)

        monkeypatch.setattr(sleeper, "_finish", asleep)
        with pytest.raises(StoreBusy, match="took too long"):
            sleeper.append([row("never")])
        monkeypatch.undo()
        assert other.load().labels[-2:] == ["before", "after"] and "never" not in other.class_counts()
        sleeper.append([row("awake")])
        for store in (sleeper, other):
            found = store.recall(np.zeros((1, 4), np.float32), 99)
            assert "never" not in found.labels[0] and "awake" in found.labels[0]
