from __future__ import annotations

from pathlib import Path

from experiments.paper.ablations import UNCHANGED, VARIANTS
from experiments.paper.departures import MEASURED, PAGE, cost, departures, departures_page, marks

ROOT = Path(__file__).parents[1]


def test_the_page_lists_every_mark_in_the_source() -> None:
    assert (ROOT / PAGE).read_text() == departures_page(ROOT), "write it anew: python -m experiments report"


def test_a_mark_is_read_to_the_end_of_its_paragraph_or_the_next_mark() -> None:
    source = '''
class A:
    """Something. Deviation: this
    and that. Release: the other.

    Not this.
    """

    # Deviation: in a comment,
    # on two lines
    x = 1
'''
    assert list(marks(source)) == [
        ("Deviation", "this and that."),
        ("Release", "the other."),
        ("Deviation", "in a comment, on two lines."),
    ]


def test_what_an_audit_found_undeclared_is_declared() -> None:
    said = " ".join(d.text for d in departures(ROOT))
    for words in (
        "|e_t - e_m|",
        '"none" state',
        "carries gradient",
        "which ten alphabets",
        "0.1",
    ):
        assert words in said, words
    release = " ".join(d.text for d in departures(ROOT) if d.kind == "Release")
    for words in ("add the input of a block to its output", "share of ln N", "three times", "noise", "200 classes"):
        assert words in release, words


def test_the_paper_and_the_release_are_cited() -> None:
    cited = (ROOT / "CITATION.cff").read_text()
    assert "Ramalho" in cited and "Garnelo" in cited and "github.com/cogentlabs/apl" in cited
    assert "cogentlabs/apl" in (ROOT / PAGE).read_text()


def test_costs_are_those_of_variants_that_exist_and_of_marks_that_stand() -> None:
    said = [d.text for d in departures(ROOT)]
    for words, variant in MEASURED.items():
        assert variant in VARIANTS and any(words in text for text in said), words


def test_what_a_departure_changes_stands_beside_the_mean_of_the_unchanged_trainings() -> None:
    def row(variant: str, accuracy: float, way: int = 20) -> dict[str, object]:
        return {"variant": variant, "way": way, "accuracy": accuracy, "ci95": 0.01}

    rows = [row(UNCHANGED, 0.8), row(UNCHANGED, 0.9), row("gradients not clipped", 0.7), row(UNCHANGED, 0.2, way=5)]
    assert cost("gradients are clipped by norm, at this value.", rows) == (
        "gradients not clipped: 70.0 ± 1.0 (as presented 85.0 ± 63.5 over 2 seeds)"
    )
    assert cost("which ten alphabets are the test.", rows) == "" == cost("clipped by norm", [])
