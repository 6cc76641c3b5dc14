"""Memories carried about: exported, imported, merged, embedded anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from apl.store import FingerprintMismatch, NewerSchema, NewRow, Store, StoreDamaged, StoreError, open_store
from apl.store.ram import RamStore
from apl.store.transfer import Copied, export_memory, import_memory, merge, read_exported, reembed, verify

WIDTH = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "letters.apl", fingerprint="e", width=WIDTH) as store:
        yield store


def memory(fingerprint: str = "e", width: int = WIDTH) -> RamStore:
    return RamStore("other", fingerprint, width)


def row(label: str | int, value: float, **more: object) -> NewRow:
    return NewRow(label, np.full(WIDTH, value, np.float32), **more)


def contents(store: Store) -> list[tuple]:
    return [
        (r.label, type(r.label), r.key.tolist(), r.surprise_nats, r.written_at, r.source, r.payload)
        for r in store.rows()
    ]


def test_an_exported_memory_comes_back_whole(store: Store, tmp_path: Path) -> None:
    store.append(
        [
            row("7", 1.0, surprise_nats=float("inf"), source="é", payload=b""),
            row(7, 2.0, written_at=3.25, payload=b"\0\1"),
            row("東", 0.1),
            row("gone", 9.0, payload=b"x"),
        ],
        settings={"sigma": 0.75},
    )
    store.delete_label("gone")
    assert export_memory(store, tmp_path / "sub" / "out") == 3
    assert sorted(p.name for p in (tmp_path / "sub" / "out").iterdir()) == ["memory.json", "rows.safetensors"]
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["out"]
    copy = memory()
    assert import_memory(tmp_path / "sub" / "out", copy) == Copied(3, 0)
    assert contents(copy) == contents(store) and copy.settings() == {"sigma": 0.75}
    assert import_memory(tmp_path / "sub" / "out", copy) == Copied(0, 3)
    with pytest.raises(StoreError, match="there already"):
        export_memory(store, tmp_path / "sub" / "out")


def test_an_empty_memory_can_be_exported_too(store: Store, tmp_path: Path) -> None:
    export_memory(store, tmp_path / "out")
    copy = memory()
    assert import_memory(tmp_path / "out", copy) == Copied(0, 0) and copy.count() == 0


def test_importing_leaves_the_settings_of_a_memory_in_use_alone(store: Store, tmp_path: Path) -> None:
    store.append([row("a", 1.0)], settings={"sigma": 0.75})
    export_memory(store, tmp_path / "out")
    used = memory()
    used.append([row("b", 1.0)], settings={"sigma": 0.5})
    import_memory(tmp_path / "out", used)
    assert used.settings() == {"sigma": 0.5} and used.load().labels == ["b", "a"]


def test_a_damaged_export_is_refused_and_nothing_is_imported(store: Store, tmp_path: Path) -> None:
    store.append([row("a", 1.0, payload=b"abc"), row("b", 2.0)])
    export_memory(store, tmp_path / "out")
    description, rows = tmp_path / "out" / "memory.json", tmp_path / "out" / "rows.safetensors"
    text, data = description.read_text(), rows.read_bytes()
    good, arrays = json.loads(text), safetensors.numpy.load(data)
    copy = memory()
    for wrong in (
        text[:-20],
        "[]",
        "{}",
        json.dumps(good | {"labels": ["a"]}),
        json.dumps(good | {"sources": []}),
        json.dumps(good | {"labels": ["a", 1.5]}),
        json.dumps(good | {"format": "x"}),
    ):
        description.write_text(wrong)
        with pytest.raises((StoreDamaged, TypeError), match="no exported memory|damaged|text or an integer"):
            import_memory(tmp_path / "out", copy)
    description.write_text(json.dumps(good | {"format_version": 99}))
    with pytest.raises(NewerSchema, match="upgrade apl"):
        import_memory(tmp_path / "out", copy)
    description.write_text(text)
    for wrong_data in (data[:-5], b"", safetensors.numpy.save(arrays | {"payload": np.zeros(2, np.uint8)})):
        rows.write_bytes(wrong_data)
        with pytest.raises(StoreDamaged, match="damaged"):
            import_memory(tmp_path / "out", copy)
    with pytest.raises(StoreError, match="No such file"):
        read_exported(tmp_path / "nowhere")
    assert copy.count() == 0


def test_merging_copies_what_is_missing_and_merging_again_nothing(store: Store) -> None:
    store.append([row("a", 1.0, source="s"), row("a", 1.0, source="t"), row(7, 2.0)])
    other = memory()
    other.append(
        [
            row("a", 1.0, source="s", surprise_nats=9.0),  # the same row, learnt at another time
            row("7", 2.0, payload=b"p", written_at=5.0, surprise_nats=1.5),  # text, where the other is a number
            row("a", 1.5, source="s"),
            row(7, 2.0),
            row(7, 2.0),  # one copy more than there is
        ]
    )
    assert merge(other, store) == Copied(3, 2)
    assert store.load().labels == ["a", "a", 7, "7", "a", 7]
    assert contents(store)[3] == ("7", str, [2.0] * 3, 1.5, 5.0, None, b"p")
    assert merge(other, store) == Copied(0, 5)
    assert merge(store, store) == Copied(0, 6)
    assert verify(store) == []


def test_memories_larger_than_a_block_are_merged_whole(store: Store) -> None:
    other = memory()
    other.append([row(number % 9, float(number)) for number in range(1200)])
    assert merge(other, store) == Copied(1200, 0)
    assert contents(store) == contents(other)


def test_keys_of_different_encoders_do_not_mix(store: Store, tmp_path: Path) -> None:
    store.append([row("a", 1.0)])
    export_memory(store, tmp_path / "out")
    other = memory("another")
    for mix in (lambda: merge(store, other), lambda: import_memory(tmp_path / "out", other)):
        with pytest.raises(FingerprintMismatch, match="'another'.*'e'.*apl memory reembed"):
            mix()
    with pytest.raises(StoreError, match="5 numbers"):
        merge(store, memory(width=5))
    assert other.count() == 0


def test_keys_are_computed_anew_from_the_payloads(store: Store) -> None:
    store.append(
        [row("a", 1.0, payload=b"\5", source="s", written_at=2.0), row(2, 2.0, payload=b"\6")],
        settings={"n": 1},
    )
    new = memory("better encoder", width=2)

    def embed(payloads: list[bytes]) -> np.ndarray:
        return np.array([[payload[0], -payload[0]] for payload in payloads])

    assert reembed(store, new, embed) == Copied(2, 0)
    assert [(r.label, r.key.tolist(), r.source) for r in new.rows()] == [
        ("a", [5, -5], "s"),
        (2, [6, -6], None),
    ]
    assert new.settings() == {"n": 1} and new.row(1).written_at == 2.0 and store.count() == 2
    with pytest.raises(StoreError, match="not empty"):
        reembed(store, new, embed)
    store.append([row("b", 3.0)])
    with pytest.raises(StoreError, match="1 rows of memory 'default' have no payload"):
        reembed(store, memory("better encoder", width=2), embed)
    store.delete_label("b")
    with pytest.raises(ValueError, match=r"shape \[2, 2\], not \[2, 7\]"):
        reembed(store, memory("better encoder", width=7), embed)
