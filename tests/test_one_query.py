"""The decoder laid out for one query answers as the decoder it was made of."""

from __future__ import annotations

import pytest
import torch

from apl.decoder import DecoderConfig
from apl.encoder import IdentityConfig
from apl.learner import Learner, LearnerConfig
from apl.memory import Memory
from apl.one_query import OneQueryDecoder, for_one_query

WIDTH, K = 12, 5


def made_learner(seed: int = 0, **decoder: object) -> Learner:
    torch.manual_seed(seed)
    config = DecoderConfig(hidden=16, blocks=2, heads=4, label_width=6, **decoder)
    learner = Learner(LearnerConfig(encoder=IdentityConfig(WIDTH), decoder=config, k=K)).eval()
    for weight in learner.decoder.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    return learner


def filled(learner: Learner, rows: int, way: int) -> Memory:
    memory = learner.new_memory()
    keys, labels = torch.randn(1, rows, WIDTH), torch.randint(way, (1, rows))
    learner.write(memory, keys, labels, torch.ones(1, rows, dtype=torch.bool))
    return memory


@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize("class_means", [False, True])
@pytest.mark.parametrize(("rows", "way"), [(5, 3), (40, 2), (40, 30), (200, 500)])
def test_it_answers_as_the_whole_decoder_does(compare: bool, class_means: bool, rows: int, way: int) -> None:
    learner = made_learner(compare=compare, class_means=class_means)
    memory, quick = filled(learner, rows, way), for_one_query(learner.decoder)
    assert isinstance(quick, OneQueryDecoder)
    with torch.inference_mode():
        for query in torch.randn(8, 1, 1, WIDTH):
            learner.decoder = quick.whole
            expected = learner.predict(memory, query, way)
            learner.decoder = quick
            answer = learner.predict(memory, query, way)
            for part in ("log_probs", "log_none", "weight"):
                torch.testing.assert_close(getattr(answer, part), getattr(expected, part), atol=2e-5, rtol=1e-5)


def test_a_hopeless_class_is_improbable_but_not_impossible() -> None:
    learner = made_learner(class_means=True)
    learner.decoder.labels.sharpness.data.fill_(1000.0)
    memory = learner.new_memory()
    keys = torch.cat([torch.zeros(1, 1, WIDTH), torch.full((1, K, WIDTH), 9.0)], 1)
    learner.write(memory, keys, torch.tensor([[0, *[1] * K]]), torch.ones(1, K + 1, dtype=torch.bool))
    learner.decoder = for_one_query(learner.decoder)
    with torch.inference_mode():
        log_probs = learner.predict(memory, torch.zeros(1, 1, WIDTH), 2).log_probs
    assert log_probs.isfinite().all() and float(log_probs[0, 0, 1]) < -1000


@pytest.mark.parametrize(("rows", "queries"), [(0, 1), (K - 1, 1), (40, 3)])
def test_what_it_is_not_made_for_goes_to_the_whole_decoder(rows: int, queries: int) -> None:
    learner = made_learner()
    memory, query = filled(learner, rows, 4), torch.randn(1, queries, WIDTH)
    with torch.inference_mode():
        expected = learner.predict(memory, query, 4).log_probs
        learner.decoder = for_one_query(learner.decoder)
        assert torch.equal(learner.predict(memory, query, 4).log_probs, expected)


def test_a_memory_with_more_classes_than_announced_is_refused() -> None:
    learner = made_learner()
    memory = filled(learner, 40, 9)
    learner.decoder = for_one_query(learner.decoder)
    with pytest.raises(ValueError, match="but only 2 classes were announced"):
        learner.predict(memory, torch.randn(1, 1, WIDTH), 2)


@pytest.mark.parametrize("decoder", [{"kind": "lstm"}, {"kind": "kernel"}, {"labels": "fixed", "way": 3}])
def test_other_decoders_stay_as_they_are(decoder: dict[str, object]) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(hidden=16, blocks=2, heads=4, **decoder)
    whole = Learner(LearnerConfig(encoder=IdentityConfig(WIDTH), decoder=config)).decoder
    assert for_one_query(whole) is whole
