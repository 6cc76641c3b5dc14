"""The number-analogy task: its arithmetic, its solver, a memory with two keys, and learning to deduce."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from apl.checkpoint import read_json
from apl.config import ConvConfig, DecoderConfig, Group, IdentityConfig, LearnerConfig, PairConfig
from apl.controller import WriteAll
from apl.data.mnist import mnist_part
from apl.encoder import PairEncoder
from apl.episode import run_episode
from apl.evaluate import watch
from apl.learner import Learner
from apl.training.run import RunOptions
from experiments.data.analogy import (
    DIGITS,
    Analogies,
    AnalogySampler,
    AnalogyTask,
    Examples,
    digit_examples,
    symbol_examples,
)
from experiments.data.analogy_solver import Differences, solve
from experiments.paper import analogy_plain
from experiments.paper.analogy_plain import Cell, cells, over_seeds, preset_of
from experiments.training.analogy import AnalogyConfig, embedded_sampler, train_analogy

TINY = ConvConfig(stem_channels=4, stem_stride=4, groups=(Group(4, 1),))
PAIR = PairConfig(TINY, IdentityConfig(10, normalise=True))
DEDUCTION = DecoderConfig(kind="deduction", labels="fixed", way=20, hidden=32, blocks=4, heads=4, content=False)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy_digits(per_class: int = 20, width: int = 64, noise: float = 0.2) -> Examples:
    """Embeddings as a good encoder makes them: ten directions and some noise."""
    labels = torch.arange(DIGITS).repeat_interleave(per_class)
    directions = torch.randn(DIGITS, width, generator=generator(9))
    inputs = directions[labels] + noise * torch.randn(len(labels), width, generator=generator(8))
    return Examples(F.layer_norm(inputs, (width,)), labels)


def one_hot_symbols(count: int = 10) -> Examples:
    return Examples(F.layer_norm(torch.eye(count), (count,)), torch.arange(count))


def sampler_of(task: AnalogyTask, seed: int = 0) -> AnalogySampler:
    return AnalogySampler(task, noisy_digits(), one_hot_symbols(task.symbol_count), generator(seed))


def learner_of(decoder: DecoderConfig = DEDUCTION, **config: object) -> Learner:
    torch.manual_seed(0)
    return Learner(LearnerConfig(encoder=PAIR, decoder=decoder, **{"k": 4, **config})).eval()


# --- the task -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["fixed", "shuffled"])
@pytest.mark.parametrize(("lowest", "highest"), [(-5, 5), (-10, 10), (0, 0)])
def test_every_answer_is_the_sum_of_its_digit_and_symbol(level: str, lowest: int, highest: int) -> None:
    task = AnalogyTask(level=level, lowest=lowest, highest=highest)
    drawn = sampler_of(task).draw(6)
    total = drawn.digit_value.gather(1, drawn.digit) + drawn.symbol_value.gather(1, drawn.symbol)
    assert torch.equal(drawn.episodes.label, total - lowest)
    assert task.way == DIGITS + highest - lowest
    assert int(drawn.episodes.label.min()) >= 0 and int(drawn.episodes.label.max()) < task.way
    assert int(drawn.symbol_value.min()) >= lowest and int(drawn.symbol_value.max()) <= highest


def test_the_papers_task_has_twenty_answers_and_a_hundred_combinations() -> None:
    assert (AnalogyTask().way, AnalogyTask().combinations) == (20, 100)


def test_no_combination_is_shown_twice_and_a_whole_episode_shows_all() -> None:
    drawn = sampler_of(AnalogyTask()).draw(4)
    for digits, symbols in zip(drawn.digit.tolist(), drawn.symbol.tolist(), strict=True):
        assert sorted(zip(digits, symbols, strict=True)) == list(itertools.product(range(10), range(10)))


def test_no_picture_of_a_digit_is_shown_twice_in_an_episode() -> None:
    task = AnalogyTask()
    numbered = Examples(torch.arange(200.0)[:, None], torch.arange(10).repeat(20))
    drawn = AnalogySampler(task, numbered, one_hot_symbols(), generator()).draw(3)
    shown = drawn.inputs[:, 0].view(3, 100)
    assert all(len(episode.unique()) == 100 for episode in shown)
    assert torch.equal(shown.long() % 10, drawn.digit)


def test_fixed_digits_keep_their_values_and_shuffled_ones_are_a_permutation() -> None:
    fixed = sampler_of(AnalogyTask(level="fixed")).draw(3)
    assert torch.equal(fixed.digit_value, torch.arange(10).expand(3, 10))
    shuffled = sampler_of(AnalogyTask()).draw(3)
    assert torch.equal(shuffled.digit_value.sort(1).values, torch.arange(10).expand(3, 10))
    assert not torch.equal(shuffled.digit_value[0], shuffled.digit_value[1])


def test_each_symbol_first_begins_with_one_of_each() -> None:
    drawn = sampler_of(AnalogyTask(level="fixed")).draw(5, each_symbol_first=True)
    assert torch.equal(drawn.symbol[:, :10].sort(1).values, torch.arange(10).expand(5, 10))
    assert drawn.symbol.shape == (5, 100) and drawn.episodes.label.shape == (5, 100)


def test_the_same_seed_draws_the_same_episodes() -> None:
    first, again, other = (sampler_of(AnalogyTask(), seed).draw(2, 30) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(first.episodes.label, again.episodes.label)
    assert not torch.equal(first.episodes.label, other.episodes.label)


def test_drawn_symbols_of_training_and_test_differ() -> None:
    task = AnalogyTask(symbols="glyphs")
    train, test = symbol_examples(task, "validation"), symbol_examples(task, "test")
    assert train.inputs.shape[1] == test.inputs.shape[1] == 784
    shared = {row.numpy().tobytes() for row in train.inputs} & {row.numpy().tobytes() for row in test.inputs}
    assert not shared


@pytest.mark.parametrize("bad", [{"symbol_count": 1}, {"lowest": 3, "highest": 2}])
def test_impossible_tasks_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least two symbols"):
        AnalogyTask(**bad)


@pytest.mark.data
def test_encoder_training_validation_and_test_digits_are_disjoint(real_data: Path) -> None:
    parts = {part: mnist_part(part) for part in ("encoder", "train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [45_000, 10_000, 5_000, 10_000]
    pictures = {name: {image.numpy().tobytes() for image in part.images} for name, part in parts.items()}
    for a, b in itertools.combinations(pictures, 2):
        assert not pictures[a] & pictures[b], f"{a} and {b} share a picture"
    assert digit_examples("test").inputs.shape == (10_000, 784)


# --- the solver -----------------------------------------------------------------------------------


def brute_force(task: AnalogyTask, drawn: Analogies, episode: int, asked: int) -> int:
    """The answer if the equations before `asked` leave only one, by rational linear algebra."""
    width = DIGITS + task.symbol_count
    rows, sums = [], []
    if task.level == "fixed":
        for digit in range(DIGITS):
            rows.append(F.one_hot(torch.tensor(digit), width).double())
            sums.append(float(digit))
    for t in range(asked):
        rows.append(equation(drawn, episode, t, width))
        sums.append(float(drawn.episodes.label[episode, t]))
    wanted = equation(drawn, episode, asked, width)
    if not rows:
        return -1
    matrix = torch.stack(rows)
    weights = torch.linalg.lstsq(matrix.T, wanted[:, None], driver="gelsd").solution
    if (matrix.T @ weights - wanted[:, None]).abs().max() > 1e-6:
        return -1
    return round(float(weights.squeeze(1) @ torch.tensor(sums).double()))


def equation(drawn: Analogies, episode: int, t: int, width: int) -> torch.Tensor:
    row = torch.zeros(width, dtype=torch.float64)
    row[drawn.digit[episode, t]] = 1
    row[DIGITS + drawn.symbol[episode, t]] = 1
    return row


@pytest.mark.parametrize("level", ["fixed", "shuffled"])
def test_the_solver_knows_exactly_what_linear_algebra_determines(level: str) -> None:
    task = AnalogyTask(level=level, symbol_count=5)
    drawn = sampler_of(task).draw(3)
    solved = solve(task, drawn)
    for episode, asked in itertools.product(range(3), range(50)):
        assert int(solved[episode, asked]) == brute_force(task, drawn, episode, asked)


def test_what_the_solver_answers_is_right_and_in_the_end_it_answers_all() -> None:
    task = AnalogyTask()
    drawn = sampler_of(task).draw(20)
    solved = solve(task, drawn)
    assert torch.equal(solved[solved >= 0], drawn.episodes.label[solved >= 0])
    assert (solved[:, 0] == -1).all() and (solved[:, 95:] >= 0).all()


def test_a_solver_that_remembers_nothing_knows_nothing() -> None:
    task = AnalogyTask()
    drawn = sampler_of(task).draw(2)
    assert (solve(task, drawn, torch.zeros(2, 100, dtype=torch.bool)) == -1).all()


def test_differences_add_up_along_a_chain() -> None:
    known = Differences(4)
    known.learn(0, 1, 3)
    known.learn(2, 1, -2)
    assert known.difference(0, 2) == 5 and known.difference(2, 0) == -5
    assert known.difference(0, 3) is None


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


def test_the_second_hop_recalls_the_link_between_two_facts() -> None:
    """a + j and i + b are recalled by a and b; i + j shares nothing with the question."""
    twin, _drawn = twin_and_episode(k=1, hops=1)
    digits, symbols = torch.tensor([0, 1, 1, 5, 6, 7]), torch.tensor([0, 1, 0, 5, 6, 7])
    pairs = torch.cat([noisy_digits(1).inputs[digits], one_hot_symbols().inputs[symbols]], -1)[None]
    asked = torch.cat([noisy_digits(1).inputs[:1], one_hot_symbols().inputs[1:2]], -1)[None]
    memory = twin.new_memory(1)
    twin.write(memory, pairs, torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 6, dtype=torch.bool))
    assert sorted(twin.recall(memory, asked).row.flatten().tolist()) == [0, 1]
    twin.config = replace(twin.config, k=2, hops=1)
    twin.config = replace(twin.config, hops=2)
    found = twin.recall(memory, asked)
    assert {0, 1, 2} <= set(found.row.flatten().tolist())
    assert len(set(found.row.flatten().tolist())) == found.k, "each row once"
    assert (np.diff(found.distance) >= 0).all(), "nearest first"


@pytest.mark.parametrize("kind", ["deduction", "relational", "working_memory", "lstm"])
def test_every_decoder_answers_from_two_keys_and_from_an_empty_memory(kind: str) -> None:
    decoder = replace(DEDUCTION, kind=kind, key_distances=True)
    twin = learner_of(decoder, k=3).on_embeddings()
    drawn = sampler_width(twin).draw(2, 6)
    result = watch(twin, drawn.inputs, drawn.episodes)
    assert result.correct.shape == (2, 6) and bool((result.probability > 0).all())


def test_the_order_and_number_of_empty_places_do_not_change_a_deduction() -> None:
    twin, drawn = twin_and_episode(k=4, hops=1)
    memory = twin.new_memory(1)
    pairs = drawn.inputs[drawn.episodes.example]
    twin.write(memory, pairs[:, :5], drawn.episodes.label[:, :5], torch.ones(1, 5, dtype=torch.bool))
    few = twin.predict(memory, pairs[:, 60:64], 20).log_probs
    twin.config = replace(twin.config, hops=2)
    more = twin.predict(memory, pairs[:, 60:64], 20)
    twin.config = replace(twin.config, k=5, hops=2)
    torch.testing.assert_close(twin.predict(memory, pairs[:, 60:64], 20).log_probs, more.log_probs)
    assert few.shape == more.log_probs.shape


def sampler_width(learner: Learner) -> AnalogySampler:
    """Made-up digits as wide as this learner's."""
    digits = noisy_digits(width=learner.key_widths["digit"])
    return AnalogySampler(AnalogyTask(), digits, one_hot_symbols(), generator())


