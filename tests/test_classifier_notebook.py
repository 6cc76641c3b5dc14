"""What a notebook and the prompt show of a classifier, a receipt and an explanation."""

import numpy as np

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
        assert shown.startswith("<table>") and "a &lt;b&gt;" in shown and "<b>" not in shown
        receipt = clf.learn_one(np.array([1.0, 0.1, 0, 0]), "a <b>")
        assert "surprise_nats" in receipt._repr_html_() and "<b>" not in receipt._repr_html_()
        explanation = clf.explain(np.array([1.0, 0, 0, 0]))
        assert "weight" in explanation._repr_html_() and "<b>" not in explanation._repr_html_()


def test_pictures_are_shown_and_texts_escaped() -> None:
    assert 'src="data:image/png;base64,' in content(b"\x89PNG....")
    assert content(b"<script>") == "&lt;script&gt;"
    assert content(None) == ""
    assert html_table([], caption="<i>") == "<table><caption>&lt;i&gt;</caption><tr></tr></table>"
