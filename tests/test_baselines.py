"""Each method does what it says on a case worked out by hand, and the comparison with ours is paired."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from apl.config import ConvConfig, Group, LearnerConfig
from apl.encoder import embed_all
from apl.learner import Learner
from experiments.baselines.methods import ClassMean, LogisticRegression, Method, NearestNeighbour, StreamingLDA
from experiments.baselines.protocols import (
    Roaming,
    Stream,
    Watched,
    answered,
    average_precision,
    few_shot,
    one_after_another,
    streams,
    watch,
)
from experiments.baselines.shipped import Shipped
from experiments.bench import baselines
from experiments.data.embedded import Embedded, embed_once
from experiments.paper import baselines_table
from experiments.paper.baselines_table import CELLS, behind, is_first, mean, of_methods

WIDTH = 16
METHODS: dict[str, Callable[[], Method]] = {
    "nearest neighbour": NearestNeighbour,
    "class mean": ClassMean,
    "streaming lda": StreamingLDA,
    "logistic regression": lambda: LogisticRegression(25),
    "shipped": lambda: Shipped(None, WIDTH),
    "shipped, the paper's rule": lambda: Shipped(None, WIDTH, consolidate=False),
}


def clusters(classes: int, seed: int, spread: float = 0.35, drawings: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(drawings)
    centres = torch.randn(classes, WIDTH, generator=generator)
    x = centres[labels] + spread * torch.randn(len(labels), WIDTH, generator=generator)
    return torch.nn.functional.normalize(x, dim=1), labels


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_questions_on_both_protocols(name: str):
    x, y = clusters(8, seed=2)
    for draw in (few_shot, one_after_another):
        found = [answered(METHODS[name](), x, one) for one in draw(y, 3, 2, 4, 5, 0)]
        assert sum(found) / len(found) > 0.8, "chance is 0.33"


@pytest.mark.parametrize("name", [name for name in METHODS if "shipped" not in name])
def test_a_stream_ends_where_the_same_context_at_once_ends(name: str):
    """`adapt` to everything, and `observe` after an empty start, are two ways to the same knowledge."""
    x, y = clusters(4, seed=3, drawings=6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, query = x[order], y[order], x[:3] + 0.1
    at_once, stream = METHODS[name](), METHODS[name]()
    at_once.adapt(x, y, 4)
    stream.adapt(x[:0], y[:0], 4)
    for example, label in zip(x, y, strict=True):
        stream.observe(example, int(label))
    if isinstance(stream, StreamingLDA):
        stream._invert()
    assert stream.kept() == at_once.kept()
    torch.testing.assert_close(stream.predict(query).log_probs, at_once.predict(query).log_probs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_context_is_answered_and_unseen_classes_are_never_named(name: str):
    method = METHODS[name]()
    x, y = clusters(4, seed=3)
    method.adapt(x[:0], y[:0], 4)
    assert method.predict(x[:2]).log_probs.shape == (2, 4)
    method.observe(x[30], int(y[30]))
    method.observe(x[0], int(y[0]))
    answer = method.predict(x).log_probs.argmax(1)
    assert set(answer.tolist()) <= {int(y[0]), int(y[30])}


@pytest.mark.parametrize("name", ["nearest neighbour", "class mean", "streaming lda"])
def test_what_lies_far_from_everything_looks_newer(name: str):
    method = METHODS[name]()
    x, y = clusters(4, seed=3)
    method.adapt(x, y, 4)
    near, far = method.predict(torch.stack([x[0], x[0] + 9.0])).novelty
    assert far > near


def test_a_class_is_its_mean_and_the_answer_the_nearest():
    method = ClassMean()
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    method.adapt(x, torch.tensor([0, 0, 1]), 2)
    assert method.means.tolist() == [[1.0, 0.0], [0.0, 4.0]] and method.kept() == 2
    # Squared distances 1 and 26.
    expected = torch.log_softmax(torch.tensor([[-1.0, -26.0]]), 1)
    torch.testing.assert_close(method.predict(torch.tensor([[1.0, -1.0]])).log_probs, expected)


def test_the_running_covariance_of_streaming_lda_is_the_scatter_within_classes():
    x, y = clusters(3, seed=7)
    method = StreamingLDA()
    method.adapt(x[:0], y[:0], 3)
    method.covariance.zero_()
    method.examples = 1e-9  # no weight for the beginning
    for example, label in zip(x, y, strict=True):
        method._update(example, int(label))
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    scatter = (x - means[y]).T @ (x - means[y])
    torch.testing.assert_close(method.covariance * method.examples, scatter, atol=1e-3, rtol=1e-3)


def test_average_precision_is_the_mean_precision_at_what_was_found():
    right = torch.tensor([True, False, True, False])
    score = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert average_precision(score, right, 2) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(score, right, 4) == pytest.approx((1 + 2 / 3) / 4), "two were wanted and not found"
    assert average_precision(torch.zeros(4), right, 2) == pytest.approx(0.5), "no order, no skill"


def test_known_precision_rewards_the_right_name_and_new_precision_the_right_doubt():
    stream = Watched(
        correct=torch.tensor([False, True, False, False]),
        new=torch.tensor([True, False, True, False]),
        novelty=torch.tensor([math.inf, 0.1, 0.9, 0.2]),
        confidence=torch.zeros(4),
        kept=0,
        seconds_per_example=0.0,
    )
    assert stream.accuracy_seen() == 0.5
    assert stream.average_precision_known() == 0.5, "one of two known was named rightly, and it came first"
    assert stream.average_precision_new() == 1.0


def test_roaming_streams_come_back_to_classes_and_repeat_no_drawing():
    labels = torch.arange(60).repeat_interleave(20)
    (stream,) = Roaming().streams(labels, 1, seed=0)
    assert len(stream.example) == len(stream.example.unique()) == 150
    assert int(stream.label.bincount().max()) <= 6
    places = (stream.label // 10).tolist()
    left = [t for t in range(1, len(places)) if places[t] != places[t - 1]]
    assert len(left) > 10
    assert all(places[t] in places[t + 1 :] for t in left[:3]), "a place that was left is come back to"
    # One label is one class of the data, and no two are the same.
    of_label = dict(zip(stream.label.tolist(), labels[stream.example].tolist(), strict=True))
    assert [of_label[y] for y in stream.label.tolist()] == labels[stream.example].tolist()
    assert len(set(of_label.values())) == len(of_label)


def test_a_stream_is_answered_before_it_is_told():
    x, y = clusters(3, seed=1)
    stream = watch(ClassMean(), x, Stream(torch.arange(len(x)), y), 3)
    assert stream.new.nonzero()[:, 0].tolist() == [0, 12, 24]
    assert not stream.correct[[12, 24]].any(), "a class that was not yet shown cannot be named"
    assert stream.accuracy_seen() > 0.9


def test_a_stream_class_by_class_shows_each_example_once():
    labels = torch.arange(6).repeat_interleave(4)
    (stream,) = streams(labels, 3, seeds=1, sorted_by_class=True)
    assert len(stream.example.unique()) == 18 and stream.label.tolist() == sorted(stream.label.tolist())


def test_all_methods_answer_the_same_draws_and_differences_are_paired():
    data = Embedded(*clusters(6, seed=0), "made", "0")
    drawn = streams(data.labels, 4, seeds=2)
    rows = list(baselines.on_streams({"stream": "made"}, data, drawn, 6, None, 25))
    by = {row["method"]: row for row in rows}
    assert len(by) == 6 and by["apl"]["accuracy_seen"] > 0.6 and by["apl"]["accuracy_seen_difference"] == 0
    for method, row in by.items():
        apart = by["apl"]["accuracy_seen"] - row["accuracy_seen"]
        assert row["accuracy_seen_difference"] == pytest.approx(apart), method
    assert all(row["rows"] <= row["examples"] for row in rows if row["method"] != "streaming LDA")
    asked = few_shot(data.labels, 3, 2, 2, 2, 0)
    assert [r["method"] for r in baselines.on_questions({}, data, asked, None, 25)] == list(by)


def rows_of(method: str, value: float, difference: float = 0.0) -> list[dict]:
    rows: dict[tuple, dict] = {}
    for protocol, way, shot, figure in CELLS.values():
        row = rows.setdefault((protocol, way, shot), {"protocol": protocol, "way": way, "shot": shot, "method": method})
        row |= {figure: value, f"{figure}_difference": difference, f"{figure}_difference_ci95": 0.02}
        row |= {"rows": 1.0, "ms_per_example": 1.0, "ci95": 0.012}
    return list(rows.values())


def test_a_mean_is_over_all_fifteen_cells_or_there_is_none():
    assert len(CELLS) == 15
    rows = [*rows_of("whole", 0.5, 0.1), *rows_of("part", 0.8)[1:], *rows_of("apl", 0.6)]
    found = of_methods(rows)
    assert set(found) == {"whole", "apl"} and mean(found["whole"]) == pytest.approx(0.5)
    assert behind(found["whole"]) == pytest.approx((0.1, 0.02 / 15**0.5))


@pytest.mark.parametrize(("difference", "first"), [(0.02, True), (0.001, False), (-0.02, False)])
def test_ours_is_first_only_where_every_difference_excludes_zero(
    difference: float, first: bool, monkeypatch: pytest.MonkeyPatch
):
    rows = [*rows_of("apl", 0.6), *rows_of("apl, plain rule", 0.6), *rows_of("other", 0.5, difference)]
    assert is_first(of_methods(rows)) is first
    monkeypatch.setattr(baselines_table, "load_rows", lambda name: rows)
    said, table, quoted = baselines_table.baselines()
    assert ("Ours is first" in said) is first and "| other |" in table and "94.17" in quoted


def test_the_shipped_classifier_keeps_less_than_it_saw_and_its_novelty_is_p_new():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat_interleave(8)[torch.randperm(48, generator=generator)]
    x = torch.randn(6, 256, generator=generator)[y] + 0.5 * torch.randn(48, 256, generator=generator)
    x = torch.nn.functional.normalize(x, dim=1) * 16
    method = Shipped("omniglot")
    stream = watch(method, x, Stream(torch.arange(48), y), 6)
    assert stream.accuracy_seen() > 0.8 and 6 <= method.kept() < 48
    answer = method.predict(x[:5])
    with method.first.sibling() as classifier:
        for vector, label in zip(x, y.tolist(), strict=True):
            classifier.learn_one(method._given(vector[None]), label)
        torch.testing.assert_close(answer.novelty.numpy(), classifier.predict_new(method._given(x[:5])).astype("f4"))
        torch.testing.assert_close(
            answer.log_probs.exp().numpy(), classifier.predict_proba(method._given(x[:5])).astype("f4")
        )


def test_embeddings_are_worked_out_once_and_never_taken_for_those_of_other_images(own_cache, monkeypatch):
    learner = Learner(LearnerConfig(ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1),)))).eval()
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first = embed_once(learner, images)
    torch.testing.assert_close(first, embed_all(learner.encoder, images))
    other = embed_once(learner, images.flip(0))
    torch.testing.assert_close(other, first.flip(0))
    monkeypatch.setattr("experiments.data.embedded.embed_all", None)
    assert torch.equal(embed_once(learner, images), first)
    for file in (own_cache / "embeddings").iterdir():
        file.write_bytes(b"half a file")
    monkeypatch.undo()
    monkeypatch.setattr("apl.data.files.cache_directory", lambda: own_cache)
    torch.testing.assert_close(embed_once(learner, images), first)
