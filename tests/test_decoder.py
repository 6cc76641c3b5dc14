from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from apl.config import DecoderConfig, DecoderKind, LabelForm
from apl.decoder import build_decoder
from apl.decoder.inputs import Neighbourhood
from apl.decoder.kernel import KernelDecoder, NearestDecoder
from apl.decoder.labels import number_by_first_appearance, share_out
from apl.posterior import IMPOSSIBLE, Posterior

WIDTH, WAY = 6, 5
TRAINED = ("relational", "working_memory", "lstm")
FORMS = get_args(LabelForm)
PARAMETER_FREE = ("kernel", "nearest")
KINDS = (*TRAINED, *PARAMETER_FREE)
EVERY_DECODER = [(kind, form) for kind in TRAINED for form in FORMS] + [
    (kind, "neighbourhood") for kind in PARAMETER_FREE
]
every_decoder = pytest.mark.parametrize("kind,form", EVERY_DECODER)
every_kind = pytest.mark.parametrize("kind", KINDS)


def decoder_of(kind: DecoderKind, form: LabelForm = "neighbourhood", compare: bool = False) -> nn.Module:
    torch.manual_seed(0)
    config = DecoderConfig(kind, form, WAY, hidden=16, blocks=2, unroll=2, heads=4, label_width=8, compare=compare)
    decoder = build_decoder(config, WIDTH).eval()
    with torch.no_grad():
        # Away from the start, at which scores are zero and the trained parts would go untested.
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder


@dataclass(frozen=True)
class Answer:
    """A posterior as probabilities of `way` classes, "none of these" spread evenly over those that were not recalled."""

    log_probs: Tensor
    log_none: Tensor
    weight: Tensor


def ask(decoder: nn.Module, asked: Tensor, found: Neighbourhood, way: int) -> Answer:
    return spread(decoder(asked, with_way(found, way)), found, way)


def with_way(found: Neighbourhood, way: int) -> Neighbourhood:
    absent = torch.tensor([way - len(classes) for classes in recalled(found)])
    return replace(found, log_elsewhere=torch.where(absent > 0, 0.0, IMPOSSIBLE))


def recalled(found: Neighbourhood) -> list[set[int]]:
    return [set(label[mask].tolist()) for label, mask in zip(found.label, found.mask, strict=True)]


def spread(said: Posterior, found: Neighbourhood, way: int) -> Answer:
    if said.log_probs is not None:
        return Answer(said.log_probs, said.log_none, said.weight)
    rows = []
    for q, classes in enumerate(recalled(found)):
        elsewhere = said.log_none[q] - math.log(max(1, way - len(classes)))
        first = {c: int(((found.label[q] == c) & found.mask[q]).nonzero()[0, 0]) for c in classes}
        rows.append(torch.stack([said.log_class[q, first[c]] if c in classes else elsewhere for c in range(way)]))
    return Answer(torch.stack(rows), said.log_none, said.weight)


def of_rows(embedding: Tensor, label: Tensor, distance: Tensor, mask: Tensor) -> Neighbourhood:
    same = (label[:, :, None] == label[:, None]) & mask[:, :, None] & mask[:, None]
    return Neighbourhood(embedding, distance, mask, same, torch.zeros(len(label)), label)


def neighbourhood(
    labels: list[list[int]], distance: list[list[float]] | None = None, valid: int | None = None
) -> Neighbourhood:
    label = torch.tensor(labels)
    k = label.shape[1]
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(*label.shape, WIDTH, generator=generator)
    far = torch.tensor(distance) if distance else torch.linspace(0.5, 2.5, k).expand(label.shape)
    mask = (torch.arange(k) < (k if valid is None else valid)).expand(label.shape)
    return of_rows(embedding, label, far.clone(), mask.clone())


def query(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(2))


def narrowed(found: Neighbourhood, k: int) -> Neighbourhood:
    return of_rows(found.embedding[:, :k], found.label[:, :k], found.distance[:, :k], found.mask[:, :k])


LABELS = [[0, 1, 0, 2], [3, 3, 3, 3], [4, 1, 2, 0]]


