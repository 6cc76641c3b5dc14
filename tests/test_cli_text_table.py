"""Texts with labels in files."""

import json
from pathlib import Path

import pytest

from apl.cli.text_table import TextLine, is_text_table, read_texts


def read(name: str, content: bytes | str) -> list[TextLine]:
    encoded = content if isinstance(content, bytes) else content.encode()
    return read_texts(encoded, name, Path(name).suffix, labelled=True)


def test_the_three_forms_say_the_same():
    expected = [TextLine(2, "where, oh where, is my card", "arrival"), TextLine(3, "naïve", "7")]
    comma = read("a.csv", 'text,label\n"where, oh where, is my card",arrival\nnaïve,7\n')
    tab = read("a.tsv", "label\ttext\narrival\twhere, oh where, is my card\n7\tnaïve\n")
    lines = [{}, {"text": "where, oh where, is my card", "label": "arrival"}, {"text": "naïve", "label": 7}]
    rows = read("a.jsonl", "\n" + "\n".join(json.dumps(row) for row in lines[1:]))
    assert comma == tab == rows == expected


def test_other_usual_names_a_byte_order_mark_and_quoted_line_ends_are_fine():
    found = read("a.csv", b'\xef\xbb\xbfText , Category\r\n"two\r\nlines",a\r\n\r\n')
    assert [(row.text, row.label) for row in found] == [("two\nlines", "a")]


@pytest.mark.parametrize(
    "name, content, why",
    [
        ("a.csv", "", "holds no texts"),
        ("a.csv", "text,label\n", "holds no texts"),
        ("a.csv", "words,label\na,b\n", "line 2: no column text or .*there is words, label"),
        ("a.csv", "text,label\nan, unquoted comma,b\n", "line 2: another number of columns than in the first line"),
        ("a.csv", "Text,text,label\na,b,c\n", "two columns are named 'text'"),
        ("a.csv", "text,label\n  ,b\n", "line 2: the text is empty"),
        ("a.csv", "text,label\na,\n", "line 2: the label is empty"),
        ("a.csv", 'text,label\n"never closed,b\n', "line 2"),
        ("a.csv", b"text,label\n\xff\xfe,b\n", "not UTF-8"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{', "line 2"),
        ("a.jsonl", "[1]", "line 1: expected an object"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', "text is list, expected text"),
        ("a.jsonl", '{"text": "a", "label": "half \\ud800"}', "line 1: the label .* cannot be written as UTF-8"),
        ("a.csv", "text,label\na,b\0c\n", "line 2: the label .* contains a zero character"),
        ("a.csv", f"text,label\na,{3000 * 'b'}\n", "line 2: the label has 3000 bytes"),
    ],
)
def test_a_line_that_is_wrong_is_named(name, content, why):
    with pytest.raises(ValueError, match=f"{name}.*{why}"):
        read(name, content)


def test_semicolons_may_stand_between_the_columns():
    found = read("a.csv", b'\xef\xbb\xbftext;label\r\n"a; b\r\nc";eins\r\nja, nein;zwei\r\n')
    assert [(row.text, row.label) for row in found] == [("a; b\nc", "eins"), ("ja, nein", "zwei")]
    with pytest.raises(ValueError, match="line 2: another number of columns .*a text with a semicolon needs quotes"):
        read("b.csv", "text;label\na;b;c\n")


def test_suffixes_decide():
    assert is_text_table(Path("A.CSV")) and not is_text_table(Path("a.png"))
