"""The number-analogy task: its arithmetic, a memory with two keys, training and measuring."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from apl.config import ConvConfig, DecoderConfig, Group, IdentityConfig, LearnerConfig, PairConfig
from apl.encoder import PairEncoder, build_encoder
from apl.evaluate import watch
from apl.learner import Learner
from apl.training.run import RunOptions
from apl.weights_file import save_model
from experiments.data.analogy import (
    COMBINATIONS,
    DIGITS,
    HIGHEST,
    LOWEST,
    WAY,
    Analogies,
    AnalogySampler,
    Examples,
    Level,
    digit_examples,
)
from experiments.data.mnist import mnist_part
from experiments.paper import analogy
from experiments.paper.analogy import Model, models, over_seeds, preset_of
from experiments.paper.results import load_rows
from experiments.training.analogy import AnalogyConfig, train_analogy

TINY = ConvConfig(stem_channels=4, stem_stride=4, groups=(Group(4, 1),))
PAIR = PairConfig(TINY, IdentityConfig(10, normalise=True))
RELATIONAL = DecoderConfig(labels="fixed", way=WAY, hidden=16, blocks=1, heads=4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampler_of(level: Level = "shuffled", seed: int = 0, width: int = 64) -> AnalogySampler:
    """Made-up embeddings as a good encoder makes them: ten directions and some noise."""
    labels = torch.arange(DIGITS).repeat_interleave(20)
    directions = torch.randn(DIGITS, width, generator=generator(9))
    inputs = directions[labels] + 0.2 * torch.randn(len(labels), width, generator=generator(8))
    symbols = F.layer_norm(torch.eye(10), (10,))
    return AnalogySampler(level, Examples(F.layer_norm(inputs, (width,)), labels), symbols, generator(seed))


# --- the task -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["fixed", "shuffled"])
def test_every_answer_is_the_sum_of_its_digit_and_symbol(level: Level) -> None:
    drawn = sampler_of(level).draw(6)
    total = drawn.digit_value.gather(1, drawn.digit) + drawn.symbol_value.gather(1, drawn.symbol)
    assert torch.equal(drawn.episodes.label, total - LOWEST)
    assert int(drawn.episodes.label.min()) >= 0 and int(drawn.episodes.label.max()) < drawn.episodes.way == WAY == 20
    assert int(drawn.symbol_value.min()) >= LOWEST and int(drawn.symbol_value.max()) <= HIGHEST


def test_no_combination_is_shown_twice_and_a_whole_episode_shows_all() -> None:
    drawn = sampler_of().draw(4)
    for digits, symbols in zip(drawn.digit.tolist(), drawn.symbol.tolist(), strict=True):
        assert sorted(zip(digits, symbols, strict=True)) == list(itertools.product(range(10), range(10)))


def test_no_picture_of_a_digit_is_shown_twice_in_an_episode() -> None:
    numbered = Examples(torch.arange(200.0)[:, None], torch.arange(10).repeat(20))
    drawn = AnalogySampler("shuffled", numbered, torch.eye(10), generator()).draw(3)
    shown = drawn.inputs[:, 0].view(3, COMBINATIONS)
    assert all(len(episode.unique()) == COMBINATIONS for episode in shown)
    assert torch.equal(shown.long() % 10, drawn.digit)


def test_fixed_digits_keep_their_values_and_shuffled_ones_are_a_permutation() -> None:
    fixed = sampler_of("fixed").draw(3)
    assert torch.equal(fixed.digit_value, torch.arange(10).expand(3, 10))
    shuffled = sampler_of().draw(3)
    assert torch.equal(shuffled.digit_value.sort(1).values, torch.arange(10).expand(3, 10))
    assert not torch.equal(shuffled.digit_value[0], shuffled.digit_value[1])


def test_each_symbol_first_begins_with_one_of_each() -> None:
    drawn = sampler_of("fixed").draw(5, each_symbol_first=True)
    assert torch.equal(drawn.symbol[:, :10].sort(1).values, torch.arange(10).expand(5, 10))
    assert drawn.symbol.shape == (5, 100) and drawn.episodes.label.shape == (5, 100)


@pytest.mark.data
def test_encoder_training_validation_and_test_digits_are_disjoint(real_data: Path) -> None:
    parts = {part: mnist_part(part) for part in ("encoder", "train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [45_000, 10_000, 5_000, 10_000]
    pictures = {name: {image.numpy().tobytes() for image in part.images} for name, part in parts.items()}
    for a, b in itertools.combinations(pictures, 2):
        assert not pictures[a] & pictures[b], f"{a} and {b} share a picture"
    assert digit_examples("test").inputs.shape == (10_000, 784)


# --- two keys -------------------------------------------------------------------------------------


def test_a_pair_is_embedded_as_its_parts_are() -> None:
    encoder = PairEncoder(PAIR).eval()
    images, symbols = torch.rand(5, 784), torch.eye(10)[:5]
    whole = encoder(torch.cat([images, symbols], 1))
    assert encoder.key_widths == {"digit": encoder.digit.width, "symbol": 10}
    torch.testing.assert_close(whole[:, : encoder.digit.width], encoder.digit(images.view(5, 1, 28, 28)))
    torch.testing.assert_close(whole[:, encoder.digit.width :], encoder.symbol(symbols))
    with pytest.raises(ValueError, match="expected pairs"):
        encoder(images)


def test_neighbours_are_recalled_by_digit_and_by_symbol() -> None:
    twin, drawn = twin_and_episode()
    memory = twin.new_memory(1)
    pairs = drawn.inputs[drawn.episodes.example]
    twin.write(memory, pairs[:, :60], drawn.episodes.label[:, :60], torch.ones(1, 60, dtype=torch.bool))
    found = twin.recall(memory, pairs[:, 60:])
    assert found.k == 8 and set(memory.keys) == {"digit", "symbol"}
    for q in range(40):
        digit, symbol = drawn.digit[0, 60 + q], drawn.symbol[0, 60 + q]
        same_digit, same_symbol = (drawn.digit[0, :60] == digit).sum(), (drawn.symbol[0, :60] == symbol).sum()
        by_digit, by_symbol = found.row[0, q, :4], found.row[0, q, 4:]
        assert (drawn.digit[0][by_digit] == digit).sum() == min(4, same_digit)
        assert (drawn.symbol[0][by_symbol] == symbol).sum() == min(4, same_symbol)


@pytest.mark.parametrize("kind", ["relational", "working_memory", "lstm"])
def test_every_decoder_answers_from_two_keys_and_from_an_empty_memory(kind: str) -> None:
    twin, _ = twin_and_episode(replace(RELATIONAL, kind=kind), k=3)
    drawn = sampler_of(width=twin.key_widths["digit"]).draw(2, 6)
    result = watch(twin, drawn.inputs, drawn.episodes)
    assert result.correct.shape == (2, 6) and bool((result.probability > 0).all())


def twin_and_episode(decoder: DecoderConfig = RELATIONAL, k: int = 4) -> tuple[Learner, Analogies]:
    torch.manual_seed(0)
    twin = Learner(LearnerConfig(PAIR, decoder, k=k)).eval().on_embeddings()
    return twin, sampler_of(width=twin.key_widths["digit"]).draw(1)


# --- training and measuring -----------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AnalogyConfig:
    """A short training on made-up embeddings: no file is needed."""

    def sampler(learner: Learner, level: Level, part: str, chance: torch.Generator) -> AnalogySampler:
        made = sampler_of(level, width=learner.key_widths["digit"])
        made.generator = chance
        return made

    monkeypatch.setattr("experiments.training.analogy.embedded_sampler", sampler)
    monkeypatch.setattr("experiments.paper.analogy.embedded_sampler", sampler)
    monkeypatch.setattr("experiments.training.analogy.validate", lambda learner, level: {})
    save_model(tmp_path / "digits", build_encoder(TINY), TINY, {"seconds": 7})
    learner = LearnerConfig(PAIR, RELATIONAL, k=2, sigma_ratio=0.1)
    digits = str(tmp_path / "digits")
    return AnalogyConfig(learner, "shuffled", digits, parallel=4, batch=5, steps=8, longest_episode=20)


def test_training_makes_answers_less_surprising(short: AnalogyConfig, tmp_path: Path) -> None:
    config = replace(short, level="fixed", longest_episode=30, steps=60, learning_rate=1e-2)
    learner = train_analogy(config, RunOptions(tmp_path / "run"))
    drawn = sampler_of("fixed", seed=3, width=learner.key_widths["digit"]).draw(8, 30)
    surprise = [
        float(-watch(who.eval().on_embeddings(), drawn.inputs, drawn.episodes).probability[:, 10:].log().mean())
        for who in (learner, Learner(config.learner))
    ]
    assert surprise[0] < surprise[1] - 0.2
    first = Learner.load(tmp_path / "run" / "model")
    again = [watch(who.on_embeddings(), drawn.inputs, drawn.episodes).probability for who in (learner, first)]
    torch.testing.assert_close(*again, atol=0.02, rtol=0.02)


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(short: AnalogyConfig, tmp_path: Path) -> None:
    config = replace(short, decay_share=1e-9)  # the schedule must not depend on where the first part ends
    train_analogy(replace(config, steps=4), RunOptions(tmp_path / "parts"))
    resumed = train_analogy(config, RunOptions(tmp_path / "parts", resume=True))
    straight = train_analogy(config, RunOptions(tmp_path / "straight"))
    for a, b in zip(resumed.decoder.parameters(), straight.decoder.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_comparison_has_every_cell_and_no_help() -> None:
    found = list(models(2))
    assert len(found) == len(set(found)) == len({cell.directory for cell in found}) == 2 * (12 + 3)
    for config in (preset_of(cell.preset) for cell in found):
        assert not config.learner.decoder.compare
    assert len({preset_of(cell.preset).learner.sigma_ratio for cell in found}) == 1
    assert len({preset_of(cell.preset).steps for cell in found if cell.level == "shuffled"}) == 1


def test_cells_are_trained_once_measured_once_and_kept(
    short: AnalogyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    some = [Model("relational", 2), Model("relational", 2, "fixed")]
    monkeypatch.setattr(analogy, "models", lambda seeds: iter(some))
    monkeypatch.setattr(analogy, "preset_of", lambda name: short)
    analogy.train(some[0], steps=4)
    assert some[0].trained and not some[1].trained
    analogy.Command(train=True, seeds=1, quick=True).run()
    rows = load_rows("analogy", quick=True)
    assert [(r["checkpoint"], r["rule"]) for r in rows] == [
        ("analogy-relational-k2", "surprise"),
        ("analogy-relational-k2", "everything"),
        ("analogy-fixed-relational", "one of each symbol"),
    ]
    assert rows[1]["stored"] == 100 and len(rows[0]["curve"]) == len(analogy.SEEN)
    monkeypatch.setattr(analogy, "measured", lambda cell, episodes: pytest.fail("measured twice"))
    analogy.reproduce(quick=True)
    again = rows[0] | {"accuracy": rows[0]["accuracy"] + 0.1, "trained_seed": 1}
    together = over_seeds([*rows, again])
    assert [r["trained_seeds"] for r in together] == [2, 1, 1]
    assert together[0]["accuracy"] == pytest.approx(rows[0]["accuracy"] + 0.05)
