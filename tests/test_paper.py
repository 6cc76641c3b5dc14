"""The experiments: sound sampling, honest rows, and a README that says what the result files say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from apl.checkpoint import is_named
from apl.config import ConvConfig, Group
from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.encoder import build_encoder, embed_all
from experiments.data.embedded import Embedded
from experiments.paper.continual import WAY, ProgressiveHead, progressive_accuracy, task_streams
from experiments.paper.lake import embed_views
from experiments.paper.plot import smooth
from experiments.paper.report import TABLES, results_page, table1_cells
from experiments.paper.results import load_rows, save_rows

ROOT = Path(__file__).parents[1]
RESULT_FILES = sorted((ROOT / "results").glob("*.json"))
OMNIGLOT_RESULTS = [p for p in RESULT_FILES if p.stem in ("paper-form", "extended", "lake", "baselines")]


def separable(classes: int, drawings: int = 20, width: int = 32) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(drawings)
    centres = torch.randn(classes, width, generator=generator)
    return Embedded(centres[labels] + 0.05 * torch.randn(len(labels), width, generator=generator), labels, "made", "0")


def test_tasks_of_continual_learning_never_share_a_class_and_never_repeat_an_example():
    data = separable(40)
    streams = list(task_streams(data, tasks=4, seed=0))
    classes = [set(data.labels[s.example[0]].tolist()) for s in streams]
    assert all(len(c) == WAY for c in classes)
    assert len(set().union(*classes)) == 4 * WAY
    examples = torch.cat([s.example[0] for s in streams])
    assert len(examples.unique()) == len(examples)
    for task, stream in enumerate(streams):
        assert stream.way == WAY * (task + 1)
        assert set(stream.label[0].tolist()) == set(range(WAY * task, WAY * (task + 1)))


def test_the_progressive_network_learns_separable_classes():
    data = separable(20)
    accuracy = progressive_accuracy(data, list(task_streams(data, 1, seed=0)), rate=1e-2, seed=0)
    assert float(accuracy.min()) > 0.9


def test_the_progressive_network_predicts_before_it_learns():
    head = ProgressiveHead(4, 2, 10.0, torch.Generator().manual_seed(0))
    x, y = torch.ones(4), torch.tensor(int(head.layer(torch.ones(4)).argmin()))
    assert not head.predict_then_learn(x, y)
    assert head.predict_then_learn(x, y)


def test_smoothing_is_a_running_mean_that_never_looks_ahead():
    assert smooth(torch.tensor([1.0, 0.0, 1.0, 1.0]), 2).tolist() == [1.0, 0.5, 0.5, 1.0]


def test_a_cell_of_the_table_is_in_percent_with_its_interval():
    row = {"measure": "table1-5way", "way": 5, "shot": 1, "accuracy": 0.9912, "ci95": 0.0013}
    assert table1_cells([row, row | {"measure": "online", "shot": 0}]) == {(5, 1): "99.1 ± 0.1"}


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, tables in TABLES.items() for name in tables], ids=str
)
def test_a_page_shows_the_table_that_the_result_files_give(page: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    shown = (ROOT / page).read_text().split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()
    assert shown == TABLES[page][name]()


@pytest.mark.parametrize("path", OMNIGLOT_RESULTS, ids=lambda p: p.stem)
def test_every_row_says_what_was_measured_on_what_and_with_which_weights(path: Path):
    wanted = {
        "method",
        "decoder",
        "labels",
        "way",
        "shot",
        "split",
        "split_hash",
        "episodes",
        "seed",
        "accuracy",
        "ci95",
        "checkpoint",
        "commit",
    }
    rows = json.loads(path.read_text())["rows"]
    assert rows
    for row in rows:
        assert wanted <= set(row), wanted - set(row)
        assert 0 <= row["accuracy"] <= 1
        assert is_named(row["checkpoint"]) or row["trained"]["commit"], (
            "weights that do not ship say how they were made"
        )


@pytest.mark.parametrize("name", ["paper-form", "extended"])
def test_table_one_was_measured_on_enough_episodes(name: str):
    rows = json.loads((ROOT / "results" / f"{name}.json").read_text())["rows"]
    cells = [row for row in rows if row["measure"].startswith("table1")]
    assert cells and all(row["episodes"] >= (200 if row["way"] <= 20 else 20) for row in cells)


def test_a_mean_of_views_is_near_the_drawing_and_nearer_to_other_drawings_of_its_class() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(ConvConfig(stem_channels=8, stem_stride=2, groups=(Group(8, 1), Group(16, 1)))).eval()
    glyphs = LabelledImages.of_glyphs(draw_glyphs(6, 8, np.random.default_rng(0), 28))
    one, many = (embed_views(encoder, glyphs.images, views) for views in (1, 6))
    assert torch.equal(one, embed_all(encoder, glyphs.images))
    assert torch.equal(many, embed_views(encoder, glyphs.images, 6)), "the same views every time"
    torch.testing.assert_close(many.mean(1), torch.zeros(len(many)), atol=1e-5, rtol=0)
    torch.testing.assert_close(many.std(1, correction=0), torch.ones(len(many)), atol=1e-3, rtol=0)
    assert 0 < float((many - one).norm(dim=1).mean()) < float(torch.cdist(one, one).mean())

    def spread(embeddings: torch.Tensor) -> float:
        apart = torch.cdist(embeddings, embeddings)
        return float(apart[glyphs.labels[:, None] == glyphs.labels].mean())

    assert spread(many) < spread(one)


def test_the_results_page_says_what_the_result_files_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert (ROOT / "docs" / "RESULTS.md").read_text() == results_page()


def test_what_is_not_a_number_is_null_in_a_result_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    save_rows("online", [{"method": "ours", "accuracy": 0.9, "ci95": math.nan}], quick=True)
    (saved,) = load_rows("online", quick=True)
    assert saved["ci95"] is None, "JSON has no NaN"
