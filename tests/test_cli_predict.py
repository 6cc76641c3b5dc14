"""`apl predict` and `apl explain` on what people really hand over."""

from __future__ import annotations

import json

import numpy as np
import pytest
from letters import call, memory, model, pictures, said, scribble  # noqa: F401
from PIL import Image
from test_image_file import EPS, no_other_program  # noqa: F401

from apl.store import NewRow, open_store


def test_a_bad_picture_is_named_and_the_good_ones_are_answered(pictures, memory, capsys, tmp_path) -> None:
    (tmp_path / "bad.png").write_text("not a picture")
    good = pictures / "dash" / "1.png"
    for order in ((tmp_path / "bad.png", good), (good, tmp_path / "bad.png"), (tmp_path / "none.png", good)):
        status, out, err = said(capsys, "predict", *order, "--memory", memory)
        assert status == 1 and ("bad.png: not a picture" in err or "none.png: there is no such file" in err)
        assert out.startswith(f"{good}\tdash\t") and len(out.splitlines()) == 1


def test_a_directory_is_answered_whole_with_its_accuracy(pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "predict", pictures, "--memory", memory)
    *answers, summary = out.splitlines()
    assert status == 0, err
    assert len(answers) == 6 and summary == "6 of 6 right (100.0%)"
    (pictures / "I").rename(pictures / "eye")
    status, out, _ = said(capsys, "predict", pictures, "--memory", memory, "--json")
    *answers, summary = map(json.loads, out.splitlines())
    assert [a.get("right") for a in answers] == [True] * 3 + [None] * 3
    assert summary == {"asked": 3, "right": 3, "accuracy": 1.0, "of_unknown_labels": 3, "unreadable": 0}


def test_one_folder_of_a_label_is_answered_too_and_an_empty_one_is_an_error(pictures, memory, capsys, tmp_path) -> None:
    assert said(capsys, "predict", pictures / "I", "--memory", memory)[1].splitlines()[-1] == "3 of 3 right (100.0%)"
    (tmp_path / "empty").mkdir()
    status, out, err = said(capsys, "predict", tmp_path / "empty", "--memory", memory)
    assert status == 2 and "no pictures in" in err and out == ""


@pytest.mark.parametrize(
    "wrong", [("--new-above", "5"), ("--new-above", "-0.1"), ("--new-above", "nan"), ("--top", "0")]
)
def test_a_threshold_that_is_no_probability_is_refused(wrong, pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "predict", pictures, "--memory", memory, *wrong)
    assert status == 2 and out == "" and ("from 0 to 1" in err or "at least 1" in err)


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
