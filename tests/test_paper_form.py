"""The paper's figures on models of its form: measured once for the same weights, and again for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.learner import Learner
from experiments.data.embedded import Embedded
from experiments.paper import paper_form, paper_measures
from experiments.paper.paper_form import Measurement, with_first_labels
from experiments.paper.results import load_rows

TRAINED = {"trained_as": "made", "seconds": 1, "commit": "0", "validation": {}}


def saved(name: str, steps: int, way: int = 5) -> Learner:
    torch.manual_seed(steps)
    decoder = DecoderConfig(labels="fixed", way=way, hidden=8, heads=2, blocks=1)
    learner = Learner(LearnerConfig(IdentityConfig(16), decoder)).eval()
    learner.save(Path("runs") / name / "model", {**TRAINED, "steps": steps}, half=False)
    return learner


def separable(classes: int = 8, drawings: int = 20, width: int = 16) -> Embedded:
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(drawings)
    centres = torch.randn(classes, width, generator=chance)
    return Embedded(centres[labels] + 0.05 * torch.randn(len(labels), width, generator=chance), labels, "made", "0")


def test_a_figure_is_measured_once_for_the_same_weights_and_again_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[int] = []

    def figure(learner: Learner, data: Embedded, way: int, episodes: int):
        asked.append(way)
        yield {"shot": 1, "episodes": episodes, "accuracy": 0.5, "ci95": 0.1}

    monkeypatch.setitem(paper_form.PLANS, "paper-form", (Measurement("made", figure, 3, "first"),))
    monkeypatch.setattr(paper_form, "characters", lambda *how, **more: separable())

    def checkpoints() -> list[tuple[str, int]]:
        paper_form.reproduce(quick=True)
        return [(row["checkpoint"], row["trained"]["steps"]) for row in load_rows("paper-form", quick=True)]

    assert checkpoints() == []
    saved("first", steps=1)
    assert checkpoints() == checkpoints() == [("first", 1)] and asked == [3]
    saved("first", steps=2)
    assert checkpoints() == [("first", 2)] and asked == [3, 3]
    saved("second", steps=2)
    monkeypatch.setitem(paper_form.PLANS, "paper-form", (Measurement("made", figure, 3, "second"),))
    assert checkpoints() == [("second", 2)] and asked == [3, 3, 3]


def test_a_cell_measures_its_own_figure_whenever_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved("made", steps=1)

    def figure(learner: Learner, data: Embedded, way: int, episodes: int):
        yield {"shot": 1, "episodes": episodes, "accuracy": way / 10, "ci95": 0.1}

    plan = tuple(Measurement(f"of {way}", figure, way, "made") for way in (2, 3))
    monkeypatch.setitem(paper_form.PLANS, "paper-form", plan)
    monkeypatch.setattr(paper_form, "characters", lambda *how, **more: separable())
    first, second = list(paper_form.cells("paper-form", 1))
    assert [next(iter(cell.measure()))["accuracy"] for cell in (first, second)] == [0.2, 0.3]


def test_a_model_of_many_labels_answers_for_the_first_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole, few = saved("many", steps=1, way=9), with_first_labels("runs/many/model", 4)
    assert few.config.decoder.way == 4
    assert torch.equal(few.decoder.labels.embedding.weight[:4], whole.decoder.labels.embedding.weight[:4])


def test_decoders_stand_beside_the_untrained_one_and_the_nearest_neighbour() -> None:
    torch.manual_seed(0)
    decoder = DecoderConfig(kind="lstm", labels="fixed", way=5, hidden=8, heads=2)
    learner = Learner(LearnerConfig(IdentityConfig(16), decoder)).eval()
    (row,) = paper_measures.decoders(learner, separable(drawings=8), 5, 2)
    assert row["nearest"] > 0.8 > row["untrained"] and row["stored"] > 5
