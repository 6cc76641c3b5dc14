from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from apl.decoder import DecoderConfig, DecoderKind, LabelForm, build_decoder
from apl.decoder.inputs import with_class_distance
from apl.decoder.kernel import KernelDecoder, NearestDecoder
from apl.decoder.labels import first_with_same_label, number_by_first_appearance, share_out
from apl.memory import Neighbours

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


def neighbourhood(
    labels: list[list[int]], distance: list[list[float]] | None = None, valid: int | None = None
) -> Neighbours:
    label = torch.tensor(labels)
    k = label.shape[1]
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(*label.shape, WIDTH, generator=generator)
    far = torch.tensor(distance) if distance else torch.linspace(0.5, 2.5, k).expand(label.shape)
    mask = (torch.arange(k) < (k if valid is None else valid)).expand(label.shape)
    row = torch.arange(k).expand(label.shape)
    return Neighbours({"embedding": embedding, "label": label}, far.clone(), mask.clone(), row.clone())


def query(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(2))


def narrowed(neighbours: Neighbours, k: int) -> Neighbours:
    return Neighbours(
        {name: column[:, :k] for name, column in neighbours.columns.items()},
        neighbours.distance[:, :k],
        neighbours.mask[:, :k],
        neighbours.row[:, :k],
    )


LABELS = [[0, 1, 0, 2], [3, 3, 3, 3], [4, 1, 2, 0]]


