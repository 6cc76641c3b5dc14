"""`apl predict` and `apl explain` on what people really hand over."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from letters import call, learnt, letters_as_text, memory, model, pictures, said, scribble  # noqa: F401
from PIL import Image
from test_image_file import EPS, no_other_program  # noqa: F401

from apl.classifier.answers import Probabilities
from apl.classifier.online import OnlineClassifier
from apl.cli import main
from apl.cli.embedding import Batch, embed_batch
from apl.cli.examples import FoundExample
from apl.store import NewRow, open_store


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


def test_a_bad_picture_is_named_and_the_good_ones_are_answered(pictures, memory, capsys, tmp_path) -> None:
    (tmp_path / "bad.png").write_text("not a picture")
    good = pictures / "dash" / "1.png"
    for order in ((tmp_path / "bad.png", good), (good, tmp_path / "bad.png"), (tmp_path / "none.png", good)):
        status, out, err = said(capsys, "predict", *order, "--memory", memory)
        assert status == 1 and ("bad.png: not a picture" in err or "none.png: there is no such file" in err)
        assert out.startswith(f"{good}\tdash\t") and len(out.splitlines()) == 1


def test_a_directory_is_answered_whole_with_its_accuracy(pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "predict", pictures, "--memory", memory)
    answers, summary = out.split("\n\n", 1)
    assert status == 0, err
    assert len(answers.splitlines()) == 6 and summary.endswith("\n6 of 6 right (100.0%)\n")
    assert [line.split() for line in summary.splitlines()[1:3]] == [
        ["I", "3", "3", "100.0%"],
        ["dash", "3", "3", "100.0%"],
    ]
    (pictures / "I").rename(pictures / "eye")
    status, out, _ = said(capsys, "predict", pictures, "--memory", memory, "--json")
    *answers, summary = map(json.loads, out.splitlines())
    assert [a.get("right") for a in answers] == [True] * 3 + [None] * 3
    assert summary == {
        "asked": 3, "right": 3, "accuracy": 1.0, "of_unknown_labels": 3, "unreadable": 0,
        "classes": [{"label": "dash", "asked": 3, "right": 3}], "confusions": [],
    }  # fmt: skip


def test_a_folder_whose_name_is_no_class_is_answered_without_a_score(pictures, memory, capsys) -> None:
    (pictures / "I").rename(pictures / "new ones")
    status, out, err = said(capsys, "predict", pictures / "new ones", "--memory", memory)
    assert (status, err) == (0, "") and [line.split("\t")[1] for line in out.splitlines()] == ["I"] * 3


def test_a_wrong_answer_is_counted_for_its_class_and_as_a_confusion(pictures, memory, capsys) -> None:
    (pictures / "dash" / "0.png").write_bytes((pictures / "I" / "0.png").read_bytes())
    _, out, _ = said(capsys, "predict", pictures, "--memory", memory)
    rows = [line.split() for line in out.split("\n\n")[1].splitlines()]
    assert rows[1:] == [["dash", "3", "2", "66.7%"], ["I", "3", "3", "100.0%"]], "the worst class comes first"
    assert "Commonest confusions:\n  dash → I: 1\n" in out and out.endswith("5 of 6 right (83.3%)\n")
    summary = json.loads(said(capsys, "predict", pictures, "--memory", memory, "--json")[1].splitlines()[-1])
    assert summary["confusions"] == [{"label": "dash", "answer": "I", "count": 1}]


def test_a_folder_is_answered_in_batches(pictures, memory, capsys, monkeypatch) -> None:
    one_by_one = said(capsys, "predict", *sorted(pictures.rglob("*.png")), "--memory", memory)[1]
    asked: list[int] = []
    ask = OnlineClassifier.predict_proba_many

    def counted(classifier: OnlineClassifier, X: Any, **options: Any) -> list[Probabilities]:
        asked.append(len(X))
        return ask(classifier, X, **options)

    monkeypatch.setattr(OnlineClassifier, "predict_proba_many", counted)
    monkeypatch.setattr("apl.cli.embedding.AT_ONCE", 4)
    assert said(capsys, "predict", pictures, "--memory", memory)[1].startswith(one_by_one) and asked == [4, 2]


def test_linked_folders_are_followed_and_loops_are_not(pictures, memory, capsys, tmp_path) -> None:
    (pictures / "I").rename(tmp_path / "elsewhere")
    (pictures / "I").symlink_to(tmp_path / "elsewhere")
    (pictures / "dash" / "round").symlink_to("..")
    (tmp_path / "elsewhere" / "back").symlink_to(pictures / "dash")
    (pictures / "dash" / "forth").symlink_to(tmp_path / "elsewhere")
    _, out, err = said(capsys, "predict", pictures, "--memory", memory)
    assert "6 of 6 right" in out and "round: left out, a link back" in err and "back: left out" in err


def test_ctrl_c_keeps_the_answers_so_far_and_counts_them(pictures, memory, capsys, monkeypatch) -> None:
    embed = embed_batch

    def interrupted(classifier: OnlineClassifier, examples: list[FoundExample]) -> Batch:
        if examples[0].label == "dash":
            raise KeyboardInterrupt
        return embed(classifier, examples)

    monkeypatch.setattr("apl.cli.embedding.AT_ONCE", 3)
    monkeypatch.setattr("apl.cli.embedding.embed_batch", interrupted)
    status, out, err = said(capsys, "predict", pictures, "--memory", memory)
    assert (
        status == 130 and "interrupted: 3 of 6 examples are answered" in err and out.endswith("3 of 3 right (100.0%)\n")
    )


def test_a_progress_bar_on_the_terminal_leaves_the_answers_in_the_pipe(pictures, memory) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "apl", "predict", str(pictures), "--memory", str(memory)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    assert done.returncode == 0 and done.stdout.count("\tnew ") == 6
    assert b"6/6" in os.read(ours, 100_000)
    os.close(ours)


def test_answers_as_csv_leave_the_accuracy_to_stderr(pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "predict", pictures / "I", "--memory", memory, "--csv")
    head, first, *more = csv.reader(out.splitlines())
    assert head == ["example", "label", "probability", "probability_new", "expected"] and len(more) == 2
    assert (first[0], first[1], first[4]) == (str(pictures / "I" / "0.png"), "I", "I") and "3 of 3 right" in err
    assert status == 0 and 0 <= float(first[2]) <= 1 and 0 <= float(first[3]) <= 1
    assert said(capsys, "predict", pictures, "--memory", memory, "--csv", "--json")[0] == 2


def given(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    """Standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8"))


