"""Names as file systems really hold them: letters in two forms, line ends, bytes that are no text, links, closed files."""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from pathlib import Path

import pytest
from letters import call, learnt, memory, model, pictures, said, scribble  # noqa: F401

from apl.cli import main

COMPOSED, DECOMPOSED = "Über", unicodedata.normalize("NFD", "Über")


def test_one_letter_in_two_forms_is_one_label(pictures, memory, capsys) -> None:
    scribble(pictures / COMPOSED / "0.png", 1)
    scribble(pictures / DECOMPOSED / "1.png", 1)
    call(capsys, "learn", pictures, "--memory", memory)
    assert {c["label"] for c in call(capsys, "memory", "show", memory)["classes"]} == {"I", "dash", COMPOSED}
    assert said(capsys, "predict", pictures / DECOMPOSED, "--memory", memory)[1].endswith("1 of 1 right (100.0%)\n")


def test_every_answer_is_one_line_whatever_the_label_holds(pictures, memory, capsys, tmp_path) -> None:
    label = "a\nb\tc\x1b[2J\u202e"
    scribble(pictures / label / "0.png", 1)
    call(capsys, "learn", pictures, "--memory", memory)
    _, out, _ = said(capsys, "predict", pictures / label / "0.png", "--memory", memory)
    (answer,) = out.splitlines()
    assert answer.split("\t")[1] == r"a\nb\tc\x1b[2J\u202e" and "\x1b" not in out
    _, out, _ = said(capsys, "memory", "show", memory)
    assert len(out.splitlines()) == 5 and "\x1b" not in out and "\u202e" not in out
    why = ("explain", pictures / label / "0.png", "--memory", memory, "--out", tmp_path / "why.png")
    assert "\x1b" not in said(capsys, *why)[1]
    assert call(capsys, *why)["predicted"] == label, "JSON holds it as it is"


def test_names_that_are_no_text_do_not_cost_the_others(pictures, memory, capsys) -> None:
    folder = os.fsencode(pictures) + b"/\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes text alone")
    content = (pictures / "I" / "0.png").read_bytes()
    Path(os.fsdecode(folder + b"/0.png")).write_bytes(content)
    Path(os.fsdecode(os.fsencode(pictures / "I") + b"/\xff.png")).write_bytes(content)
    status, out, err = said(capsys, "learn", pictures, "--memory", memory, "--json")
    assert status == 0 and json.loads(out)["learnt"] == 1 and "name is not UTF-8 and cannot be a label" in err
    status, out, _ = said(capsys, "predict", pictures, "--memory", memory, "--json")
    assert status == 0 and len(out.encode().splitlines()) == 9


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_learnt(
    pictures, model, capsys, tmp_path, monkeypatch
) -> None:
    closed, read = pictures / "I" / "0.png", Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == closed:  # also where the tests are run by root, who may read everything
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    status, out, err = said(capsys, "learn", pictures, "--memory", tmp_path / "new.apl", "--model", model, "--json")
    assert status == 1 and err.splitlines() == [f"{closed}: permission denied"] and json.loads(out)["learnt"] == 5


def test_links_that_lead_nowhere_are_said_and_hidden_folders_are_not_examples(pictures, memory, capsys) -> None:
    (pictures / "I" / "gone.png").symlink_to("nowhere.png")
    (pictures / "I" / "round").symlink_to("..")
    (pictures / "back").symlink_to(".")
    (pictures / "I" / "itself.png").symlink_to("itself.png")
    scribble(pictures / "I" / ".checkpoints" / "0.png", 1)
    scribble(pictures / ".trash" / "0.png", 1)
    status, out, err = said(capsys, "learn", pictures, "--memory", memory)
    assert status == 0 and out.startswith("Nothing new: 6 examples learnt before.")
    assert err.count("a link that leads nowhere") == 2
    status, out, err = said(capsys, "predict", pictures, "--memory", memory)
    assert status == 0 and out.endswith("6 of 6 right (100.0%)\n") and err.count("a link that leads nowhere") == 2


def test_a_terminal_that_knows_few_letters_gets_an_answer_all_the_same(pictures, memory, capsys, monkeypatch) -> None:
    scribble(pictures / "日本" / "0.png", 1)
    call(capsys, "learn", pictures, "--memory", memory)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), encoding="ascii"))
    assert main(["predict", str(pictures / "日本" / "0.png"), "--memory", str(memory)]) == 0
    sys.stdout.flush()
    assert written.getvalue().split(b"\t")[1] == rb"\u65e5\u672c"


def test_an_empty_name_is_no_picture(memory, capsys) -> None:
    status, out, err = said(capsys, "predict", "", "--memory", memory)
    assert (status, out) == (2, "") and "the name of a picture is empty" in err


def test_where_no_picture_can_be_written_another_place_is_asked_for(pictures, memory, capsys) -> None:
    status, out, err = said(capsys, "explain", pictures / "I" / "0.png", "--memory", memory, "--out", pictures)
    assert (status, out) == (2, "") and "is a directory: choose another place for the picture with --out" in err


def test_columns_are_aligned_also_where_a_letter_is_two_columns_wide() -> None:
    from apl.cli.terminal import table

    assert table(("class", "rows"), [("日本", 1), ("e\u0301t", 20)]).splitlines() == [
        "class  rows",
        "日本      1",
        "e\u0301t       20",
    ]


def test_the_next_command_can_be_copied_when_the_memory_s_name_has_a_space(pictures, model, capsys, tmp_path) -> None:
    memory = tmp_path / "my letters.apl"
    _, out, _ = said(capsys, "learn", pictures, "--memory", memory, "--model", model)
    assert out.splitlines()[-1] == f"Next: apl predict IMAGE --memory '{memory}'"


def test_a_result_is_one_line_without_what_is_empty(capsys) -> None:
    from apl.cli.terminal import print_result

    print_result({"written": 0, "left_out": ()}, False)
    print_result({"written": 2, "left_out": (3, 7)}, False)
    assert capsys.readouterr().out == "written 0\nwritten 2, left out 3 7\n"