def twin_and_episode(**config: object) -> tuple[Learner, Analogies]:
    twin = learner_of(**config).on_embeddings()
    return twin, sampler_of(AnalogyTask()).draw(1)


# --- learning to deduce ---------------------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and validation on made-up embeddings: no file is needed."""

    def sampler(learner: Learner, task: AnalogyTask, part: str, chance: torch.Generator) -> AnalogySampler:
        width = learner.key_widths["digit"]
        return AnalogySampler(task, noisy_digits(width=width), one_hot_symbols(task.symbol_count), chance)

    monkeypatch.setattr("experiments.training.analogy.embedded_sampler", sampler)
    monkeypatch.setattr("experiments.training.analogy.validate", lambda learner, task: {})


SHORT = AnalogyConfig(
    LearnerConfig(encoder=PAIR, decoder=DEDUCTION, k=8, hops=2, sigma_ratio=0.1),
    parallel=4,
    batch=5,
    steps=8,
    longest_episode=20,
    warmup_steps=5,
)


def test_training_makes_answers_less_surprising(made_up: None, tmp_path: Path) -> None:
    config = replace(SHORT, parallel=8, batch=10, longest_episode=30, steps=45, learning_rate=5e-3)
    learner = train_analogy(config, RunOptions(tmp_path))
    twin, untrained = learner.on_embeddings(), Learner(config.learner).eval().on_embeddings()
    drawn = sampler_width(learner).draw(16, 30)
    surprise = [
        torch.cat([s.observation.surprise_nats for s in watched(who, drawn)], 1)[:, 10:].mean()
        for who in (twin, untrained)
    ]
    assert surprise[0] < surprise[1] - 0.2
    assert (tmp_path / "model" / "model.json").exists()