def test_paths_of_pictures_come_from_standard_input(pictures, memory, capsys, monkeypatch) -> None:
    given(monkeypatch, f"{pictures / 'I' / '0.png'}\n{pictures / 'dash' / '0.png'}\n")
    assert [line.split("\t")[1] for line in said(capsys, "predict", "-", "--memory", memory)[1].splitlines()] == [
        "I",
        "dash",
    ]


def test_empty_standard_input_is_an_error(memory, capsys, monkeypatch) -> None:
    given(monkeypatch, "\n")
    status, out, err = said(capsys, "predict", "-", "--memory", memory)
    assert (status, out) == (2, "") and "standard input is empty" in err


@pytest.fixture
def intents(letters_as_text, capsys, tmp_path) -> Path:
    table, memory = tmp_path / "intents.csv", tmp_path / "intents.apl"
    table.write_text("text,label\nwhere is my card,card\nwhat is the rate,rate\n")
    call(capsys, "learn", table, "--memory", memory)
    return memory


def test_a_table_without_labels_is_answered(intents, capsys, tmp_path) -> None:
    table = tmp_path / "asked.csv"
    table.write_text("id,text\n7,where is my card\n8,what is the rate\n")
    status, out, err = said(capsys, "predict", table, "--memory", intents, "--json")
    assert status == 0 and [json.loads(line)["label"] for line in out.splitlines()] == ["card", "rate"], err
    table.write_text("text,label\nwhere is my card,card\nwhat is the rate,\n")
    assert said(capsys, "predict", table, "--memory", intents)[1].endswith("1 of 1 right (100.0%)\n")
    status, _, err = said(capsys, "learn", table, "--memory", intents)
    assert status == 2 and "line 3: the label is empty" in err


@pytest.mark.parametrize(
    "content",
    ["where is my card\nwhat is the rate\n", "text,label\nwhere is my card,card\nwhat is the rate,rate\n",
     '{"text": "where is my card"}\n{"text": "what is the rate", "label": "rate"}\n',
     "number\ttext\n1\twhere is my card\n2\twhat is the rate\n"],
)  # fmt: skip
def test_texts_come_from_standard_input_as_lines_or_tables(content, intents, capsys, monkeypatch) -> None:
    given(monkeypatch, content)
    status, out, err = said(capsys, "predict", "-", "--memory", intents, "--csv")
    assert status == 0, err
    assert [row[:2] for row in csv.reader(out.splitlines())][1:] == [
        ["where is my card", "card"],
        ["what is the rate", "rate"],
    ]


def test_one_folder_of_a_label_is_answered_too_and_an_empty_one_is_an_error(pictures, memory, capsys, tmp_path) -> None:
    assert said(capsys, "predict", pictures / "I", "--memory", memory)[1].splitlines()[-1] == "3 of 3 right (100.0%)"
    (tmp_path / "empty").mkdir()
    status, out, err = said(capsys, "predict", tmp_path / "empty", "--memory", memory)
    assert status == 2 and "no pictures in" in err and out == ""


@pytest.mark.parametrize("wrong", [("--new-above", "5"), ("--new-above", "-0.1"), ("--new-above", "nan")])
def test_a_threshold_that_is_no_probability_is_refused(wrong, pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "predict", pictures, "--memory", memory, *wrong)
    assert status == 2 and out == "" and "from 0 to 1" in err


def test_a_picture_turned_by_the_camera_is_answered_as_it_stands(pictures, memory, capsys, tmp_path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(pictures / "dash" / "0.png") as dash:
        dash.save(tmp_path / "turned.jpg", exif=exif.tobytes(), quality=100)
    assert call(capsys, "predict", tmp_path / "turned.jpg", "--memory", memory)["label"] == "I"


def test_a_payload_of_postscript_starts_no_program(pictures, memory, capsys, no_other_program, monkeypatch) -> None:
    monkeypatch.chdir(memory.parent)
    with open_store(memory) as store:
        row = next(iter(store.rows()))
        store.replace([row.id], [NewRow(row.label, row.key, payload=EPS)])
    status, _, err = said(capsys, "explain", pictures / row.label / "0.png", "--memory", memory)
    assert status == 0 and "not a picture" not in err


def test_labels_of_any_kind_are_explained(pictures, memory, capsys, tmp_path, monkeypatch) -> None:
    for label in ("日本", "x" * 190, "a\tb"):
        scribble(pictures / label / "0.png", len(label))
    call(capsys, "learn", pictures, "--memory", memory)
    monkeypatch.chdir(tmp_path)
    explained = call(capsys, "explain", pictures / "日本" / "0.png", "--memory", memory)
    with Image.open(explained["picture"]) as picture:
        assert np.asarray(picture.convert("L")).min() < 100
