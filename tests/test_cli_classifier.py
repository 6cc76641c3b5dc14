"""The commands around a memory of pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from letters import call, memory, model, pictures, said  # noqa: F401
from PIL import Image

from apl.cli import main


def test_learning_again_learns_only_what_is_new_or_changed(pictures, memory, capsys) -> None:
    again = call(capsys, "learn", pictures, "--memory", memory)
    assert again["learnt"] == 0 and again["already_known"] == 6
    Image.fromarray(255 * np.eye(20, dtype=np.uint8)).save(pictures / "I" / "0.png")
    changed = call(capsys, "learn", pictures, "--memory", memory)
    assert changed["learnt"] == 1 and changed["already_known"] == 5


def test_a_file_that_is_no_picture_is_named_and_the_rest_is_learnt(pictures, memory, capsys) -> None:
    (pictures / "I" / "broken.png").write_text("not a picture")
    (pictures / "I" / "more.png").write_bytes((pictures / "dash" / "0.png").read_bytes())
    assert main(["learn", str(pictures), "--memory", str(memory), "--json"]) == 1
    captured = capsys.readouterr()
    assert "broken.png" in captured.err
    assert json.loads(captured.out)["learnt"] == 1


def test_predict_and_explain(pictures, memory, capsys, tmp_path) -> None:
    answer = call(capsys, "predict", pictures / "dash" / "1.png", "--memory", memory)
    assert answer["label"] == "dash" and 0 <= answer["probability_new"] <= 1
    assert main(["predict", *map(str, sorted((pictures / "I").iterdir())), "--memory", str(memory)]) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["I"] * 3
    explained = call(capsys, "explain", pictures / "I" / "0.png", "--memory", memory, "--out", tmp_path / "why.png")
    assert explained["predicted"] == explained["neighbours"][0]["label"] == "I" and explained["neighbours"][0][
        "source"
    ].startswith("letters/I/0.png#")
    with Image.open(tmp_path / "why.png") as picture:
        assert picture.width > 100


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "nothing.png", "--memory", "nowhere.apl"], "nowhere.apl"),
        (["learn", "no-such-directory", "--memory", "nowhere.apl"], "not a directory"),
        (["memory", "list", "nowhere.apl"], "does not exist"),
        (["memory", "show", "nowhere.apl"], "does not exist"),
    ],
)
def test_mistakes_are_one_sentence(arguments, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert not (tmp_path / "nowhere.apl").exists()


def test_the_demonstration_tells_what_it_did(model, capsys) -> None:
    small = ("--model", model, "--way", 4, "--drawings", 5)
    result = call(capsys, "demo", *small)
    assert result["examples"] == 20 and 4 <= result["stored"] <= 20 and 0 <= result["accuracy"] <= 1
    assert call(capsys, "demo", *small) == result
    assert call(capsys, "demo", *small, "--seed", 1)
    status, out, _ = said(capsys, "demo", *small)
    head, *lines = [line for line in out.splitlines() if line.startswith(("drawings", *"123456789"))][1:]
    assert status == 0 and head.split() == ["drawings", "named", "right", "kept", "in", "memory"] and len(lines) == 8
    for wrong in (("--way", "1"), ("--drawings", "1"), ("--seed", "-1")):
        assert main(["demo", "--model", model, *wrong]) == 2
