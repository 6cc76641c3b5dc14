"""Memories carried about: exported, imported, merged, embedded anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from apl.store import (
    FingerprintMismatch,
    MergedExample,
    NewerSchema,
    NewRow,
    RowUpdate,
    Store,
    StoreDamaged,
    StoreError,
    open_store,
)
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


def test_counts_and_merged_examples_are_carried_along(store: Store, tmp_path: Path) -> None:
    example = MergedExample("s", np.full(WIDTH, 0.5, np.float16))
    store.append(
        [row("a", 1.0, count=3, extra=b"x", merged=(example, MergedExample(None))), row("b", 2.0, payload=b"1")]
    )
    export_memory(store, tmp_path / "out")
    imported, merged, anew = memory(), memory(), memory("new")
    import_memory(tmp_path / "out", imported)
    merge(store, merged)
    for copy in (imported, merged):
        assert copy.load().counts.tolist() == [3, 1] and copy.load().extras == [b"x", None]
        kept = copy.merged(1)
        assert [e.source for e in kept] == ["s", None] and kept[0].key.tobytes() == example.key.tobytes()
        assert kept[1].key is None and copy.merged(2) == []
    store.replace([], [], update=[RowUpdate(1, payload=b"2")])
    reembed(store, anew, lambda payloads: np.ones((len(payloads), WIDTH)))
    assert anew.load().counts.tolist() == [3, 1] and [(e.source, e.key) for e in anew.merged(1)] == [
        ("s", None),
        (None, None),
    ]


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


def exported(store: Store, tmp_path: Path, rows: int = 3) -> tuple[Path, dict, dict[str, np.ndarray]]:
    store.append(
        [row(number % 3, float(number), payload=b"xyz", source="s") for number in range(rows)], settings={"n": 1}
    )
    export_memory(store, tmp_path / "out")
    description = json.loads((tmp_path / "out" / "memory.json").read_text())
    return tmp_path / "out", description, safetensors.numpy.load_file(tmp_path / "out" / "rows.safetensors")


def test_an_import_with_one_bad_row_among_thousands_writes_nothing_at_all(store: Store, tmp_path: Path) -> None:
    out, good, _ = exported(store, tmp_path, rows=2300)
    copy = memory()
    good["labels"][2200] = "x" * 9000
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
    for _ in range(300):
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
        with RamStore("copy", "e", WIDTH) as copy:
            try:
                copied = import_memory(out, copy)
            except StoreError:
                assert copy.count() == 0 and copy.settings() == {} and copy.generation() == 0
            else:
                assert copied.written == copy.count() == 3 and verify(copy) == []


def test_verify_names_parameters_with_which_a_memory_could_not_be_opened(store: Store) -> None:
    store.update_settings({"classifier": {"sigma": 0.5, "max_rows": None, "k": 3}})
    assert verify(store) == []
    store.update_settings({"classifier": {"sigma": -1, "max_rows": -3}})
    assert [problem.partition(":")[2] for problem in verify(store)] == [
        " sigma must be at least 0, it is -1",
        " max_rows must be at least 1, it is -3",
    ]
