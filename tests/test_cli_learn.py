"""Folders as newcomers have them: nothing is lost without a word, and nothing foreign gets in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from letters import call, learnt, letters_as_text, memory, model, pictures, said, scribble  # noqa: F401
from PIL import Image
from test_image_file import EPS, encoded, huge_png, no_other_program  # noqa: F401
from test_images import clouds

from apl.classifier.online import OnlineClassifier
from apl.cli.embedding import Batch, embed_batch
from apl.cli.examples import FoundExample
from apl.store import open_store


def test_learning_again_learns_only_what_is_new_or_changed(pictures, memory, capsys) -> None:
    again = call(capsys, "learn", pictures, "--memory", memory)
    assert again["learnt"] == 0 and again["already_known"] == 6
    Image.fromarray(255 * np.eye(20, dtype=np.uint8)).save(pictures / "I" / "0.png")
    changed = call(capsys, "learn", pictures, "--memory", memory)
    assert changed["learnt"] == 1 and changed["already_known"] == 5


@pytest.mark.parametrize("wrong", [("--sigma", "-1"), ("--sigma", "nan"), ("--max-rows", "-3"), ("--max-rows", "0")])
def test_a_setting_that_cannot_be_is_refused_before_anything_is_written(wrong, memory, pictures, model, capsys) -> None:
    with open_store(memory, read_only=True) as store:
        before = store.settings(), store.generation()
    new = memory.with_name("new.apl")
    for place in (memory, new):
        status, out, err = said(capsys, "learn", pictures, "--memory", place, "--model", model, *wrong)
        assert status == 2 and "must be at least" in err and out == ""
    assert not new.exists()
    with open_store(memory, read_only=True) as store:
        assert (store.settings(), store.generation()) == before
    assert call(capsys, "learn", pictures, "--memory", memory)["already_known"] == 6


def test_postscript_under_a_pictures_name_starts_no_program(pictures, memory, capsys, no_other_program) -> None:
    (pictures / "I" / "drawing.png").write_bytes(EPS)
    status, out, err = said(capsys, "learn", pictures, "--memory", memory, "--json")
    assert status == 1 and "drawing.png: not a picture" in err and json.loads(out)["unreadable"] == 1
    _, out, _ = said(capsys, "learn", pictures, "--memory", memory, "--again")
    assert out.startswith("Learnt 6 examples, ") and " surprising; 1 could not be read. " in out


def test_a_picture_too_large_to_unpack_is_named_and_the_rest_is_learnt(pictures, model, capsys, tmp_path) -> None:
    (pictures / "I" / "huge.png").write_bytes(huge_png(20_000))
    status, out, err = said(capsys, "learn", pictures, "--memory", tmp_path / "new.apl", "--model", model, "--json")
    assert status == 1 and "huge.png: the picture has far too many pixels" in err
    assert json.loads(out)["learnt"] == 6


def test_a_blank_picture_of_the_named_ink_does_not_cost_the_others(pictures, model, capsys, tmp_path) -> None:
    pale = np.zeros((20, 20), np.uint8)
    pale[5:15, 9] = 255
    Image.fromarray(pale).save(pictures / "I" / "light.png")
    arguments = ("learn", pictures, "--memory", tmp_path / "new.apl", "--model", model, "--ink", "dark", "--json")
    status, out, err = said(capsys, *arguments)
    assert status == 1 and "light.png: the image is blank" in err and json.loads(out)["learnt"] == 6


def test_an_explanation_is_never_learnt(pictures, memory, capsys, monkeypatch) -> None:
    monkeypatch.chdir(pictures.parent)
    before = sorted(pictures.rglob("*"))
    explained = call(capsys, "explain", pictures / "I" / "0.png", "--memory", memory)
    assert sorted(pictures.rglob("*")) == before and Path(explained["picture"]).exists()
    # Put among the examples all the same, it is recognised.
    call(capsys, "explain", pictures / "I" / "0.png", "--memory", memory, "--out", pictures / "I" / "why.png")
    status, out, err = said(capsys, "learn", pictures, "--memory", memory, "--json")
    assert status == 1 and "why.png: this is a picture that apl made" in err
    assert json.loads(out)["learnt"] == 0


def test_a_budget_smaller_than_the_classes_says_which_are_lost(model, capsys, tmp_path) -> None:
    for number in range(12):
        scribble(tmp_path / "many" / f"label{number:02d}" / "0.png", number)
    arguments = ("learn", tmp_path / "many", "--memory", tmp_path / "new.apl", "--model", model)
    status, out, err = said(capsys, *arguments, "--max-rows", 5, "--json")
    result = json.loads(out)
    assert status == 0 and result["rows"] == result["classes"] == 5
    assert result["written"] - result["evicted"] == result["rows"], "the counts agree"
    assert len(result["labels_without_rows"]) == 7 and all(label in err for label in result["labels_without_rows"])
    assert "--max-rows 12 or more" in err
    again = call(capsys, *arguments, "--max-rows", 12)
    assert again["classes"] == 12 and again["labels_without_rows"] == [] and again["already_known"] == 5


def test_ctrl_c_keeps_what_is_learnt_and_the_next_run_goes_on(pictures, model, capsys, tmp_path, monkeypatch) -> None:
    memory, embed = tmp_path / "new.apl", embed_batch
    batches: list[int] = []

    def interrupted(classifier: OnlineClassifier, examples: list[FoundExample]) -> Batch:
        batches.append(len(examples))
        if len(batches) == 2:
            raise KeyboardInterrupt
        return embed(classifier, examples)

    with monkeypatch.context() as patched:
        patched.setattr("apl.cli.embedding.AT_ONCE", 4)
        patched.setattr("apl.cli.embedding.embed_batch", interrupted)
        status, out, err = said(capsys, "learn", pictures, "--memory", memory, "--model", model)
    assert status == 130 and "interrupted: 2 examples are left" in err and out.startswith("Learnt 4 examples,")
    again = call(capsys, "learn", pictures, "--memory", memory)
    assert again["learnt"] == 2 and again["already_known"] == 4


def test_what_an_interrupted_run_took_out_the_next_one_learns(pictures, memory, capsys, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("apl.classifier.online.OnlineClassifier.learn_many", interrupted)
        assert said(capsys, "learn", pictures, "--memory", memory, "--again")[0] == 130
    again = call(capsys, "learn", pictures, "--memory", memory)
    assert again["learnt"] == 6 and again["already_known"] == 0 and again["classes"] == 2


def test_it_ends_in_two_lines_and_verbose_adds_the_counts(pictures, model, capsys, tmp_path) -> None:
    memory = tmp_path / "new.apl"
    _, out, _ = said(capsys, "learn", pictures, "--memory", memory, "--model", model)
    learnt, following = out.splitlines()
    assert learnt.startswith("Learnt 6 examples,") and learnt.endswith(" rows of 2 classes.")
    assert following == f"Next: apl predict IMAGE --memory {memory}"
    counts, learnt, _ = said(capsys, "learn", pictures, "--memory", memory, "--verbose")[1].splitlines()
    assert (
        counts.startswith("learnt 0, ") and "already known 6" in counts and learnt.startswith("Nothing new: 6 examples")
    )


def test_where_nothing_can_be_read_no_next_step_is_named(model, capsys, tmp_path) -> None:
    (tmp_path / "junk" / "a").mkdir(parents=True)
    (tmp_path / "junk" / "a" / "x.png").write_bytes(bytes(range(256)))
    _, out, _ = said(capsys, "learn", tmp_path / "junk", "--memory", tmp_path / "new.apl", "--model", model)
    assert out.startswith("Nothing learnt; 1 could not be read.") and len(out.splitlines()) == 1


def test_a_source_is_forgotten_with_or_without_the_mark_of_its_content(pictures, memory, capsys) -> None:
    for name in ("letters/I/0.png", "letters/I/1.png"):
        assert call(capsys, "forget", "--memory", memory, "--source", name)
        assert said(capsys, "forget", "--memory", memory, "--source", name)[0] == 1, "nothing of it is left"
    assert call(capsys, "learn", pictures, "--memory", memory)["learnt"] == 2


def test_after_forgetting_the_folder_can_be_learnt_again(pictures, memory, capsys) -> None:
    call(capsys, "forget", "--memory", memory, "--label", "I")
    again = call(capsys, "learn", pictures, "--memory", memory)
    assert again["learnt"] == 3 and again["already_known"] == 3 and again["classes"] == 2
    again = call(capsys, "learn", pictures, "--memory", memory, "--again")
    assert again["learnt"] == 6 and again["already_known"] == 0 and again["classes"] == 2
    rows = again["rows"]
    assert call(capsys, "learn", pictures, "--memory", memory, "--again")["rows"] <= rows, "no row is kept twice"


def test_what_was_learnt_from_files_that_are_gone_can_be_forgotten(pictures, memory, capsys, tmp_path) -> None:
    scribble(tmp_path / "elsewhere" / "dash" / "far.png", 5)
    call(capsys, "learn", tmp_path / "elsewhere", "--memory", memory)
    for path in (pictures / "dash").iterdir():
        path.unlink()
    status, _, err = said(capsys, "learn", pictures, "--memory", memory)
    assert status == 0 and "3 examples learnt from here are gone: --forget-gone forgets them" in err
    told = call(capsys, "learn", pictures, "--memory", memory, "--forget-gone")
    assert told["forgotten"] == 3 and told["evicted"] == 0, "examples that shared a row are not counted as rows"
    left = {row["source"] for row in call(capsys, "memory", "show", memory, "--rows")["every_row"]}
    places = {source.partition("#")[0] for source in left}
    assert "elsewhere/dash/far.png" in places and all(p.startswith("letters/I/") for p in places if "letters" in p)
    scribble(pictures / "dash" / "0.png", 6)
    assert call(capsys, "learn", pictures, "--memory", memory)["learnt"] == 1, "a file that is back is new"


def test_a_picture_that_changes_back_is_learnt_back(pictures, memory, capsys) -> None:
    first, other = (pictures / "I" / "0.png").read_bytes(), (pictures / "dash" / "0.png").read_bytes()
    for content in (other, first):
        (pictures / "I" / "0.png").write_bytes(content)
        assert call(capsys, "learn", pictures, "--memory", memory)["learnt"] == 1


def test_two_folders_with_files_of_one_name_do_not_replace_each_other(pictures, memory, capsys, tmp_path) -> None:
    before = call(capsys, "memory", "show", memory, "--rows")["every_row"]
    for number in range(3):
        scribble(tmp_path / "others" / "I" / f"{number}.png", number)
    result = call(capsys, "learn", tmp_path / "others", "--memory", memory)
    assert result["learnt"] == 3 and result["replaced"] == 0
    after = call(capsys, "memory", "show", memory, "--rows")["every_row"]
    assert after[: len(before)] == before
    for directory in (pictures, tmp_path / "others"):
        assert call(capsys, "learn", directory, "--memory", memory)["learnt"] == 0


def test_what_is_left_out_of_a_folder_is_said(pictures, memory, capsys) -> None:
    (pictures / "I" / "photo.HEIC").write_bytes(b"?")
    (pictures / "loose.png").write_bytes((pictures / "I" / "0.png").read_bytes())
    (pictures / "empty").mkdir()
    status, _, err = said(capsys, "learn", pictures, "--memory", memory)
    assert status == 0
    assert (
        "1 file left out (.heic)" in err
        and "1 picture outside of a folder" in err
        and "empty: no pictures inside" in err
    )


def test_photographs_for_a_model_of_drawings_are_remarked_on(pictures, memory, capsys) -> None:
    for number in range(4):
        Image.fromarray(clouds(number)).save(pictures / "I" / f"photo{number}.png")
    status, _, err = said(capsys, "learn", pictures, "--memory", memory)
    assert status == 0
    assert (
        "4 of 4 pictures look like photographs, and this model knows drawings: make the memory with --model photo"
        in err
    )
    status, _, err = said(capsys, "predict", pictures / "I" / "photo0.png", "--memory", memory)
    assert status == 0 and "1 of 1 pictures look like photographs" in err
    assert "photographs" not in said(capsys, "predict", pictures / "I" / "0.png", "--memory", memory)[2]


def test_texts_of_a_table_are_learnt_asked_about_and_explained(letters_as_text, capsys, tmp_path) -> None:
    table, memory = tmp_path / "intents.csv", tmp_path / "intents.apl"
    table.write_text("text,label\nwhere is my card,card\nwhat is the rate,rate\nmy card is lost,card\n")
    first = call(capsys, "learn", table, "--memory", memory)
    assert first["learnt"] == 3 and first["classes"] == 2
    table.write_text("text,label\na new first line,other\nwhere is my card,card\nwhat is the rate,price\n")
    again = call(capsys, "learn", table, "--memory", memory, "--forget-gone")
    assert again["already_known"] == 1 and again["learnt"] == 2, "lines may move; a new label is a change"
    assert call(capsys, "predict", "where is my card", "--memory", memory)["label"] == "card"
    status, out, _ = said(capsys, "predict", table, "--memory", memory)
    assert status == 0 and out.splitlines()[-1] == "3 of 3 right (100.0%)"
    explained = call(capsys, "explain", "where is my card", "--memory", memory)
    assert explained["texts"][0] == "where is my card" and not list(tmp_path.glob("*.png"))
    status, _, err = said(capsys, "explain", "where is my card", "--memory", memory, "--out", tmp_path / "why.png")
    assert status == 2 and "--out is not valid with a memory of texts" in err
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    scribble(tmp_path / "pictures" / "a" / "0.png", 0)
    status, _, err = said(capsys, "learn", tmp_path / "pictures", "--memory", memory)
    assert status == 2 and "holds pictures, and this memory knows texts" in err


def test_a_text_under_two_labels_is_told_and_the_answer_stays(letters_as_text, capsys, tmp_path) -> None:
    table, memory = tmp_path / "intents.csv", tmp_path / "intents.apl"
    table.write_text("text,label\nwhere is my card,card\nwhat is the rate,rate\nwhere is my card,rate\n")
    for run in range(3):
        status, out, err = said(capsys, "learn", table, "--memory", memory, "--json")
        assert status == 0 and json.loads(out)["learnt"] == (2 if run == 0 else 0)
        assert "line 4: left out, line 2 says 'card' of the same text" in err
        assert call(capsys, "predict", "where is my card", "--memory", memory)["label"] == "card"


def test_a_text_that_no_file_can_hold_does_not_cost_the_others(letters_as_text, capsys, tmp_path) -> None:
    table = tmp_path / "intents.jsonl"
    table.write_text(json.dumps({"text": "half \ud800", "label": "a"}) + '\n{"text": "whole", "label": "b"}\n')
    assert call(capsys, "learn", table, "--memory", tmp_path / "intents.apl")["learnt"] == 2
