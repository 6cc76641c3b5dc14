"""The figures of the paper, each measured on one learner of its form: fixed labels, its decoders, its rule, nothing merged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from apl.config import DecoderConfig, IdentityConfig
from apl.controller import SurpriseController
from apl.episode import Episodes, EpisodeSampler, run_episode
from apl.evaluate import Estimate, OnlineResult, fixed_context, online, watch
from apl.learner import Learner
from experiments.data.embedded import Embedded, characters, embed_once, image_size
from experiments.data.mnist import load_mnist
from experiments.paper.continual import LAST, best_learning_rate, progressive_accuracy, task_streams
from experiments.paper.results import Row

SEED, EPISODES = 11, 20
RATIOS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""σ / ln N: from writing everything to beyond the natural threshold."""


def estimates(**values: Tensor) -> Row:
    """Means over episodes with their intervals, under NAME and NAME_ci95."""
    row: Row = {}
    for name, of_episodes in values.items():
        estimate = Estimate.of(of_episodes)
        row |= {name: estimate.mean, f"{name}_ci95" if name != "accuracy" else "ci95": estimate.ci95}
    return row


def stream(learner: Learner, data: Embedded, way: int, episodes: int, length: int | None) -> OnlineResult:
    batch = 1 if way <= 20 else 16
    return online(
        learner, data.embeddings, data.labels, way=way, episodes=episodes, seed=SEED, length=length, batch=batch
    )


