"""Texts with labels in files."""

import json

import pytest

from apl.cli.text_table import TextLine, is_text_table, read_text_table


def _written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_three_forms_say_the_same(tmp_path):
    expected = [TextLine(2, "where, oh where, is my card", "arrival"), TextLine(3, "naïve", "7")]
    comma = _written(tmp_path, "a.csv", 'text,label\n"where, oh where, is my card",arrival\nnaïve,7\n')
    tab = _written(tmp_path, "a.tsv", "label\ttext\narrival\twhere, oh where, is my card\n7\tnaïve\n")
    lines = [{}, {"text": "where, oh where, is my card", "label": "arrival"}, {"text": "naïve", "label": 7}]
    rows = _written(tmp_path, "a.jsonl", "\n" + "\n".join(json.dumps(row) for row in lines[1:]))
    assert read_text_table(comma) == read_text_table(tab) == read_text_table(rows) == expected


def test_other_usual_names_a_byte_order_mark_and_quoted_line_ends_are_fine(tmp_path):
    path = _written(tmp_path, "a.csv", b'\xef\xbb\xbfText , Category\r\n"two\r\nlines",a\r\n\r\n')
    assert [(row.text, row.label) for row in read_text_table(path)] == [("two\nlines", "a")]


@pytest.mark.parametrize(
    "name, content, why",
    [
        ("a.csv", "", "holds no texts"),
        ("a.csv", "text,label\n", "holds no texts"),
        ("a.csv", "words,label\na,b\n", "line 2: no column text or .*there is words, label"),
        ("a.csv", "text,label\nan, unquoted comma,b\n", "line 2: 3 columns where the first line has 2"),
        ("a.csv", "text,label\n  ,b\n", "line 2: the text is empty"),
        ("a.csv", "text,label\na,\n", "line 2: the label is empty"),
        ("a.csv", 'text,label\n"never closed,b\n', "line 2"),
        ("a.csv", b"text,label\n\xff\xfe,b\n", "not UTF-8"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{', "line 2"),
        ("a.jsonl", "[1]", "line 1: expected an object"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', "text is list, expected text"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, name, content, why):
    with pytest.raises(ValueError, match=f"{name}.*{why}"):
        read_text_table(_written(tmp_path, name, content))


def test_semicolons_may_stand_between_the_columns(tmp_path):
    path = _written(tmp_path, "a.csv", b'\xef\xbb\xbftext;label\r\n"a; b\r\nc";eins\r\nja, nein;zwei\r\n')
    assert [(row.text, row.label) for row in read_text_table(path)] == [("a; b\nc", "eins"), ("ja, nein", "zwei")]
    with pytest.raises(ValueError, match="line 2: 3 columns .*a text with a semicolon needs quotes"):
        read_text_table(_written(tmp_path, "b.csv", "text;label\na;b;c\n"))


def test_a_missing_file_is_named_and_suffixes_decide(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_text_table(tmp_path / "none.csv")
    assert is_text_table(tmp_path / "A.CSV") and not is_text_table(tmp_path / "a.png")