@every_decoder
def test_probabilities_sum_to_one_whatever_the_number_of_neighbours(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    for labels in ([[0]], [[0, 1], [2, 2]], LABELS, [[4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 0, 1]]):
        answer = decoder(query(len(labels)), neighbourhood(labels), WAY)
        assert answer.log_probs.shape == (len(labels), WAY)
        torch.testing.assert_close(answer.log_probs.exp().sum(1), torch.ones(len(labels)))
        assert answer.weight.shape == (len(labels), len(labels[0]))
        assert (answer.weight >= 0).all() and (answer.weight.sum(1) <= 1 + 1e-5).all()


@every_decoder
def test_places_without_a_row_do_not_matter_at_all(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    full = neighbourhood(LABELS, valid=2)
    garbage = replace(
        full,
        columns={
            "embedding": full.columns["embedding"].masked_fill(~full.mask[..., None], 77.0),
            "label": full.columns["label"].masked_fill(~full.mask, 4),
        },
        distance=full.distance.masked_fill(~full.mask, 0.0),
    )
    short = narrowed(full, 2)
    expected = decoder(query(3), short, WAY)
    for neighbours in (full, garbage):
        answer = decoder(query(3), neighbours, WAY)
        torch.testing.assert_close(answer.log_probs, expected.log_probs, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(answer.log_none, expected.log_none, atol=2e-6, rtol=1e-5)
        assert answer.weight[:, 2:].eq(0).all()


@every_decoder
def test_an_empty_memory_gives_a_finite_answer_and_finite_gradients(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form).train()
    nothing = neighbourhood(LABELS, valid=0)
    live = query(3).requires_grad_()
    distance = nothing.distance.requires_grad_()
    answer = decoder(live, replace(nothing, distance=distance), WAY)
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
    answer = decoder(live, replace(partial, distance=distance), WAY)
    loss = -answer.log_probs[torch.arange(3), torch.tensor([0, 1, 4])].mean()
    if not loss.requires_grad:
        assert kind == "nearest"
        return
    loss.backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    assert torch.isfinite(distance.grad).all() and distance.grad[:, valid:].eq(0).all()


@every_kind
def test_with_neighbourhood_labels_an_empty_memory_is_answered_exactly_uniformly(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    for way in (2, 5, 423):
        answer = decoder(query(3), neighbourhood(LABELS, valid=0), way)
        assert torch.equal(answer.log_probs, torch.full((3, way), -math.log(way)))
        assert answer.log_none.eq(0).all() and answer.weight.eq(0).all()


@every_kind
def test_renumbering_the_labels_renumbers_the_answer_and_nothing_else(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood(LABELS, valid=3)
    answer = decoder(query(3), neighbours, WAY)
    renumber = torch.tensor([3, 0, 4, 1, 2])
    label = renumber[neighbours.columns["label"]]
    other = decoder(query(3), replace(neighbours, columns={**neighbours.columns, "label": label}), WAY)
    torch.testing.assert_close(other.log_probs[:, renumber], answer.log_probs)
    torch.testing.assert_close(other.weight, answer.weight)


@pytest.mark.parametrize("kind", (*TRAINED, "kernel"))
def test_with_neighbourhood_labels_the_same_weights_answer_for_any_number_of_classes(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood([[0, 1, 0, 2]])
    few, many = (decoder(query(1), neighbours, way) for way in (4, 1000))
    torch.testing.assert_close(few.log_probs[:, :3], many.log_probs[:, :3])
    torch.testing.assert_close(few.log_probs[0, 3], few.log_none[0])
    torch.testing.assert_close(many.log_probs[0, 3:], (many.log_none - math.log(997)).expand(997))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_no_weight_depends_on_k_and_further_neighbours_change_the_answer(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form)
    neighbours = neighbourhood(LABELS)
    answers = [decoder(query(3), narrowed(neighbours, k), WAY).log_probs for k in (1, 2, 4)]
    assert not torch.allclose(answers[0], answers[1]) and not torch.allclose(answers[1], answers[2])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_every_weight_of_a_trained_decoder_learns(kind: DecoderKind, form: LabelForm) -> None:
    decoder = decoder_of(kind, form, compare=True).train()
    answer = decoder(query(3), neighbourhood(LABELS), WAY)
    torch.nn.functional.nll_loss(answer.log_probs, torch.tensor([1, 2, 3])).backward()
    # Neighbourhood labels share the mass by their own sharpness; the pooling's serves fixed labels only.
    pools = kind != "lstm" and form == "fixed"
    spared = set() if pools else {"sharpness", "inputs.none_distance"}
    idle = {name for name, p in decoder.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle <= spared


@pytest.mark.parametrize("kind", ["relational", "working_memory"])
def test_the_order_of_neighbours_with_equal_distance_and_label_does_not_matter(kind: DecoderKind) -> None:
    decoder = decoder_of(kind)
    neighbours = neighbourhood([[2, 2, 2, 1]], [[1.0, 1.0, 1.0, 1.5]])
    order = torch.tensor([2, 0, 1, 3])
    turned = replace(neighbours, columns={name: column[:, order] for name, column in neighbours.columns.items()})
    before, after = decoder(query(1), neighbours, WAY), decoder(query(1), turned, WAY)
    torch.testing.assert_close(after.log_probs, before.log_probs)
    torch.testing.assert_close(after.weight, before.weight[:, order])


@pytest.mark.parametrize("kind", TRAINED)
def test_an_untrained_decoder_with_neighbourhood_labels_believes_the_nearest(kind: DecoderKind) -> None:
    torch.manual_seed(0)
    decoder = build_decoder(DecoderConfig(kind, hidden=16, blocks=2, heads=4), WIDTH).eval()
    answer = decoder(query(1), neighbourhood([[3, 1, 2, 0]], [[0.1, 2.0, 2.0, 2.0]]), WAY)
    assert answer.log_probs.argmax(1).item() == 3 and answer.log_probs.max().exp() > 0.9
    far = decoder(query(1), neighbourhood([[3, 1, 2, 0]], [[9.0, 9.1, 9.2, 9.3]]), WAY)
    assert far.log_none.exp() > 0.9


@pytest.mark.parametrize("kind", ("relational", "lstm"))
def test_fixed_labels_are_bound_to_their_number_of_classes(kind: DecoderKind) -> None:
    with pytest.raises(ValueError, match="made for 5 classes and cannot answer for 7"):
        decoder_of(kind, "fixed")(query(3), neighbourhood(LABELS), 7)


def test_decoders_that_could_not_work_are_not_made() -> None:
    with pytest.raises(ValueError, match=r"hidden \(10\) must be a multiple of heads \(4\)"):
        build_decoder(DecoderConfig(hidden=10, heads=4), WIDTH)
    with pytest.raises(ValueError, match="fixed labels need `way`"):
        build_decoder(DecoderConfig(labels="fixed"), WIDTH)


def test_labels_are_numbered_by_first_appearance() -> None:
    labels = torch.tensor([[7, 2, 7, 9, 2], [4, 4, 4, 4, 4], [5, 6, 5, 8, 6]])
    mask = torch.tensor([[True] * 5, [True] * 5, [True, True, True, False, False]])
    assert number_by_first_appearance(labels.numpy(), mask.numpy()).tolist() == [
        [0, 1, 0, 2, 1],
        [0] * 5,
        [0, 1, 0, 0, 0],
    ]
    assert first_with_same_label(labels.numpy(), mask.numpy())[0].tolist() == [0, 1, 0, 3, 1]


def test_shares_of_neighbours_add_up_by_label_and_none_is_spread_over_the_rest() -> None:
    neighbours = neighbourhood([[1, 3, 1]])
    shares = torch.tensor([[0.1, 0.2, 0.3]])
    answer = share_out(shares.log(), torch.tensor([0.4]).log(), neighbours, 4)
    torch.testing.assert_close(answer.log_probs.exp(), torch.tensor([[0.2, 0.4, 0.2, 0.2]]))
    torch.testing.assert_close(answer.weight, shares)
    torch.testing.assert_close(answer.log_none.exp(), torch.tensor([0.4]))


def test_with_every_class_recalled_there_is_no_mass_left_for_none() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5, 0.0]], requires_grad=True)
    none = torch.tensor([100.0], requires_grad=True)
    answer = share_out(logits, none, neighbourhood([[2, 0, 1, 0]]), 3)
    share = logits.detach().softmax(1)[0]
    torch.testing.assert_close(answer.log_probs.exp()[0], torch.stack([share[1] + share[3], share[2], share[0]]))
    assert answer.log_none.item() == -math.inf
    answer.log_probs[0, 1].backward()
    assert torch.isfinite(logits.grad).all() and torch.isfinite(none.grad).all()


def test_a_memory_with_more_classes_than_announced_is_an_error() -> None:
    with pytest.raises(ValueError, match="the memory holds label 4, but only 3 classes were announced"):
        KernelDecoder()(query(1), neighbourhood([[4, 1]]), 3)
    masked = neighbourhood([[1, 4]], valid=1)
    assert torch.isfinite(KernelDecoder()(query(1), masked, 3).log_probs).all()


def test_the_kernel_weighs_neighbours_by_a_gaussian_of_their_distance() -> None:
    near, far = 0.6, 1.2
    neighbours = neighbourhood([[2, 0]], [[near * WIDTH**0.5, far * WIDTH**0.5]])
    answer = KernelDecoder()(query(1), neighbours, 4)
    mass = [math.exp(-16 * d**2) for d in (near, far, 1.1)]
    share = [m / sum(mass) for m in mass]
    expected = torch.tensor([[share[1], share[2] / 2, share[0], share[2] / 2]])
    torch.testing.assert_close(answer.log_probs.exp(), expected)


def test_the_nearest_decoder_believes_the_first_neighbour_alone() -> None:
    answer = NearestDecoder()(query(2), neighbourhood([[2, 0, 0], [1, 1, 3]]), 4)
    expected = torch.full((2, 4), 0.05 / 3)
    expected[0, 2] = expected[1, 1] = 0.95
    torch.testing.assert_close(answer.log_probs.exp(), expected)
    torch.testing.assert_close(answer.weight, torch.tensor([[0.95, 0.0, 0.0], [0.95, 0.0, 0.0]]))


def test_class_distance_is_that_from_the_mean_of_the_recalled_rows_of_the_class() -> None:
    rows = torch.tensor([[3.0, 4.0], [5.0, 0.0], [0.0, 5.0]])
    found = Neighbours(
        {"embedding": rows[None], "label": torch.tensor([[7, 7, 2]])},
        torch.zeros(1, 3),
        torch.tensor([[True, True, True]]),
        torch.arange(3)[None],
    )
    mean = torch.tensor([4.0, 2.0]) * 5 / 20**0.5  # as long as the two rows are
    asked = torch.tensor([[1.0, 1.0]])
    near, far = (float((asked[0] - place).norm()) for place in (mean, rows[2]))
    distance = with_class_distance(asked, found).columns["class_distance"]
    torch.testing.assert_close(distance, torch.tensor([[near, near, far]]))

    hidden = replace(found, mask=torch.tensor([[True, False, True]]))
    distance = with_class_distance(asked, hidden).columns["class_distance"]
    torch.testing.assert_close(distance, torch.tensor([[float((asked[0] - rows[0]).norm()), 0.0, far]]))


def between_two() -> tuple[Tensor, Neighbours]:
    """A query between two rows of class 0, with one of class 1 a little nearer."""
    rows = torch.tensor([[0.6, 0.8], [0.9, 0.436], [0.3, 0.954]])
    asked = torch.tensor([[0.7, 0.714]])
    found = Neighbours(
        {"embedding": rows[None], "label": torch.tensor([[1, 0, 0]])},
        (asked - rows).norm(dim=1)[None],
        torch.ones(1, 3, dtype=torch.bool),
        torch.arange(3)[None],
    )
    return asked, with_class_distance(asked, found)


def test_the_class_mean_decoder_believes_the_nearest_mean_however_many_rows_a_class_has() -> None:
    asked, found = between_two()
    decoder = build_decoder(DecoderConfig("class_mean", class_means=True), 2)
    posterior = decoder(asked, found, 2)
    near, far = found.columns["class_distance"][0, 1], found.columns["class_distance"][0, 0]
    odds = posterior.log_probs[0, 0] - posterior.log_probs[0, 1]
    torch.testing.assert_close(odds, decoder.SHARPNESS * (far**2 - near**2) / 2)
    assert odds > 0
    with pytest.raises(ValueError, match="class_means"):
        build_decoder(DecoderConfig("class_mean"), 2)


@pytest.mark.parametrize("kind", TRAINED)
def test_with_class_means_the_class_around_the_query_wins_over_the_nearest_row(kind: DecoderKind) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(kind, hidden=16, blocks=2, unroll=2, heads=4, class_means=True)
    decoder = build_decoder(config, 2).eval()
    asked, found = between_two()
    with torch.no_grad():
        decoder.labels.sharpness.fill_(1.0)
        decoder.labels.class_sharpness.fill_(50.0)
        answer = decoder(asked, found, 2)
    assert int(answer.log_probs.argmax()) == 0