@torch.no_grad()
def watched(twin: Learner, drawn: Analogies) -> list:
    twin.controller = WriteAll()
    return list(run_episode(twin, twin.new_memory(16), drawn.inputs, drawn.episodes, 10))


def test_a_saved_learner_answers_as_before(made_up: None, tmp_path: Path) -> None:
    learner = train_analogy(SHORT, RunOptions(tmp_path))
    learner.save(tmp_path / "exact", {}, half=False)
    again = Learner.load(tmp_path / "exact")
    drawn = sampler_width(learner).draw(2, 20)
    results = [watch(who.on_embeddings(), drawn.inputs, drawn.episodes) for who in (learner, again)]
    torch.testing.assert_close(results[0].probability, results[1].probability)


def test_the_encoder_of_digits_may_be_taken_from_a_learner(made_up: None, tmp_path: Path) -> None:
    first = Learner(SHORT.learner)
    first.save(tmp_path / "first", {"encoders": {"digits": {"seconds": 7}}}, half=False)
    learner = train_analogy(replace(SHORT, seed=5, digits_from=str(tmp_path / "first")), RunOptions(tmp_path / "run"))
    for a, b in zip(learner.encoder.digit.parameters(), first.encoder.digit.parameters(), strict=True):
        assert torch.equal(a, b)
    provenance = read_json(tmp_path / "run" / "model" / "model.json")["provenance"]
    assert provenance["encoders"] == {"digits": {"seconds": 7}}


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(made_up: None, tmp_path: Path) -> None:
    config = replace(SHORT, decay_share=1e-9)  # the schedule must not depend on where the first part ends
    train_analogy(replace(config, steps=4), RunOptions(tmp_path / "parts"))
    resumed = train_analogy(config, RunOptions(tmp_path / "parts", resume=True))
    straight = train_analogy(config, RunOptions(tmp_path / "straight"))
    for a, b in zip(resumed.decoder.parameters(), straight.decoder.parameters(), strict=True):
        assert torch.equal(a, b)