def fixed(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Table 1: 1 and 5 examples of each class in memory."""
    for shot in (1, 5):
        count = 10 * episodes if way <= 20 else episodes
        found = fixed_context(
            learner, data.embeddings, data.labels, way=way, shot=shot, episodes=count, seed=SEED, queries=5
        )
        yield {"shot": shot, "episodes": count, "accuracy": found.mean, "ci95": found.ci95}


def saturation(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Figure 3a: accuracy and memory of an episode, and whether writing stops."""
    result = stream(learner, data, way, episodes, None)
    half, quarter = result.correct.shape[1] // 2, result.correct.shape[1] // 4
    yield {
        "shot": 0,
        "episodes": episodes,
        **estimates(
            accuracy=result.correct[:, half:].mean(1),
            accuracy_third_quarter=result.correct[:, half : half + quarter].mean(1),
            accuracy_last_quarter=result.correct[:, half + quarter :].mean(1),
            stored_per_class=result.stored[:, -1] / way,
            stored_per_class_at_half=result.stored[:, half - 1] / way,
            written_in_last_quarter_per_class=result.written[:, half + quarter :].sum(1) / way,
        ),
        "accuracy_curve": [round(float(a), 4) for a in result.correct.mean(0)],
        "stored_curve": [round(float(s), 3) for s in result.stored.float().mean(0)],
    }


@torch.no_grad()
def posterior(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Figure 3b: three inputs kept out of the stream and asked about at the start, when their class was just shown, and at the
    end of ten (or more) episodes."""
    sampler = EpisodeSampler(data.labels, torch.Generator().manual_seed(SEED))
    start, after, end, right = [], [], [], []
    for _ in range(max(10, episodes // 2)):
        drawn = sampler.online(way, None, 1)
        classes = drawn.label[0].flip(0).unique_consecutive().unique()[:3]
        asked = torch.stack([(drawn.label[0] == c).nonzero()[-1, 0] for c in classes])
        shown = torch.tensor([t for t in range(drawn.label.shape[1]) if t not in asked.tolist()])
        fixed_inputs = data.embeddings[drawn.example[:, asked]]
        memory = learner.new_memory()

        def said() -> Tensor:
            log_probs: Tensor = learner.predict(memory, fixed_inputs, way).log_probs
            return log_probs[0].exp()

        history = [said()]
        kept = Episodes(drawn.example[:, shown], drawn.label[:, shown], way)
        history.extend(said() for _ in run_episode(learner, memory, data.embeddings, kept, 1))
        first = [int((kept.label[0] == c).nonzero()[0, 0]) + 1 for c in classes]
        start.append(history[0].max(1).values.max())
        after.append(
            torch.stack([history[t][i, c] for i, (t, c) in enumerate(zip(first, classes, strict=True))]).mean()
        )
        right.append((history[-1].argmax(1) == classes).float().mean())
        end.append(torch.stack([history[-1][i, c] for i, c in enumerate(classes)]).mean())
    yield {
        "shot": 0,
        "episodes": len(start),
        "inputs": 3,
        **estimates(
            accuracy=torch.stack(right),
            highest_at_start=torch.stack(start),
            truth_once_seen=torch.stack(after),
            truth_at_end=torch.stack(end),
        ),
        "highest_at_start_of_all": float(torch.stack(start).max()),
    }


@torch.no_grad()
def per_class(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Figure 3c: stored items of each class, and the last 100 examples answered from them and from five of each class."""
    drawn = EpisodeSampler(data.labels, torch.Generator().manual_seed(SEED)).online(way, None, episodes)
    result = watch(learner, data.embeddings, drawn)
    of_class = drawn.label[:, None] == torch.arange(way)[None, :, None]
    stored = (result.written[:, None] * of_class).sum(2)
    ours = result.correct[:, -100:].mean(1)
    homogeneous = five_of_each(learner, data, drawn, of_class)
    difference = Estimate.of_difference(ours, homogeneous)
    nats = -result.probability.clamp(min=1e-12).log()
    middle = ((nats > 0.25 * math.log(way)) & (nats < 0.75 * math.log(way))).float().mean(1)
    yield {
        "shot": 0,
        "episodes": episodes,
        **estimates(
            accuracy=ours,
            homogeneous_five_shot=homogeneous,
            stored=stored.sum(1),
            most_of_a_class=stored.max(1).values,
            least_of_a_class=stored.min(1).values,
            spread_over_classes=stored.std(1) / stored.mean(1),
            surprise_between_quarter_and_three_quarters=middle,
        ),
        "above_homogeneous": difference.mean,
        "above_homogeneous_ci95": difference.ci95,
        "stored_of_each_class": sorted((int(n) for n in stored[0]), reverse=True),
    }


def five_of_each(learner: Learner, data: Embedded, drawn: Episodes, of_class: Tensor) -> Tensor:
    """Accuracy on each episode's last 100 examples with the first five of each class in memory."""
    earlier = of_class[:, :, :-100]
    chosen = (earlier & (earlier.cumsum(2) <= 5)).any(1)
    memory = learner.new_memory(len(drawn.label))
    learner.write(memory, data.embeddings[drawn.example[:, :-100]], drawn.label[:, :-100], chosen.numpy())
    said = learner.predict(memory, data.embeddings[drawn.example[:, -100:]], drawn.way)
    right: Tensor = said.label.cpu() == drawn.label[:, -100:]
    return right.float().mean(1)


def sigma(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Appendix: accuracy of the last 100 and memory size against σ; at 200-way after 2,000 examples, as in the paper."""
    everything: Tensor | None = None
    for ratio in RATIOS:
        learner.controller = SurpriseController(sigma_nats=ratio * math.log(way))
        result = stream(learner, data, way, episodes, 10 * way)
        last = result.correct[:, -100:].mean(1)
        everything = last if everything is None else everything
        below = Estimate.of_difference(everything, last)
        yield {
            "shot": 0,
            "episodes": episodes,
            "examples": 10 * way,
            "sigma_ratio": ratio,
            "sigma_nats": ratio * math.log(way),
            **estimates(accuracy=last, stored=result.stored[:, -1].float()),
            "below_everything": below.mean,
            "below_everything_ci95": below.ci95,
        }


def many_way(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Figure 3d: accuracy against items written, to 5,000 examples written or shown, beside five of each class."""
    count = max(5, episodes // 4)
    found = fixed_context(learner, data.embeddings, data.labels, way=way, shot=5, episodes=count, seed=SEED, queries=5)
    result = stream(learner, data, way, count, 5 * way + 5000)
    stored, correct = result.stored.float().mean(0), result.correct
    at = {f"accuracy_at_{n}_written": window(correct, int((stored < n).sum()), 1000) for n in (2000, 4000, 5000)}
    yield {"shot": 0, "episodes": count, "fixed_context": found.mean, "fixed_context_ci95": found.ci95} | estimates(
        accuracy=correct[:, -1000:].mean(1), stored=result.stored[:, -1].float(), **at
    )


def window(correct: Tensor, middle: int, width: int) -> Tensor:
    """Each episode's accuracy on the examples around `middle`; the last `width` if it was never reached."""
    begin = max(0, min(middle, correct.shape[1]) - width // 2)
    begin = min(begin, max(0, correct.shape[1] - width))
    return correct[:, begin : begin + width].mean(1)


def mnist(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Transfer: 10 digits, one of each in memory; then a stream of 2,000 digits."""
    whole = Learner.load(data.model)
    digits = load_mnist("test", image_size(whole.config.encoder))
    embeddings = embed_once(whole, digits.images)
    found = fixed_context(learner, embeddings, digits.labels, way=way, shot=1, episodes=5 * episodes, seed=SEED)
    yield {"shot": 1, "episodes": 5 * episodes, "accuracy": found.mean, "ci95": found.ci95}
    result = online(learner, embeddings, digits.labels, way=way, episodes=episodes, seed=SEED, length=2000)
    yield {"shot": 0, "episodes": episodes, "examples": 2000} | estimates(
        accuracy=result.correct[:, -500:].mean(1), stored_per_class=result.stored[:, -1] / way
    )


def continual(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Appendix: tasks of 10 new classes and 200 examples; accuracy of the last 100, beside a progressive network.

    Labels are fixed, so every task starts from an empty memory. The network's step size is the best on validation characters.
    """
    tasks, runs = 10, max(5, episodes // 4)
    rate = best_learning_rate(characters(False, "validation", data.model), 5)
    ours, theirs = [], []
    for run in range(runs):
        streams = list(task_streams(data, tasks, SEED + run))
        theirs.append(progressive_accuracy(data, streams, rate, run))
        drawn = Episodes(
            torch.cat([s.example for s in streams]),
            torch.cat([s.label - way * task for task, s in enumerate(streams)]),
            way,
        )
        ours.append(watch(learner, data.embeddings, drawn).correct[:, -LAST:].mean(1))
    apl, progressive = torch.stack(ours), torch.stack(theirs)
    above = Estimate.of_difference(apl.mean(1), progressive.mean(1))
    yield {
        "shot": 0,
        "episodes": runs,
        "tasks": tasks,
        **estimates(accuracy=apl.mean(1), progressive_network=progressive.mean(1)),
        "above_progressive": above.mean,
        "above_progressive_ci95": above.ci95,
        "progressive_learning_rate": rate,
    }


def decoders(learner: Learner, data: Embedded, way: int, episodes: int) -> Iterator[Row]:
    """Appendix: a decoder at the end of an episode, beside the same one untrained and the nearest neighbour."""
    last, length = (100, None) if way <= 20 else (1000, 5 * way)
    count = episodes if way <= 20 else max(5, episodes // 4)

    def at_the_end(one: Learner) -> OnlineResult:
        return stream(one, data, way, count, length)

    result = at_the_end(learner)
    yield {
        "shot": 0,
        "episodes": count,
        **estimates(
            accuracy=result.correct[:, -last:].mean(1),
            stored=result.stored[:, -1].float(),
            untrained=at_the_end(beside(learner, learner.config.decoder)).correct[:, -last:].mean(1),
            nearest=at_the_end(beside(learner, DecoderConfig(kind="nearest"))).correct[:, -last:].mean(1),
        ),
    }


def beside(learner: Learner, decoder: DecoderConfig) -> Learner:
    """The same memory and rule with another decoder, as it is before training."""
    torch.manual_seed(SEED)
    config = replace(learner.config, encoder=IdentityConfig(learner.encoder.width), decoder=decoder)
    return Learner(config, learner.controller).eval()