@every_decoder
def test_probabilities_sum_to_one_whatever_the_number_of_neighbours(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    for labels in ([[0]], [[0, 1], [2, 2]], LABELS, [[4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 0, 1]]):
        answer = ask(decoder, query(len(labels)), neighbourhood(labels), WAY)
        assert answer.log_probs.shape == (len(labels), WAY)
        torch.testing.assert_close(answer.log_probs.exp().sum(1), torch.ones(len(labels)))
        assert answer.weight.shape == (len(labels), len(labels[0]))
        assert (answer.weight >= 0).all() and (answer.weight.sum(1) <= 1 + 1e-5).all()


@every_decoder
def test_places_without_a_row_do_not_matter_at_all(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    full = neighbourhood(LABELS, valid=2)
    garbage = of_rows(
        full.embedding.masked_fill(~full.mask[..., None], 77.0),
        full.label.masked_fill(~full.mask, 4),
        full.distance.masked_fill(~full.mask, 0.0),
        full.mask,
    )
    short = narrowed(full, 2)
    expected = ask(decoder, query(3), short, WAY)
    for neighbours in (full, garbage):
        answer = ask(decoder, query(3), neighbours, WAY)
        torch.testing.assert_close(answer.log_probs, expected.log_probs, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(answer.log_none, expected.log_none, atol=2e-6, rtol=1e-5)
        assert answer.weight[:, 2:].eq(0).all()


@every_decoder
def test_an_empty_memory_gives_a_finite_answer_and_finite_gradients(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form).train()
    nothing = neighbourhood(LABELS, valid=0)
    live = query(3).requires_grad_()
    distance = nothing.distance.requires_grad_()
    answer = ask(decoder, live, replace(nothing, distance=distance), WAY)
    assert torch.isfinite(answer.log_probs).all()
    torch.testing.assert_close(answer.log_probs.exp().sum(1), torch.ones(3))
    if answer.log_probs.requires_grad:
        answer.log_probs[:, 0].sum().backward()
        for name, parameter in decoder.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
        for leaf in (live, distance):
            assert leaf.grad is None or torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("valid", [1, 3, 4])
@every_decoder
def test_gradients_are_finite_for_partly_filled_neighbourhoods(kind: DecoderKind, form: LabelForm, valid: int) -> None:
    decoder = decoder_of(kind, form).train()
    partial = neighbourhood(LABELS, valid=valid)
    live = query(3).requires_grad_()
    distance = partial.distance.requires_grad_()
    answer = ask(decoder, live, replace(partial, distance=distance), WAY)
    loss = -answer.log_probs[torch.arange(3), torch.tensor([0, 1, 4])].mean()
    if not loss.requires_grad:
        assert kind == "nearest"
        return
    loss.backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    if (kind, form) == ("lstm", "fixed"):
        assert distance.grad is None, "the paper's LSTM does not read distances"
        return
    assert torch.isfinite(distance.grad).all() and distance.grad[:, valid:].eq(0).all()


@every_kind
def test_with_neighbourhood_labels_an_empty_memory_is_answered_exactly_uniformly(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    for way in (2, 5, 423):
        answer = ask(decoder, query(3), neighbourhood(LABELS, valid=0), way)
        torch.testing.assert_close(answer.log_probs, torch.full((3, way), -math.log(way)))
        assert answer.log_none.eq(0).all() and answer.weight.eq(0).all()


@every_kind
def test_renumbering_the_labels_renumbers_the_answer_and_nothing_else(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood(LABELS, valid=3)
    answer = ask(decoder, query(3), neighbours, WAY)
    renumber = torch.tensor([3, 0, 4, 1, 2])
    other = ask(decoder, query(3), replace(neighbours, label=renumber[neighbours.label]), WAY)
    torch.testing.assert_close(other.log_probs[:, renumber], answer.log_probs)
    torch.testing.assert_close(other.weight, answer.weight)


@pytest.mark.parametrize("kind", (*TRAINED, "kernel"))
def test_with_neighbourhood_labels_the_same_weights_answer_for_any_number_of_classes(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood([[0, 1, 0, 2]])
    few, many = (ask(decoder, query(1), neighbours, way) for way in (4, 1000))
    torch.testing.assert_close(few.log_probs[:, :3], many.log_probs[:, :3])
    torch.testing.assert_close(few.log_probs[0, 3], few.log_none[0])
    torch.testing.assert_close(many.log_probs[0, 3:], (many.log_none - math.log(997)).expand(997))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_no_weight_depends_on_k_and_further_neighbours_change_the_answer(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    neighbours = neighbourhood(LABELS)
    answers = [ask(decoder, query(3), narrowed(neighbours, k), WAY).log_probs for k in (1, 2, 4)]
    assert not torch.allclose(answers[0], answers[1]) and not torch.allclose(answers[1], answers[2])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_every_weight_of_a_trained_decoder_learns(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form, compare=True).train()
    answer = ask(decoder, query(3), neighbourhood(LABELS), WAY)
    torch.nn.functional.nll_loss(answer.log_probs, torch.tensor([1, 2, 3])).backward()
    # Neighbourhood labels share the mass by their own sharpness; the pooling's serves fixed labels only.
    pools = kind != "lstm" and form == "fixed"
    spared = set() if pools else {"sharpness", "inputs.none_distance"}
    if (kind, form) == ("lstm", "fixed"):
        spared |= {"inputs.none.weight", "inputs.none.bias"}  # not read: an empty memory leaves the query's own state
    idle = {name for name, p in decoder.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle <= spared


@pytest.mark.parametrize("kind", ["relational", "working_memory"])
def test_the_order_of_neighbours_with_equal_distance_and_label_does_not_matter(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood([[2, 2, 2, 1]], [[1.0, 1.0, 1.0, 1.5]])
    order = torch.tensor([2, 0, 1, 3])
    turned = of_rows(neighbours.embedding[:, order], neighbours.label, neighbours.distance, neighbours.mask)
    before, after = ask(decoder, query(1), neighbours, WAY), ask(decoder, query(1), turned, WAY)
    torch.testing.assert_close(after.log_probs, before.log_probs)
    torch.testing.assert_close(after.weight, before.weight[:, order])


@pytest.mark.parametrize("kind", TRAINED)
def test_an_untrained_decoder_with_neighbourhood_labels_believes_the_nearest(kind: DecoderKind) -> None:
    torch.manual_seed(0)
    decoder = build_decoder(DecoderConfig(kind, hidden=16, blocks=2, heads=4), WIDTH).eval()
    answer = ask(decoder, query(1), neighbourhood([[3, 1, 2, 0]], [[0.1, 2.0, 2.0, 2.0]]), WAY)
    assert answer.log_probs.argmax(1).item() == 3 and answer.log_probs.max().exp() > 0.9
    far = ask(decoder, query(1), neighbourhood([[3, 1, 2, 0]], [[9.0, 9.1, 9.2, 9.3]]), WAY)
    assert far.log_none.exp() > 0.9


def test_decoders_that_could_not_work_are_not_made() -> None:
    with pytest.raises(ValueError, match=r"hidden \(10\) must be a multiple of heads \(4\)"):
        build_decoder(DecoderConfig(hidden=10, heads=4), WIDTH)
    with pytest.raises(ValueError, match="fixed labels need `way`"):
        build_decoder(DecoderConfig(labels="fixed"), WIDTH)


def test_labels_are_numbered_by_first_appearance() -> None:
    labels = torch.tensor([[7, 2, 7, 9, 2], [4, 4, 4, 4, 4], [5, 6, 5, 8, 6]])
    mask = torch.tensor([[True] * 5, [True] * 5, [True, True, True, False, False]])
    same = of_rows(torch.zeros(3, 5, 1), labels, torch.zeros(3, 5), mask).same
    number = number_by_first_appearance(same)
    assert number[:2].tolist() == [[0, 1, 0, 2, 1], [0] * 5] and number[2, :3].tolist() == [0, 1, 0]


def test_shares_of_neighbours_add_up_by_label_and_none_is_spread_over_the_rest() -> None:
    neighbours = neighbourhood([[1, 3, 1]])
    shares = torch.tensor([[0.1, 0.2, 0.3]])
    answer = spread(share_out(shares.log(), torch.tensor([0.4]).log(), neighbours), neighbours, 4)
    torch.testing.assert_close(answer.log_probs.exp(), torch.tensor([[0.2, 0.4, 0.2, 0.2]]))
    torch.testing.assert_close(answer.weight, shares)
    torch.testing.assert_close(answer.log_none.exp(), torch.tensor([0.4]))


def test_with_every_class_recalled_there_is_no_mass_left_for_none() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5, 0.0]], requires_grad=True)
    none = torch.tensor([100.0], requires_grad=True)
    found = with_way(neighbourhood([[2, 0, 1, 0]]), 3)
    answer = spread(share_out(logits, none, found), found, 3)
    share = logits.detach().softmax(1)[0]
    torch.testing.assert_close(answer.log_probs.exp()[0], torch.stack([share[1] + share[3], share[2], share[0]]))
    assert answer.log_none.exp().item() == 0
    answer.log_probs[0, 1].backward()
    assert torch.isfinite(logits.grad).all() and torch.isfinite(none.grad).all()


def test_the_kernel_weighs_neighbours_by_a_gaussian_of_their_distance() -> None:
    near, far = 0.6, 1.2
    neighbours = neighbourhood([[2, 0]], [[near * WIDTH**0.5, far * WIDTH**0.5]])
    answer = ask(KernelDecoder(), query(1), neighbours, 4)
    mass = [math.exp(-16 * d**2) for d in (near, far, 1.1)]
    share = [m / sum(mass) for m in mass]
    expected = torch.tensor([[share[1], share[2] / 2, share[0], share[2] / 2]])
    torch.testing.assert_close(answer.log_probs.exp(), expected)


def test_the_nearest_decoder_believes_the_first_neighbour_alone() -> None:
    answer = ask(NearestDecoder(), query(2), neighbourhood([[2, 0, 0], [1, 1, 3]]), 4)
    third, half = 0.05 / 3, 0.05 / 2
    expected = torch.tensor([[2 * third, third / 2, 0.95, third / 2], [half / 2, 0.95, half / 2, half]])
    torch.testing.assert_close(answer.log_probs.exp(), expected)
    torch.testing.assert_close(answer.weight, torch.tensor([[0.95, third, third], [0.95, 0.0, half]]))


def test_class_distance_is_that_from_the_mean_of_the_recalled_rows_of_the_class() -> None:
    rows = torch.tensor([[3.0, 4.0], [5.0, 0.0], [0.0, 5.0]])
    label, everywhere = torch.tensor([[7, 7, 2]]), torch.tensor([[True, True, True]])
    found = of_rows(rows[None], label, torch.zeros(1, 3), everywhere)
    mean = torch.tensor([4.0, 2.0]) * 5 / 20**0.5  # as long as the two rows are
    asked = torch.tensor([[1.0, 1.0]])
    near, far = (float((asked[0] - place).norm()) for place in (mean, rows[2]))
    torch.testing.assert_close(found.class_distance(asked), torch.tensor([[near, near, far]]))

    hidden = of_rows(rows[None], label, torch.zeros(1, 3), torch.tensor([[True, False, True]]))
    distance = hidden.class_distance(asked)
    torch.testing.assert_close(distance, torch.tensor([[float((asked[0] - rows[0]).norm()), 0.0, far]]))


def between_two() -> tuple[Tensor, Neighbourhood]:
    """A query between two rows of class 0, with one of class 1 a little nearer."""
    rows = torch.tensor([[0.6, 0.8], [0.9, 0.436], [0.3, 0.954]])
    asked = torch.tensor([[0.7, 0.714]])
    label, everywhere = torch.tensor([[1, 0, 0]]), torch.ones(1, 3, dtype=torch.bool)
    return asked, of_rows(rows[None], label, (asked - rows).norm(dim=1)[None], everywhere)


def test_the_class_mean_decoder_believes_the_nearest_mean_however_many_rows_a_class_has() -> None:
    asked, found = between_two()
    decoder = build_decoder(DecoderConfig("class_mean"), 2)
    posterior = ask(decoder, asked, found, 2)
    far, near = found.class_distance(asked)[0, :2]
    odds = posterior.log_probs[0, 0] - posterior.log_probs[0, 1]
    torch.testing.assert_close(odds, decoder.SHARPNESS * (far**2 - near**2) / 2)
    assert odds > 0


@pytest.mark.parametrize("kind", TRAINED)
def test_with_class_means_the_class_around_the_query_wins_over_the_nearest_row(kind: DecoderKind) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(kind, hidden=16, blocks=2, unroll=2, heads=4, class_means=True)
    decoder = build_decoder(config, 2).eval()
    asked, found = between_two()
    with torch.no_grad():
        decoder.labels.sharpness.fill_(1.0)
        decoder.labels.class_sharpness.fill_(50.0)
        answer = ask(decoder, asked, found, 2)
    assert int(answer.log_probs.argmax()) == 0
