"""Each published method does what its paper says on a case worked out by hand, and learns something in a second or two."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from apl.config import ConvConfig, Group, LearnerConfig
from apl.encoder import embed_all
from apl.episode import EpisodeSampler
from apl.learner import Learner
from experiments.baselines.cnp import ConditionalNeuralProcess
from experiments.baselines.gemcl import GenerativeMetaContinual, student_t
from experiments.baselines.infinite_mixture import InfiniteMixturePrototypes
from experiments.baselines.interface import EpisodicMethod, FewShotMethod
from experiments.baselines.maml import Maml
from experiments.baselines.matching import MatchingNetwork
from experiments.baselines.meta_training import MetaTraining, draw_tasks, meta_train
from experiments.baselines.protocols import Roaming, Watched, average_precision, few_shot, one_after_another, watch
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.relation import RelationNetwork
from experiments.baselines.scikit import LogisticBaseline, NeighbourBaseline
from experiments.baselines.shipped import Shipped
from experiments.baselines.streaming_lda import StreamingLDA
from experiments.paper.baselines import summary
from experiments.paper.baselines_entries import ENTRIES
from experiments.paper.baselines_table import CELLS, OURS_NAME, PLAIN_NAME, baselines_in_full, is_first, means
from experiments.paper.embedding_cache import embed_once

WIDTH = 16


def clusters(classes: int, seed: int, spread: float = 0.35, drawings: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(drawings)
    centres = torch.randn(classes, WIDTH, generator=generator)
    return centres[labels] + spread * torch.randn(len(labels), WIDTH, generator=generator), labels


TRAINED: dict[str, Callable[[], EpisodicMethod]] = {
    "prototypical": lambda: PrototypicalNetwork(WIDTH),
    "matching": lambda: MatchingNetwork(WIDTH),
    "relation": lambda: RelationNetwork(WIDTH),
    "cnp": lambda: ConditionalNeuralProcess(WIDTH, hidden=64, representation=16),
    "maml": lambda: Maml(WIDTH, step_size=1.0),
    "anil": lambda: Maml(WIDTH, step_size=1.0, output_only=True),
    "infinite mixture": lambda: InfiniteMixturePrototypes(WIDTH),
    "gemcl": lambda: GenerativeMetaContinual(WIDTH),
}
UNTRAINED: dict[str, Callable[[], FewShotMethod]] = {
    "streaming lda": lambda: StreamingLDA.after(*clusters(20, 9)),
    "logistic regression": lambda: LogisticBaseline(),
    "nearest neighbour": lambda: NeighbourBaseline(),
    "shipped": lambda: Shipped(None, WIDTH),
    "shipped, the paper's rule": lambda: Shipped(None, WIDTH, consolidate=False),
}
STEPS = {"cnp": 60, "relation": 60}
"""Most of the others begin near where they end: their embedding is given."""
EVERY = [*TRAINED, *UNTRAINED]


def built(name: str) -> FewShotMethod:
    torch.manual_seed(0)
    if name in UNTRAINED:
        return UNTRAINED[name]()
    return TRAINED[name]().eval()


@pytest.mark.parametrize("name", EVERY)
def test_every_method_beats_chance_by_far_on_classes_it_was_not_trained_on(name: str):
    method = built(name)
    if isinstance(method, EpisodicMethod):
        briefly = MetaTraining(
            steps=STEPS.get(name, 10), learning_rate=5e-3, widest=4, shots=2, queries=4, classes_at_once=96
        )
        meta_train(method, *clusters(200, seed=1), briefly, seed=0)
    x, y = clusters(40, seed=2)
    sampler = EpisodeSampler(y, torch.Generator().manual_seed(0))
    right = []
    for _ in range(20):
        task = draw_tasks(sampler, x, way=3, shot=2, queries=4, tasks=1)
        method.adapt(task.context[0], task.context_label[0], 3)
        right.append(method.predict(task.query[0]).log_probs.argmax(1) == task.query_label[0])
    accuracy = float(torch.stack(right).float().mean())
    assert accuracy > 0.6, f"{name}: {accuracy}, chance is 0.33"


@pytest.mark.parametrize(
    "name", [name for name in EVERY if "shipped" not in name]
)  # `learn_many` lets classes take turns
def test_a_stream_ends_where_the_same_context_at_once_ends(name: str):
    """`adapt` to everything, and `observe` after an empty start, are two ways to the same knowledge."""
    x, y = clusters(4, seed=3, drawings=6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, query = x[order], y[order], x[:3] + 0.1
    at_once, stream = built(name), built(name)
    at_once.adapt(x, y, 4)
    stream.adapt(x[:0], y[:0], 4)
    for example, label in zip(x, y, strict=True):
        stream.observe(example, int(label))
    if name == "matching":
        stream._read_again()  # until then the latest stand as they are
    if name == "streaming lda":
        stream._invert()
    assert stream.kept() == at_once.kept()
    torch.testing.assert_close(stream.predict(query).log_probs, at_once.predict(query).log_probs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_context_is_answered_and_unseen_classes_are_never_named(name: str):
    method = built(name)
    x, y = clusters(4, seed=3)
    method.adapt(x[:0], y[:0], 4)
    assert method.predict(x[:2]).log_probs.shape == (2, 4)
    method.observe(x[30], int(y[30]))
    method.observe(x[0], int(y[0]))
    answer = method.predict(x).log_probs.argmax(1)
    assert set(answer.tolist()) <= {int(y[0]), int(y[30])}


@pytest.mark.parametrize(
    "name", ["prototypical", "matching", "infinite mixture", "gemcl", "streaming lda", "nearest neighbour"]
)
def test_what_lies_far_from_everything_looks_newer(name: str):
    method = built(name)
    x, y = clusters(4, seed=3)
    method.adapt(x, y, 4)
    near, far = method.predict(torch.stack([x[0], x[0] + 9.0])).novelty
    assert far > near


def test_a_prototype_is_the_mean_of_its_class_and_the_answer_the_nearest():
    method = PrototypicalNetwork(2)
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    method.adapt(x, torch.tensor([0, 0, 1]), 2)
    assert method.classes.means.tolist() == [[1.0, 0.0], [0.0, 4.0]]
    # Squared distances 1 and 26, in the learnt unit.
    unit = math.exp(2.0)
    expected = torch.log_softmax(torch.tensor([[-1.0 / unit, -26.0 / unit]]), 1)
    torch.testing.assert_close(method.predict(torch.tensor([[1.0, -1.0]])).log_probs, expected)
    assert method.kept() == 2


def test_matching_without_context_embeddings_is_attention_by_cosine():
    method = MatchingNetwork(2, full_context=False)
    method.log_sharpness.data.fill_(math.log(2.0))
    method.adapt(torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 5.0]]), torch.tensor([0, 1, 1]), 2)
    # Cosines 1, 0, 0 at sharpness 2: e² against 1 + 1.
    expected = torch.tensor([[math.e**2, 2.0]]) / (math.e**2 + 2)
    torch.testing.assert_close(method.predict(torch.tensor([[7.0, 0.0]])).log_probs.exp(), expected)


def test_full_context_embeddings_let_one_example_change_how_another_is_embedded():
    torch.manual_seed(0)
    method = MatchingNetwork(4)
    for part in (method.forwards, method.backwards, method.attending):
        for weight in part.parameters():
            nn.init.normal_(weight)
    context = torch.randn(1, 3, 4)
    other = context.clone()
    other[0, 2] += 1
    assert not torch.allclose(method.read(context)[0, 0], method.read(other)[0, 0]), "the backward LSTM brings it there"
    query = torch.randn(1, 1, 4)
    assert not torch.allclose(method.look(query, context), method.look(query, other))


def test_a_relation_is_what_the_network_says_of_query_and_class_side_by_side():
    torch.manual_seed(0)
    method = RelationNetwork(3, hidden=4)
    query, classes = torch.randn(1, 2, 3), torch.randn(1, 5, 3)
    first = nn.Linear(6, 4)
    with torch.no_grad():
        first.weight.copy_(torch.cat([method.compare.of_query.weight, method.compare.of_class.weight], 1))
        first.bias.copy_(method.compare.of_query.bias)
    pair = torch.cat([query[0, 1], classes[0, 3]])
    torch.testing.assert_close(method.compare(query, classes)[0, 1, 3], method.compare.rest(first(pair))[0])


def test_a_neural_process_does_not_depend_on_the_order_of_its_context():
    method = built("cnp")
    x, y = clusters(4, seed=4)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    method.adapt(x, y, 4)
    expected = method.predict(x[:4]).log_probs
    method.adapt(x[order], y[order], 4)
    torch.testing.assert_close(method.predict(x[:4]).log_probs, expected)


def test_the_inner_step_of_maml_is_the_one_worked_out_by_hand():
    """Output zero: every class has probability ½, so ∂L/∂w_c = mean over classes of the mean of (½ − [y = c]) · unit · x, and
    the step is twice as large, for two classes."""
    method = Maml(4, step_size=0.5, steps=1)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    y = torch.tensor([0, 0, 1])
    weights = method.adapted(x, y, 2, training=False)
    # Means of the classes are (2, 0, 0, 0) and (0, 2, 0, 0); unit = ½; step ½: ½ · ½ · ½ · (2, −2) for class 0.
    torch.testing.assert_close(weights["output"], torch.tensor([[0.25, -0.25, 0, 0], [-0.25, 0.25, 0, 0]]))
    # With an output of zero no error reaches the embedding: its first step is none.
    torch.testing.assert_close(weights["embed.change.weight"], torch.zeros(4, 4))


def test_the_embedding_of_maml_takes_the_same_step_however_often_its_classes_are_repeated():
    """Two outputs (1, 0) and (−1, 0) and an example (1, 1) of each class, unit = 2^−½: with p = softmax(u, −u)₁ = σ(2u) the
    errors are (p − 1, 1 − p) and (p, −p), so ∂L/∂e = u(p − 1)(2, 0) and u · p(2, 0); W x = e with x = (1, 1): their mean
    is u(2p − 1)(1, 0) ⊗ (1, 1)."""
    method = Maml(2, step_size=0.5, steps=1)
    weights = {"output": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), "embed.change.weight": torch.zeros(2, 2)}
    x, y = torch.ones(2, 2), torch.tensor([0, 1])
    unit = 2**-0.5
    p = 1 / (1 + math.exp(-2 * unit))
    after = method.step(weights, x, y, training=False)["embed.change.weight"]
    torch.testing.assert_close(after, -0.5 * unit * (2 * p - 1) * torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    # The same two classes fifty times under other names: all outputs alike, so only the softmax's share differs.
    many = {**weights, "output": torch.zeros(100, 2)}
    many["output"][:, 0] = torch.tensor([1.0, -1.0]).repeat(50)
    step = method.step(many, torch.ones(100, 2), torch.arange(100), training=False)["embed.change.weight"]
    torch.testing.assert_close(step, after)
    # One example alone, where two classes are known, has its share of that: half of its own gradient.
    alone = method.step(weights, x[:1], y[:1], training=False, known=2)["embed.change.weight"]
    torch.testing.assert_close(alone, -0.5 * unit * (p - 1) * torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_maml_learns_through_its_steps_and_adapts_the_embedding_where_anil_does_not():
    x, y = clusters(3, seed=6)
    for output_only in (False, True):
        method = Maml(WIDTH, step_size=1.0, steps=2, output_only=output_only)
        nn.init.normal_(method.output)
        weights = method.adapted(x, y, 3, training=True)
        assert ("embed.change.weight" in weights) == (not output_only)
        method.answer(weights, x).square().sum().backward()
        assert float(method.output.grad.abs().sum()) > 0
        assert float(method.embed.change.weight.grad.abs().sum()) > 0


def test_an_infinite_mixture_founds_a_cluster_only_beyond_its_threshold():
    method = InfiniteMixturePrototypes(2)
    method.log_within.data.fill_(0.0)  # σ = 1, ρ = 0.8, α = 0.1, d = 2: λ = 2 (ln 1.8 + ln 10)
    limit = 2 * (math.log(1.8) + math.log(10.0))
    assert float(method.threshold().detach()) == pytest.approx(limit)
    near, far = math.sqrt(limit) * 0.99, math.sqrt(limit) * 1.01
    method.adapt(torch.tensor([[0.0, 0.0], [near, 0.0]]), torch.tensor([0, 0]), 2)
    assert method.kept() == 1
    torch.testing.assert_close(method.clusters.means(), torch.tensor([[near / 2, 0.0]]))
    method.adapt(torch.tensor([[0.0, 0.0], [far, 0.0]]), torch.tensor([0, 0]), 2)
    assert method.kept() == 2
    method.observe(torch.tensor([far, 0.1]), 1)
    assert method.kept() == 3, "another class's cluster is none to join"


def test_one_class_of_two_clusters_is_better_told_by_an_infinite_mixture_than_by_a_mean():
    x = torch.tensor([[-9.0, 0.0], [9.0, 0.0], [0.0, 3.0]])
    y, query = torch.tensor([0, 0, 1]), torch.tensor([[8.0, 5.0]])
    many, one = InfiniteMixturePrototypes(2), PrototypicalNetwork(2)
    for method in (many, one):
        method.adapt(x, y, 2)
    assert many.predict(query).log_probs.argmax() == 0
    assert one.predict(query).log_probs.argmax() == 1


def test_gemcl_predicts_students_t_with_the_posterior_of_the_normal_gamma():
    method = GenerativeMetaContinual(1)
    method.log_shape.data.fill_(math.log(2.0))
    method.log_rate.data.fill_(math.log(3.0))
    method.log_strength.data.fill_(0.0)
    method.log_sharpness.data.fill_(0.0)
    method.adapt(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), 2)
    # κ = 3, μ = 4/3, α = 3, β = 3 + ½ · 2 + ½ · (1 · 2 / 3) · 4 = 16/3, scale² = β (κ + 1) / (α κ).
    scale = torch.tensor([[16 / 3 * 4 / 9]])
    expected = student_t(torch.tensor([[2.0]]), torch.tensor([[4 / 3]]), scale, torch.tensor([[6.0]]))
    sums = method.sums
    torch.testing.assert_close(
        method.log_density(torch.tensor([[2.0]]), sums.count[:1], sums.total[:1], method.squares.total[:1]), expected
    )
    reference = torch.distributions.StudentT(6.0, 4 / 3, float(scale.sqrt())).log_prob(torch.tensor(2.0))
    assert float(expected) == pytest.approx(float(reference), abs=1e-5)


def test_the_running_covariance_of_streaming_lda_is_the_scatter_within_classes():
    x, y = clusters(3, seed=7)
    method = StreamingLDA.after(x, y)
    method.adapt(x[:0], y[:0], 3)
    method.covariance.zero_()
    method.count = 1e-9  # no weight for the beginning
    for example, label in zip(x, y, strict=True):
        method.observe(example, int(label))
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    scatter = (x - means[y]).T @ (x - means[y])
    torch.testing.assert_close(method.covariance * method.count, scatter, atol=1e-3, rtol=1e-3)


def test_logistic_regression_learns_among_many_classes_too():
    x, y = clusters(400, seed=1, spread=0.1, drawings=2)
    method = LogisticBaseline(10.0)
    method.adapt(x[::2], y[::2], 400)
    assert float((method.predict(x[1::2]).log_probs.argmax(1) == y[1::2]).float().mean()) > 0.5


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
    assert stream.accuracy_on_known() == 0.5
    assert stream.average_precision_known() == 0.5, "one of two known was named rightly, and it came first"
    assert stream.average_precision_new() == 1.0


def test_roaming_streams_come_back_to_classes_and_repeat_no_drawing():
    labels = torch.arange(60).repeat_interleave(20)
    stream = Roaming().draw(labels, torch.Generator().manual_seed(0))
    example, label = stream.example[0], stream.label[0]
    assert len(example) == 150
    assert len(example.unique()) == len(example)
    assert int(label.bincount().max()) <= 6
    places = (label // 10).tolist()
    left = [t for t in range(1, len(places)) if places[t] != places[t - 1]]
    assert len(left) > 10
    assert all(places[t] in places[t + 1 :] for t in left[:3]), "a place that was left is come back to"
    # One label is one class of the data, and no two are the same.
    of_label = {}
    for e, y in zip(example.tolist(), label.tolist(), strict=True):
        assert of_label.setdefault(y, int(labels[e])) == int(labels[e])
    assert len(set(of_label.values())) == len(of_label)


def test_a_stream_is_answered_before_it_is_told():
    x, y = clusters(3, seed=1)
    method = PrototypicalNetwork(WIDTH)
    stream = watch(method, x, torch.arange(len(x)), y, 3)
    assert stream.new.nonzero()[:, 0].tolist() == [0, 12, 24]
    assert not stream.correct[[12, 24]].any(), "a class that was not yet shown cannot be named"
    assert stream.accuracy_on_known() > 0.9
    assert one_after_another(method, x, y, way=3, shot=4, queries=4, episodes=2, seed=0).min() > 0.9
    assert few_shot(method, x, y, way=3, shot=4, queries=4, episodes=2, seed=0).min() > 0.9


def rows_of(method: str, value: float, leave_out: str = "") -> list[dict]:
    rows: dict[tuple, dict] = {}
    for cell, (protocol, way, shot, number) in CELLS.items():
        if cell != leave_out:
            row = rows.setdefault((protocol, way, shot), {"protocol": protocol, "way": way, "shot": shot})
            row |= {"method": method, number: value, "kept": 1.0, "ms_per_example": 1.0}
    return list(rows.values())


def test_a_mean_is_over_all_fifteen_cells_or_it_is_none():
    assert len(CELLS) == 15
    rows = [*rows_of("whole", 0.5), *rows_of("part", 0.8, leave_out="1000-way 5-shot"), *rows_of(OURS_NAME, 0.6)]
    for row in rows:
        if row["method"] == "whole" and row["protocol"] == "roaming":
            row |= {"ap_known": 0.8, "ap_new": 0.2 + 0.15}
    found = means(rows)
    assert found["whole"]["mean"] == pytest.approx((13 * 0.5 + 0.8 + 0.35) / 15)
    assert found["whole"]["mean_without_ap"] == pytest.approx(0.5)
    assert found["part"]["mean"] is None
    assert found["part"]["cells"] == 14


def test_quoted_and_measured_numbers_stand_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "experiments.paper.baselines_table.load_rows",
        lambda name: rows_of("A method", 0.5) if name == "baselines" else [],
    )
    monkeypatch.setattr("experiments.paper.baselines_table.load_whole", lambda name: {})
    lines = baselines_in_full().splitlines()
    measured = next(i for i, line in enumerate(lines) if "measured" in line)
    assert any("MAML" in line for line in lines[:measured])
    assert [line for line in lines[measured + 1 :] if line.startswith("|")] == [
        line for line in lines if "A method" in line
    ]


def test_the_full_table_shows_how_sure_each_number_is(monkeypatch: pytest.MonkeyPatch):
    rows = [{**row, "ci95": 0.012, "ap_new_ci95": 0.034} for row in rows_of("A method", 0.5)]
    monkeypatch.setattr("experiments.paper.baselines_table.load_rows", lambda name: rows if name == "baselines" else [])
    monkeypatch.setattr("experiments.paper.baselines_table.load_whole", lambda name: {})
    line = next(line for line in baselines_in_full().splitlines() if "A method" in line)
    assert (line.count("50.0 ± 1.2"), line.count("50.0 ± 3.4"), line.count("| 50.0 |")) == (13, 1, 1)


def test_others_try_three_settings_and_ours_takes_its_defaults():
    grids = {entry.name: len(entry.grid) for entry in ENTRIES}
    fixed = (OURS_NAME, PLAIN_NAME, "Logistic regression, C = 10")
    assert len(grids) == len(ENTRIES) and {grids.pop(name) for name in fixed} == {1}
    assert set(grids.values()) == {3}


def test_a_row_has_the_paired_difference_to_ours():
    row = summary({"accuracy": [0.5, 0.7], "ap_new": [0.1, 0.3]}, {"accuracy": [0.6, 0.8], "ap_new": [0.1, 0.3]})
    assert row["accuracy"] == pytest.approx(0.6) and row["accuracy_difference"] == pytest.approx(0.1)
    assert row["accuracy_difference_ci95"] == pytest.approx(0, abs=1e-9) and row["ap_new_difference"] == 0
    assert {"ci95", "ap_new_ci95"} <= set(row)


@pytest.mark.parametrize(("difference", "first"), [(0.02, True), (0.001, False), (-0.02, False), (None, None)])
def test_ours_is_first_only_where_every_difference_excludes_zero(difference: float | None, first: bool | None):
    rows = rows_of(OURS_NAME, 0.6) + rows_of("other", 0.5)
    for row in rows:
        for number in ("accuracy", "ap_known", "ap_new") if difference is not None else ():
            row |= {f"{number}_difference": difference, f"{number}_difference_ci95": 0.02}
    assert is_first(rows) is first
    if difference is not None:
        assert means(rows)["other"]["behind_ours_ci95"] == pytest.approx(0.02 / 15**0.5)


def test_the_shipped_classifier_keeps_less_than_it_saw_and_its_novelty_is_p_new():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat_interleave(8)[torch.randperm(48, generator=generator)]
    x = torch.randn(6, 256, generator=generator)[y] + 0.5 * torch.randn(48, 256, generator=generator)
    x = nn.functional.normalize(x, dim=1) * 16
    method = Shipped("omniglot")
    stream = watch(method, x, torch.arange(48), y, 6)
    assert stream.accuracy_on_known() > 0.8 and 6 <= method.kept() < 48
    answer = method.predict(x[:5])
    with method.first.sibling() as classifier:
        for vector, label in zip(x, y.tolist(), strict=True):
            classifier.learn_one(method._given(vector[None]), label)
        torch.testing.assert_close(answer.novelty.numpy(), classifier.predict_new(method._given(x[:5])).astype("f4"))
        torch.testing.assert_close(
            answer.log_probs.exp().numpy(), classifier.predict_proba(method._given(x[:5])).astype("f4")
        )


@pytest.mark.parametrize("name", ["prototypical", "matching", "relation", "cnp"])
def test_tasks_side_by_side_are_answered_as_one_after_the_other(name: str):
    method = built(name)
    assert method.side_by_side
    x, y = clusters(12, seed=8)
    how = {"way": 4, "shot": 2, "queries": 3, "episodes": 6, "seed": 0}
    together = few_shot(method, x, y, **how)
    method.side_by_side = False
    assert torch.equal(few_shot(method, x, y, **how), together)


def test_embeddings_are_worked_out_once_and_never_taken_for_those_of_other_images(own_cache, monkeypatch):
    learner = Learner(LearnerConfig(ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1),)))).eval()
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first = embed_once(learner, images)
    torch.testing.assert_close(first, embed_all(learner.encoder, images))
    other = embed_once(learner, images.flip(0))
    torch.testing.assert_close(other, first.flip(0))
    monkeypatch.setattr("experiments.paper.embedding_cache.embed_all", None)
    assert torch.equal(embed_once(learner, images), first)
    for file in (own_cache / "embeddings").iterdir():
        file.write_bytes(b"half a file")
    monkeypatch.undo()
    monkeypatch.setattr("apl.data.files.cache_directory", lambda: own_cache)
    torch.testing.assert_close(embed_once(learner, images), first)