PAPERS = replace(DEDUCTION, kind="relational", hidden=16, blocks=1, key_distances=True)


def test_other_encoders_than_pairs_are_refused() -> None:
    learner = Learner(LearnerConfig(encoder=IdentityConfig(4), decoder=DEDUCTION))
    with pytest.raises(ValueError, match="encoder of pairs"):
        embedded_sampler(learner, AnalogyTask(), "train", generator())


# --- the paper's form -----------------------------------------------------------------------------


def test_the_plain_comparison_has_every_cell_and_no_help() -> None:
    found = list(cells(2))
    assert len(found) == len(set(found)) == len({cell.directory for cell in found}) == 2 * (12 + 3)
    for config in (preset_of(cell.preset) for cell in found):
        decoder = config.learner.decoder
        assert not (config.decoder_from or config.sigma_ratios)
        assert not (decoder.rows_see_query or decoder.key_distances or decoder.compare)
    assert len({preset_of(cell.preset).learner.sigma_ratio for cell in found}) == 1
    assert len({preset_of(cell.preset).steps for cell in found if cell.level == "shuffled"}) == 1


def test_plain_cells_are_trained_once_measured_once_and_kept(
    made_up: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    some = [Cell("relational", 2), Cell("relational", 2, seed=1), Cell("relational", 2, "fixed")]
    config = replace(SHORT, learner=replace(SHORT.learner, decoder=PAPERS, k=2, hops=1))

    monkeypatch.setattr(analogy_plain, "cells", lambda seeds: iter(some))
    monkeypatch.setattr(analogy_plain, "preset_of", lambda name: config)
    monkeypatch.setattr(
        analogy_plain,
        "embedded_sampler",
        lambda learner, task, part, chance: AnalogySampler(
            task, noisy_digits(width=learner.key_widths["digit"]), one_hot_symbols(), chance
        ),
    )
    analogy_plain.train(some[0], steps=4)
    assert some[0].trained and not some[1].trained
    analogy_plain.Command(train=True, seeds=2, quick=True).run()
    rows = analogy_plain.load_rows("analogy-plain", quick=True)
    assert [(r["checkpoint"], r["rule"]) for r in rows] == [
        ("analogy-plain-relational-k2", "surprise"),
        ("analogy-plain-relational-k2", "everything"),
        ("analogy-plain-relational-k2-seed1", "surprise"),
        ("analogy-plain-relational-k2-seed1", "everything"),
        ("analogy-plain-fixed-relational", "one of each symbol"),
    ]
    assert rows[1]["stored"] == 100 and len(rows[0]["curve"]) == len(analogy_plain.SEEN)
    monkeypatch.setattr(analogy_plain, "measured", lambda cell, episodes: pytest.fail("measured twice"))
    analogy_plain.reproduce(quick=True)
    together = over_seeds(rows)
    assert [r["trained_seeds"] for r in together] == [2, 2, 1]
    assert together[0]["accuracy"] == pytest.approx((rows[0]["accuracy"] + rows[2]["accuracy"]) / 2)
