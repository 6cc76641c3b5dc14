"""One contract, kept by every decoder with every form of labels under every controller."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apl.checkpoint import read_json
from apl.config import ConvConfig, DecoderConfig, DecoderKind, Group, IdentityConfig, LabelForm, LearnerConfig
from apl.controller import Action, Controller, SurpriseController, WriteAll
from apl.learner import Learner, check_labels
from apl.memory import RamMemory

WAY = 4
TINY = ConvConfig(image_size=8, stem_channels=4, groups=(Group(4, 1), Group(4, 1)))
DECODERS: list[tuple[DecoderKind, LabelForm]] = [
    (kind, form) for kind in ("relational", "working_memory", "lstm") for form in ("fixed", "neighbourhood")
]
DECODERS += [("kernel", "neighbourhood"), ("nearest", "neighbourhood")]
CONTROLLERS: list[Controller] = [SurpriseController(), WriteAll(), SurpriseController(sigma_nats=math.inf)]

every_decoder = pytest.mark.parametrize("kind,form", DECODERS)
every_controller = pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda c: type(c).__name__)


def learner_of(
    kind: DecoderKind = "relational",
    form: LabelForm = "neighbourhood",
    controller: Controller | None = None,
    **changes: Any,
) -> Learner:
    torch.manual_seed(0)
    decoder = DecoderConfig(
        kind, form, WAY if form == "fixed" else None, 16, blocks=2, unroll=2, heads=4, label_width=8
    )
    learner = Learner(LearnerConfig(encoder=TINY, decoder=decoder, k=3, **changes), controller)
    with torch.no_grad():
        for parameter in learner.decoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        learner.train().encoder(torch.rand(32, 1, 8, 8))
    return learner.eval()


def examples(seed: int, episodes: int = 2, queries: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (episodes, queries, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return x, torch.randint(WAY, (episodes, queries), generator=generator)


def filled(learner: Learner, examples_each: int = 9) -> RamMemory:
    memory = learner.new_memory(2)
    x, y = examples(1, 2, examples_each)
    with torch.no_grad():
        learner.write(memory, learner.embed(x), y, np.ones(y.shape, bool))
    return memory


def contents(memory: RamMemory) -> dict[str, np.ndarray]:
    return {name: memory.column(name).copy() for name in memory.spec} | {"counts": memory.counts.copy()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@every_controller
@every_decoder
def test_predicting_never_changes_the_memory(kind: DecoderKind, form: LabelForm, controller: Controller) -> None:
    learner = learner_of(kind, form, controller)
    memory = filled(learner)
    x, _ = examples(2)
    before, answer = contents(memory), learner.predict(memory, x, WAY)
    assert same(before, contents(memory))
    assert torch.equal(learner.predict(memory, x, WAY).log_probs, answer.log_probs), "asking twice gave two answers"


@every_controller
@every_decoder
def test_observing_writes_exactly_what_the_controller_chose(
    kind: DecoderKind, form: LabelForm, controller: Controller
) -> None:
    learner = learner_of(kind, form, controller)
    memory = filled(learner)
    x, y = examples(3)
    before, believed = contents(memory), learner.predict(memory, x, WAY)
    seen = learner.observe(memory, x, y, WAY)
    assert torch.equal(seen.prediction.log_probs, believed.log_probs), "the truth leaked into the prediction"
    torch.testing.assert_close(seen.surprise_nats, -believed.log_probs.gather(-1, y[..., None])[..., 0])
    chosen = controller.decide(seen.surprise_nats.detach().numpy(), WAY) == Action.WRITE
    assert np.array_equal(seen.written, chosen)
    assert np.array_equal(memory.counts, before["counts"] + chosen.sum(1))
    for episode in range(2):
        old = int(before["counts"][episode])
        assert np.array_equal(memory.column("embedding")[episode, :old], before["embedding"][episode, :old])
        new = slice(old, int(memory.counts[episode]))
        kept = chosen[episode]
        assert np.array_equal(memory.column("embedding")[episode, new], believed.embedding[episode, kept].detach())
        assert np.array_equal(memory.column("label")[episode, new], y[episode, kept])
        assert seen.row[episode, kept].tolist() == list(range(old, old + int(kept.sum())))


@every_decoder
def test_from_an_empty_memory_on_the_answer_is_a_finite_distribution(kind: DecoderKind, form: LabelForm) -> None:
    learner = learner_of(kind, form, WriteAll())
    memory = learner.new_memory(2)
    for seed in range(3):
        x, y = examples(seed)
        answer = learner.observe(memory, x, y, WAY).prediction
        assert torch.isfinite(answer.log_probs).all()
        torch.testing.assert_close(answer.log_probs.exp().sum(-1), torch.ones(2, 6))
        assert answer.label.shape == (2, 6) and answer.weight.shape == (2, 6, 3)


@every_decoder
def test_no_gradient_reaches_the_memory_or_flows_through_it(kind: DecoderKind, form: LabelForm) -> None:
    learner = learner_of(kind, form, WriteAll(), distance_gradient=True).train()
    memory = learner.new_memory(2)
    first = learner.observe(memory, *examples(1), WAY)
    second = learner.observe(memory, *examples(2), WAY)
    if not second.surprise_nats.requires_grad:
        assert kind == "nearest"
        return
    reached = torch.autograd.grad(second.surprise_nats.mean(), first.prediction.embedding, allow_unused=True)
    assert reached == (None,), "the loss of a batch depends on the embedding of an earlier batch"


@pytest.mark.parametrize("distance_gradient", [True, False])
def test_the_distance_carries_gradient_into_the_encoder_only_if_asked(distance_gradient: bool) -> None:
    learner = learner_of("kernel", distance_gradient=distance_gradient)
    loss = learner.observe(filled(learner), *examples(2), WAY).surprise_nats.mean()
    # The kernel sees nothing of the query but its distances.
    assert loss.requires_grad == distance_gradient
    trained = learner_of("relational", distance_gradient=distance_gradient).train()
    trained.observe(filled(trained), *examples(2), WAY).surprise_nats.mean().backward()
    assert trained.encoder.stem.weight.grad.any()


@every_decoder
def test_parallel_episodes_answer_as_each_would_alone(kind: DecoderKind, form: LabelForm) -> None:
    learner = learner_of(kind, form, WriteAll())
    together, alone = learner.new_memory(2), [learner.new_memory(1) for _ in range(2)]
    for seed in range(3):
        x, y = examples(seed)
        both = learner.observe(together, x, y, WAY).prediction.log_probs
        each = [learner.observe(alone[e], x[e : e + 1], y[e : e + 1], WAY).prediction.log_probs for e in range(2)]
        torch.testing.assert_close(both, torch.cat(each), atol=1e-4, rtol=1e-4)


@every_decoder
def test_a_learner_on_embeddings_gives_the_same_answers(kind: DecoderKind, form: LabelForm) -> None:
    learner = learner_of(kind, form)
    twin = learner.on_embeddings()
    x, y = examples(5)
    embedded = learner.embed(x).detach()
    memory, other = filled(learner), filled(learner)
    one, two = learner.observe(memory, x, y, WAY), twin.observe(other, embedded, y, WAY)
    assert torch.equal(one.prediction.log_probs, two.prediction.log_probs)
    assert same(contents(memory), contents(other))
    assert twin.networks.training == learner.networks.training


def test_k_may_be_changed_after_training() -> None:
    learner = learner_of()
    memory = filled(learner)
    x, _ = examples(2)
    for k in (1, 7, 20):
        learner.config = replace(learner.config, k=k)
        answer = learner.predict(memory, x, WAY)
        assert answer.weight.shape == (2, 6, k) and torch.isfinite(answer.log_probs).all()


@every_decoder
def test_a_saved_learner_loads_and_answers_the_same(kind: DecoderKind, form: LabelForm, tmp_path: Path) -> None:
    learner = learner_of(kind, form)
    x, _ = examples(2)
    expected = learner.predict(filled(learner), x, WAY).log_probs
    learner.save(tmp_path / "exact", {"why": "test"}, half=False)
    again = Learner.load(tmp_path / "exact")
    assert torch.equal(again.predict(filled(again), x, WAY).log_probs, expected)
    assert again.config == learner.config and not again.networks.training
    learner.save(tmp_path / "half", {})
    rounded = Learner.load(tmp_path / "half")
    torch.testing.assert_close(rounded.embed(x), learner.embed(x), atol=0.02, rtol=0)
    # On the same neighbourhoods: between two equally near rows a rounded encoder may choose the other one.
    memory = filled(learner)
    whole = learner.predict(memory, x, WAY)
    believed = rounded.reading.read(memory, whole.embedding, whole.neighbours, WAY).log_probs.exp()
    expected = learner.reading.read(memory, whole.embedding, whole.neighbours, WAY).log_probs.exp()
    torch.testing.assert_close(believed, expected, atol=0.02, rtol=0)
    assert read_json(tmp_path / "exact" / "model.json")["provenance"] == {"why": "test"}


def test_loading_takes_the_controller_given() -> None:
    assert learner_of(sigma_ratio=0.5).controller == SurpriseController(0.5)
    assert learner_of(controller=WriteAll()).controller == WriteAll()


def test_the_fingerprint_tells_encoders_apart_and_survives_saving_in_half_precision(tmp_path: Path) -> None:
    learner = learner_of()
    mark = learner.fingerprint()
    assert mark == learner_of().fingerprint()
    learner.save(tmp_path, {})
    assert Learner.load(tmp_path).fingerprint() == mark
    with torch.no_grad():
        learner.decoder.norm.weight.mul_(2)
    assert learner.fingerprint() == mark, "the decoder has no part in what the keys mean"
    with torch.no_grad():
        learner.encoder.stem.weight[0, 0, 0, 0] += 0.5
    assert learner.fingerprint() != mark


@pytest.mark.parametrize("label", [-1, WAY, 10**6])
def test_labels_out_of_range_are_refused_and_nothing_is_written(label: int) -> None:
    learner = learner_of(controller=WriteAll())
    memory = filled(learner)
    x, y = examples(2)
    y[1, 3] = label
    before = contents(memory)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.3, found"):
        learner.observe(memory, x, y, WAY)
    assert same(before, contents(memory))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_numbers_are_refused_and_nothing_is_written(bad: float) -> None:
    learner = learner_of(controller=WriteAll())
    memory = filled(learner)
    x = torch.rand(2, 6, 1, 8, 8)
    x[1, 2, 0, 3, 3] = bad
    before = contents(memory)
    with pytest.raises(ValueError, match="contains NaN or infinity"):
        learner.observe(memory, x, examples(2)[1], WAY)
    assert same(before, contents(memory))


def test_wrong_shapes_and_numbers_say_what_was_expected() -> None:
    learner = learner_of()
    memory = learner.new_memory(2)
    x, _y = examples(2)
    with pytest.raises(ValueError, match=r"expected images of shape \[any, 1, 8, 8\]"):
        learner.predict(memory, torch.rand(2, 3, 1, 9, 9), WAY)
    with pytest.raises(ValueError, match=r"expected inputs of shape \[episode, query, \.\.\.\]"):
        learner.predict(memory, torch.rand(2, 3), WAY)
    with pytest.raises(ValueError, match=r"query must be \[2, any, 16\]"):
        learner.predict(memory, x[:1], WAY)
    with pytest.raises(ValueError, match="way, the number of classes, must be at least 2, got 1"):
        learner.predict(memory, x, 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        Learner(LearnerConfig(k=0))


def test_labels_of_another_shape_than_the_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected labels of shape \[2, 6\], got \[2, 5\]"):
        check_labels(torch.zeros(2, 5, dtype=torch.int64), torch.Size((2, 6)), WAY)


def test_vectors_can_be_learnt_from_without_an_encoder() -> None:
    torch.manual_seed(0)
    learner = Learner(LearnerConfig(IdentityConfig(3), DecoderConfig("kernel"), k=2), WriteAll()).eval()
    memory = learner.new_memory()
    corners = torch.eye(3)[None] * 10
    learner.observe(memory, corners, torch.tensor([[2, 0, 1]]), 3)
    assert learner.predict(memory, corners + 0.1, 3).label.tolist() == [[2, 0, 1]]


@pytest.mark.parametrize("kind", ["relational", "working_memory", "lstm", "kernel", "nearest"])
def test_untrained_with_neighbourhood_labels_a_surprising_example_is_believed_once_it_was_seen(
    kind: DecoderKind,
) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(kind, "neighbourhood", hidden=16, blocks=2, unroll=2, heads=4)
    learner = Learner(LearnerConfig(IdentityConfig(8), config, k=3)).eval()
    memory = learner.new_memory()
    x, y = torch.randn(1, 1, 8) * 3, torch.tensor([[1]])
    first = learner.observe(memory, x, y, 20)
    again = learner.observe(memory, x, y, 20)
    torch.testing.assert_close(first.surprise_nats, torch.tensor([[math.log(20)]]))
    assert first.written.all() and not again.written.any()
    assert again.surprise_nats.item() < 0.1


def test_none_of_these_means_a_class_without_rows_rather_than_one_that_was_overlooked() -> None:
    learner = learner_of("kernel", "neighbourhood")
    learner.config = replace(learner.config, k=1)
    memory = learner.new_memory()
    x, _ = examples(1, episodes=1)
    rows = learner.embed(x)[:, :2]
    learner.write(memory, rows, torch.tensor([[0, 1]]), np.ones((1, 2), bool))
    far = learner.predict(memory, x + 5.0, 4).log_probs.exp()[0]
    nearest = learner.predict(memory, x + 5.0, 4).neighbours.columns["label"][0, :, 0]
    nearest = torch.from_numpy(nearest)
    overlooked = 1 - nearest
    new = far[:, 2:].sum(-1)
    assert torch.allclose(far.sum(-1), torch.ones(len(far)))
    assert bool((far.gather(1, overlooked[:, None]).squeeze(1) < 0.05 * new + 1e-6).all())
    assert torch.allclose(far[:, 2], far[:, 3])


@pytest.mark.parametrize("kind", ["relational", "lstm"])
def test_fixed_labels_are_bound_to_their_number_of_classes(kind: DecoderKind) -> None:
    learner = learner_of(kind, "fixed")
    with pytest.raises(ValueError, match="made for 4 classes and cannot answer for 7"):
        learner.predict(filled(learner), examples(2)[0], 7)


def test_a_memory_with_more_classes_than_announced_is_an_error() -> None:
    learner = learner_of()
    with pytest.raises(ValueError, match="the memory holds label 3, but only 2 classes were announced"):
        learner.predict(filled(learner), examples(2)[0], 2)


@pytest.mark.parametrize("rows", [2, 40])
def test_the_distance_pulls_the_query_away_from_its_neighbour(rows: int) -> None:
    torch.manual_seed(0)
    learner = Learner(
        LearnerConfig(IdentityConfig(8), DecoderConfig("kernel"), k=1, distance_gradient=True), WriteAll()
    )
    memory, keys = learner.new_memory(), torch.randn(1, rows, 8)
    learner.write(memory, keys, torch.zeros(1, rows, dtype=torch.int64), np.ones((1, rows), bool))
    query = torch.randn(1, 8, requires_grad=True)
    found = learner.recall(memory, query[None])
    learner.networks.neighbourhood(query, found, np.zeros((1, 1), np.float32)).distance.sum().backward()
    away = query.detach()[0] - keys[0, found.row[0, 0, 0]]
    torch.testing.assert_close(query.grad[0], away / away.norm())


def test_the_gradient_is_finite_where_query_and_neighbour_coincide() -> None:
    learner = Learner(
        LearnerConfig(IdentityConfig(8), DecoderConfig("kernel"), k=4, distance_gradient=True), WriteAll()
    )
    memory, query = learner.new_memory(), torch.ones(1, 8, requires_grad=True)
    learner.write(memory, torch.ones(1, 2, 8), torch.zeros(1, 2, dtype=torch.int64), np.ones((1, 2), bool))
    found = learner.recall(memory, query[None])
    learner.networks.neighbourhood(query, found, np.zeros((1, 1), np.float32)).distance.sum().backward()
    assert torch.isfinite(query.grad).all()
