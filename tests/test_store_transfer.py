"""Memories carried about: exported, imported, merged, embedded anew."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from apl.store import (
    FingerprintMismatch,
    NewRow,
    OtherSchema,
    RowUpdate,
    SourceShare,
    Store,
    StoreDamaged,
    StoreError,
    open_store,
)
from apl.store.transfer import (
    Copied,
    export_memory,
    import_memory,
    merge_memories,
    read_exported,
    reembed,
    save_copy,
)
from apl.store.verify import verify

WIDTH = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "letters.apl", fingerprint="e", width=WIDTH) as store:
        yield store


def memory(fingerprint: str = "e", width: int = WIDTH) -> Store:
    return open_store(None, "other", fingerprint=fingerprint, width=width)


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


def share(source: str | None, value: float, count: int = 1) -> SourceShare:
    return SourceShare(source, np.full(WIDTH, value * count, np.float64), count)


def shares(store: Store, id: int) -> dict[str | None, tuple[int, float]]:
    return {one.source: (one.count, float(one.total[0])) for one in store.shares([id]).get(id, ())}


def test_counts_and_shares_of_sources_are_carried_along(store: Store, tmp_path: Path) -> None:
    parts = (share("s", 0.5), share(None, 1.25, 2))
    store.append([row("a", 1.0, count=3, source="s", shares=parts), row("b", 2.0, payload=b"1")])
    export_memory(store, tmp_path / "out")
    imported, merged, anew = memory(), memory(), memory("new")
    import_memory(tmp_path / "out", imported)
    merge_memories(store, merged)
    for copy in (imported, merged):
        assert copy.load().counts.tolist() == [3, 1]
        assert shares(copy, 1) == {"s": (1, 0.5), None: (2, 2.5)} and shares(copy, 2) == {}
    store.replace([], [], update=[RowUpdate(1, payload=b"2")])
    # The new key is that of the row's own picture.
    store.update_settings({"model": "old", "n": 1})
    anew.update_settings({"model": "new"})
    reembed(store, anew, lambda payloads: np.ones((len(payloads), WIDTH)))
    assert anew.settings() == {"model": "new", "n": 1}
    assert anew.load().counts.tolist() == [3, 1] and anew.load().sources == ["s", None] and shares(anew, 1) == {}


def test_a_memory_is_saved_over_copies_of_itself_alone(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "copy.apl"
    store.append([row("a", 1.0, source="s", payload=b"p")], settings={"n": 1})
    for labels in (["a"], ["a", "b"]):
        save_copy(store, target, "default")
        with open_store(target, fingerprint="e", width=WIDTH) as copy:
            assert copy.load().labels == labels and copy.identity == store.identity and verify(copy) == []
        store.append([row("b", 2.0)])
    with open_store(tmp_path / "other.apl", fingerprint="e", width=WIDTH) as other:
        other.append([row("c", 3.0)])
    content = (tmp_path / "other.apl").read_bytes()
    with pytest.raises(StoreError, match="holds another memory .default.*overwrite=True"):
        save_copy(store, tmp_path / "other.apl", "default")
    (tmp_path / "text.apl").write_text("hello" * 200)
    with pytest.raises(StoreDamaged, match="is not a memory"):
        save_copy(store, tmp_path / "text.apl", "default")
    with pytest.raises(StoreError, match="own file"):
        save_copy(store, tmp_path / "letters.apl", "default")
    assert (tmp_path / "other.apl").read_bytes() == content
    save_copy(store, tmp_path / "other.apl", "default", overwrite=True)
    with open_store(tmp_path / "other.apl") as copy:
        assert copy.load().labels == ["a", "b", "b"]
    assert not list(tmp_path.glob("*.part*")) and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["exported", "exported.zip"])
def test_an_exported_memory_is_on_the_disk_before_it_has_its_name_and_is_for_its_owner_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    synced, sync, target = [], os.fsync, tmp_path / "exports" / name

    def noted(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, target.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    export_memory(store, target)
    files = ["whole"] if name.endswith("zip") else ["memory.json", "rows.safetensors", "whole"]
    assert synced == [*((file, False) for file in files), ("exports", True)]
    assert target.stat().st_mode & 0o077 == 0


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
    for version, what in ((1, "too old"), (99, "upgrade apl")):
        description.write_text(json.dumps(good | {"format_version": version}))
        with pytest.raises(OtherSchema, match=what):
            import_memory(tmp_path / "out", copy)
    description.write_text(text)
    for wrong_data in (data[:-5], b"", safetensors.numpy.save(arrays | {"payload": np.zeros(2, np.uint8)})):
        rows.write_bytes(wrong_data)
        with pytest.raises(StoreDamaged, match="damaged"):
            import_memory(tmp_path / "out", copy)
    with pytest.raises(StoreError, match="No such file"):
        read_exported(tmp_path / "nowhere")
    assert copy.count() == 0


def test_merging_adds_counts_up_and_merging_again_does_nothing(store: Store) -> None:
    ids = store.append([row("a", 1.0, source="s"), row("a", 1.0, source="t"), row(7, 2.0), row("b", 3.0, count=4)])
    other = memory()
    other.append(
        [
            row("a", 1.0, source="t", surprise_nats=9.0),  # the same example, learnt at another time
            row("7", 2.0, payload=b"p", written_at=5.0, surprise_nats=1.5),  # text, where the other is a number
            row("a", 1.5, source="s"),
            row(7, 2.0),
            row(7, 2.0),
            row("b", 3.0, count=2, source="u"),
        ]
    )
    before = {t.label: t for memory in (store, other) for t in memory.totals().classes}
    assert merge_memories(other, store) == Copied(4, 2)
    assert store.load().labels == ["a", "a", 7, "b", "7", "a"]
    assert store.load().counts.tolist() == [1, 1, 3, 6, 1, 1]
    assert shares(store, ids[3]) == {None: (4, 12.0), "u": (2, 6.0)}
    assert contents(store)[4] == ("7", str, [2.0] * 3, 1.5, 5.0, None, b"p") and before[7].examples == 2
    content = contents(store)
    assert merge_memories(other, store) == Copied(0, 6) and merge_memories(store, store) == Copied(0, 6)
    assert contents(store) == content and verify(store) == []
    # A memory that has grown since adds what is new.
    other.append([row("late", 9.0)])
    assert merge_memories(other, store).written == 1 and store.load().labels[-1] == "late"


def test_memories_larger_than_a_block_are_merged_whole(store: Store) -> None:
    other = memory()
    other.append([row(number % 9, float(number)) for number in range(1200)])
    assert merge_memories(other, store) == Copied(1200, 0)
    assert contents(store) == contents(other)


def test_keys_of_different_encoders_do_not_mix(store: Store, tmp_path: Path) -> None:
    store.append([row("a", 1.0)])
    export_memory(store, tmp_path / "out")
    other = memory("another")
    for mix in (lambda: merge_memories(store, other), lambda: import_memory(tmp_path / "out", other)):
        with pytest.raises(FingerprintMismatch, match="'another'.*'e'.*apl memory reembed"):
            mix()
    with pytest.raises(StoreError, match="5 numbers"):
        merge_memories(store, memory(width=5))
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
    # Rows without a picture are left out, and named.
    (blank,) = store.append([row("b", 3.0)])
    assert reembed(store, memory("better encoder", width=2), embed) == Copied(2, 0, (blank,))
    bare = memory()
    bare.append([row("b", 3.0)])
    with pytest.raises(StoreError, match="no row of memory 'other' has a payload"):
        reembed(bare, memory("better encoder", width=2), embed)
    store.delete_label("b")
    with pytest.raises(ValueError, match=r"shape \[2, 2\], not \[2, 7\]"):
        reembed(store, memory("better encoder", width=7), embed)


def exported(store: Store, tmp_path: Path, rows: int = 3) -> tuple[Path, dict, dict[str, np.ndarray]]:
    store.append(
        [row(number % 3, float(number), payload=b"xyz", source="s") for number in range(rows)], settings={"n": 1}
    )
    export_memory(store, tmp_path / "out")
    description = json.loads((tmp_path / "out" / "memory.json").read_text())
    return tmp_path / "out", description, safetensors.numpy.load_file(tmp_path / "out" / "rows.safetensors")


def test_an_import_with_one_bad_row_among_thousands_writes_nothing_at_all(store: Store, tmp_path: Path) -> None:
    out, good, _ = exported(store, tmp_path, rows=700)
    copy = memory()
    good["labels"][600] = "x" * 9000
    (out / "memory.json").write_text(json.dumps(good))
    with pytest.raises((StoreDamaged, ValueError), match="nothing was written"):
        import_memory(out, copy)
    assert copy.count() == 0 and copy.settings() == {}


@pytest.mark.parametrize(
    ("column", "value"),
    [("key", 1e30), ("key", np.nan), ("surprise_nats", -np.inf), ("written_at", 1e300), ("written_at", -5.0)],
)
def test_an_imported_number_with_which_nobody_can_reckon_is_refused(
    store: Store, tmp_path: Path, column: str, value: float
) -> None:
    out, _, arrays = exported(store, tmp_path)
    arrays[column][1] = value
    safetensors.numpy.save_file(arrays, out / "rows.safetensors")
    copy = memory()
    with pytest.raises(StoreDamaged, match="row 1 of 3.*nothing was written"):
        import_memory(out, copy)
    with pytest.raises(StoreDamaged):
        import_memory(out, store)
    assert copy.count() == 0 and store.count() == 3


@pytest.mark.parametrize("depth", [60, 900, 200_000])
def test_settings_nested_too_deeply_are_refused(store: Store, tmp_path: Path, depth: int) -> None:
    out, good, _ = exported(store, tmp_path)
    text = json.dumps(good | {"settings": {"deep": "HERE"}}).replace('"HERE"', "[" * depth + "]" * depth)
    (out / "memory.json").write_text(text)
    copy = memory()
    with pytest.raises(StoreDamaged):
        import_memory(out, copy)
    assert copy.count() == 0 and copy.settings() == {}


@np.errstate(all="ignore")
def test_whatever_is_done_to_an_export_it_is_imported_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    out, good, arrays = exported(store, tmp_path)
    text, data = (out / "memory.json").read_bytes(), (out / "rows.safetensors").read_bytes()
    chance = random.Random(0)
    strange = [None, True, -1, 1.5, 10**30, "x", [], {}, [[]], [1, 2, 3], ["a", "b", "c"], float("inf"), "\ud800", "\0"]
    for _ in range(80):
        description, content = text, data
        match chance.randrange(4):
            case 0:
                name = chance.choice(list(good))
                description = json.dumps(good | {name: chance.choice(strange)}).encode()
            case 1:
                labels = list(good["labels"])
                labels[chance.randrange(3)] = chance.choice(strange)
                description = json.dumps(good | {chance.choice(["labels", "sources"]): labels}).encode()
            case 2:
                name = chance.choice(list(arrays))
                wrong = chance.choice(
                    [
                        arrays[name].astype(chance.choice([np.float16, np.int8, np.uint64, np.bool_])),
                        arrays[name][:1],
                        arrays[name][..., None],
                        np.full_like(arrays[name], chance.choice([0, 127, 1])),
                        np.zeros(0, np.float32),
                    ]
                )
                content = safetensors.numpy.save(arrays | {name: np.ascontiguousarray(wrong)})
            case _:
                changed = bytearray(chance.choice([text, data]))
                for _ in range(chance.randint(1, 4)):
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
                if changed[:1] == b"{" and len(changed) == len(text):
                    description = bytes(changed)
                else:
                    content = bytes(changed)
        (out / "memory.json").write_bytes(description)
        (out / "rows.safetensors").write_bytes(content)
        with memory() as copy:
            try:
                copied = import_memory(out, copy)
            except StoreError:
                assert copy.count() == 0 and copy.settings() == {} and copy.generation() == 0
            else:
                assert copied.written == copy.count() == 3 and verify(copy) == []
