"""What a notebook and the prompt show of a classifier, a receipt and an explanation."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.classifier.notebook import content, html_table


def taught() -> OnlineClassifier:
    clf = OnlineClassifier.for_features(4)
    clf.learn_one(np.array([1.0, 0, 0, 0]), "a <b>")
    clf.learn_one(np.array([0, 1.0, 0, 0]), "c")
    return clf


def test_the_prompt_shows_rows_and_classes_of_an_open_memory_and_opens_none() -> None:
    assert repr(OnlineClassifier()) == "OnlineClassifier()"
    with taught() as clf:
        assert repr(clf) == "<OnlineClassifier(width=4): 2 rows, 2 classes, vectors of 4 numbers>"


def test_a_notebook_shows_tables_and_labels_are_no_markup() -> None:
    with taught() as clf:
        shown = clf._repr_html_()
        assert shown.startswith("<div>") and "a &lt;b&gt;" in shown and "<b>" not in shown
        receipt = clf.learn_one(np.array([1.0, 0.1, 0, 0]), "a <b>")
        assert "surprise_nats" in receipt._repr_html_() and "<b>" not in receipt._repr_html_()
        explanation = clf.explain(np.array([1.0, 0, 0, 0]))
        assert "weight" in explanation._repr_html_() and "<b>" not in explanation._repr_html_()


def test_pictures_are_shown_and_texts_escaped() -> None:
    assert 'src="data:image/png;base64,' in content(b"\x89PNG....")
    assert content(b"<script>") == "&lt;script&gt;"
    assert content(None) == ""
    assert html_table([], caption="<i>") == "<div>&lt;i&gt;</div><table><tr></tr></table>"


def test_long_calls_count_what_is_done_if_they_are_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, list[int]] = {}

    @contextmanager
    def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
        yield counts.setdefault(f"{what} of {total}", []).append

    monkeypatch.setattr("apl.progress.progress", progress)
    X, y = np.random.default_rng(0).normal(size=(6, 3)), list("aabbcc")
    clf = OnlineClassifier(encoder=lambda rows: np.array(rows))
    clf.learn_many(X, y)
    clf.predict(X)
    assert not counts, "nobody asked, and this is no notebook"
    clf.learn_many(X, y, progress=True)
    clf.predict(X, progress=True)
    assert counts["learning of 6"] == [1, 2, 3, 4, 5, 6] and counts["embedding of 6"] == [6, 6]
    assert "predicting of 6" in counts


def test_what_happens_is_logged_under_one_name(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.DEBUG, "apl"):
        clf = OnlineClassifier.for_features(2, memory=tmp_path / "m.apl")
        clf.learn_many([[0, 1], [1, 0]], ["a", "b"])
        clf.close()
    said = [(record.name, record.getMessage()) for record in caplog.records]
    assert ("apl", "learnt 2 examples: 2 rows written") in said
    assert any("m.apl" in text for name, text in said if name == "apl")
