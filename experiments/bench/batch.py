"""Whole batches, known against new at an asked rate, and labels that change their meaning.

`fit`: a whole training set is handed over, sorted by class or shuffled, with default settings or with everything kept (sigma = 0),
and compared with logistic regression at C = 10 on the same unit vectors. Intents: the published training sets of 5 and 10 per
class and the whole test set. Photographs: ImageNet-mini `val`, classes 500 to 999 (the rule was chosen on the others), single
classes and groups of ten neighbouring ones. `false alarms`: half of the classes are learnt; the share of known examples that is
called new at an asked rate, and how well P(new) ranks new before known (AUROC). `drift`: predict, then learn, on river's drifting streams and on streams whose labels are exchanged half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from tyro.conf import arg

from apl import OnlineClassifier
from apl.evaluate import Estimate
from experiments.bench.measurement import threads
from experiments.data.embedded import intents, photographs
from experiments.paper.results import Row, machine, measure_all

ASKED_PER_CLASS, MOST_ASKED = 40, 1500
RATES = (0.05, 0.1)
FIRST_UNSEEN = 500
"""The first class of the photographs that no number was chosen on."""


@dataclass(frozen=True)
class Split:
    """What is learnt and what is asked."""

    x: np.ndarray
    y: np.ndarray
    asked: np.ndarray
    truth: np.ndarray

    def sorted(self) -> Split:
        order = np.argsort(self.y, kind="stable")
        return Split(self.x[order], self.y[order], self.asked, self.truth)


def published(name: Any, shot: int) -> Iterator[Split]:
    parts = intents(name)
    learnt, asked = parts[f"train_{shot}"], parts["test"]
    order = np.random.default_rng(0).permutation(len(learnt.labels))
    x, y = learnt.embeddings.numpy()[order], learnt.labels.numpy()[order]
    yield Split(x, y, asked.embeddings.numpy(), asked.labels.numpy())


def photos(way: int, shot: int, draws: int, group: int) -> Iterator[Split]:
    """`group` neighbouring classes share a label."""
    data = photographs()
    x, y = data.embeddings.numpy(), data.labels.numpy() // group
    labels = np.arange(FIRST_UNSEEN // group, y.max() + 1)
    for draw in range(draws):
        chance = np.random.default_rng([draw, way, shot, group])
        learnt, asked = [], []
        for label in chance.permutation(labels)[:way]:
            mine = chance.permutation((y == label).nonzero()[0])
            learnt.append(mine[:shot])
            asked.append(mine[shot : shot + ASKED_PER_CLASS])
        shown, question = chance.permutation(np.concatenate(learnt)), np.concatenate(asked)
        yield Split(x[shown], y[shown], x[question], y[question])


def ours(split: Split, **parameters: Any) -> tuple[np.ndarray, int]:
    with OnlineClassifier(keep_images=False, **parameters).fit(split.x, split.y) as classifier:
        return classifier.predict(split.asked), len(classifier)


def logistic_regression(split: Split) -> tuple[np.ndarray, int]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=10.0, max_iter=300, tol=1e-3).fit(split.x, split.y)
    return model.predict(split.asked), len(split.x)


METHODS: dict[str, Callable[[Split], tuple[np.ndarray, int]]] = {
    "logistic regression, C = 10": logistic_regression,
    "fit": ours,
    "fit, sorted by class": lambda split: ours(split.sorted()),
    "fit, everything kept": lambda split: ours(split, sigma=0.0),
    "fit, sorted, everything kept": lambda split: ours(split.sorted(), sigma=0.0),
}


def fit_rows(name: str, shot: int, splits: Iterator[Split]) -> Iterator[Row]:
    drawn = list(splits)
    rival: list[float] = []
    for method, answer in METHODS.items():
        answers = [answer(split) for split in drawn]
        accuracy = [float((a == s.truth).mean()) for (a, _), s in zip(answers, drawn, strict=True)]
        rival = rival or accuracy
        mean, difference = Estimate.of(accuracy), Estimate.of_difference(accuracy, rival)
        row = {"table": "fit", "set": name, "shot": shot, "draws": len(drawn), "method": method}
        kept = sum(rows for _, rows in answers) / sum(len(split.x) for split in drawn)
        row |= {"accuracy": mean.mean, "ci95": mean.ci95, "kept": kept}
        yield {**row, "difference": difference.mean, "difference_ci95": difference.ci95}


def halves(
    x: np.ndarray, y: np.ndarray, shot: int, draws: int, asked: tuple[np.ndarray, np.ndarray] | None = None
) -> Iterator[Split]:
    """Half of the classes are learnt; the truth is True for what belongs to them."""
    for draw in range(draws):
        chance = np.random.default_rng([draw, shot])
        labels = chance.permutation(np.unique(y))
        known = labels[: len(labels) // 2]
        mine = [chance.permutation((y == label).nonzero()[0]) for label in known]
        shown = chance.permutation(np.concatenate([examples[:shot] for examples in mine]))
        if asked is None:
            rest = np.concatenate([*(e[shot:] for e in mine), (~np.isin(y, known)).nonzero()[0]])
            questions, truth = x[rest], y[rest]
        else:
            questions, truth = asked
        some = chance.permutation(len(truth))[:MOST_ASKED]
        yield Split(x[shown], y[shown], questions[some], np.isin(truth[some], known))


def false_alarm_rows(name: str, shot: int, splits: Iterator[Split]) -> Iterator[Row]:
    from sklearn.metrics import roc_auc_score

    found: dict[float, list[tuple[float, float]]] = {rate: [] for rate in RATES}
    ranked, draws = [], 0
    for split in splits:
        draws += 1
        with OnlineClassifier(keep_images=False).fit(split.x, split.y) as classifier:
            ranked.append(float(roc_auc_score(~split.truth, classifier.predict_new(split.asked))))
            for rate, shares in found.items():
                called = np.array([label is None for label in classifier.predict(split.asked, false_alarms=rate)])
                shares.append((float(called[split.truth].mean()), float(called[~split.truth].mean())))
    auroc = Estimate.of(ranked)
    for rate, shares in found.items():
        known, new = (Estimate.of(list(part)) for part in zip(*shares, strict=True))
        row = {"table": "false alarms", "set": name, "shot": shot, "draws": draws, "asked": rate}
        row |= {"known_called_new": known.mean, "ci95": known.ci95, "new_called_new": new.mean}
        yield {**row, "new_ci95": new.ci95, "auroc": auroc.mean, "auroc_ci95": auroc.ci95}


Stream = tuple[np.ndarray, np.ndarray]


def streams(seed: int, length: int) -> Iterator[tuple[str, Stream]]:
    from river.datasets import synth
    from sklearn.datasets import load_digits

    half = length // 2
    drifting = {
        "SEA": synth.ConceptDriftStream(
            synth.SEA(variant=0, seed=seed, noise=0.1),
            synth.SEA(variant=3, seed=seed + 1, noise=0.1),
            position=half,
            width=50,
            seed=seed,
        ),
        "Agrawal": synth.ConceptDriftStream(
            synth.Agrawal(classification_function=0, seed=seed),
            synth.Agrawal(classification_function=3, seed=seed + 1),
            position=half,
            width=50,
            seed=seed,
        ),
        "RBF": synth.RandomRBFDrift(
            seed_model=seed,
            seed_sample=seed,
            n_classes=4,
            n_features=10,
            n_centroids=20,
            change_speed=0.001,
            n_drift_centroids=10,
        ),
    }
    for name, stream in drifting.items():
        pairs = list(stream.take(length))
        columns = sorted(pairs[0][0], key=str)
        yield name, (np.array([[float(x[c]) for c in columns] for x, _ in pairs]), np.array([int(y) for _, y in pairs]))
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = x[order], y[order]
    yield "digits, steady", (x, y)
    exchanged = y.copy()
    exchanged[len(y) // 2 :] = (y[len(y) // 2 :] + 1) % 10
    yield "digits, labels exchanged", (x, exchanged)


def stream_methods() -> dict[str, Callable[[], Any]]:
    from river import forest, neighbors, preprocessing, tree

    from apl.classifier.river import RiverClassifier

    return {
        "ours": RiverClassifier,
        "ours, ageing=False": lambda: RiverClassifier(ageing=False),
        "river KNN": lambda: preprocessing.StandardScaler() | neighbors.KNNClassifier(),
        "river ARF": lambda: forest.ARFClassifier(seed=1),
        "river HoeffdingTree": tree.HoeffdingTreeClassifier,
    }


def drift_rows(seeds: int, length: int) -> Iterator[Row]:
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for seed in range(1, seeds + 1):
        for name, (x, y) in streams(seed, length):
            examples = [dict(enumerate(row.tolist())) for row in x]
            for method, make in stream_methods().items():
                model, right = make(), []
                for example, label in zip(examples, y.tolist(), strict=True):
                    right.append(model.predict_one(example) == label)
                    model.learn_one(example, label)
                found.setdefault((name, method), []).append(np.array(right))
    for (name, method), hits in found.items():
        every, last = (
            Estimate.of([float(h.mean()) for h in hits]),
            Estimate.of([float(h[-len(h) // 4 :].mean()) for h in hits]),
        )
        row = {"table": "drift", "set": name, "draws": len(hits), "method": method, "accuracy": every.mean}
        yield {**row, "ci95": every.ci95, "last_quarter": last.mean, "last_quarter_ci95": last.ci95}


def parts(draws: int, seeds: int, length: int) -> Iterator[Row]:
    for name in ("banking77", "clinc150"):
        for shot in (5, 10):
            yield from fit_rows(name, shot, published(name, shot))
    for shot in (5, 10):
        yield from fit_rows("photographs, ten groups of ten classes", shot, photos(10, shot, draws, 10))
    yield from fit_rows("photographs, 100 classes", 5, photos(100, 5, max(1, draws // 2), 1))
    for name in ("banking77", "clinc150"):
        sets = intents(name)
        train, test = sets["train"], sets["test"]
        asked = (test.embeddings.numpy(), test.labels.numpy())
        for shot in (5, 10):
            every = halves(train.embeddings.numpy(), train.labels.numpy(), shot, draws, asked)
            yield from false_alarm_rows(name, shot, every)
    data = photographs()
    unseen = data.labels.numpy() >= FIRST_UNSEEN
    x, y = data.embeddings.numpy()[unseen], data.labels.numpy()[unseen]
    yield from false_alarm_rows("photographs", 5, halves(x, y, 5, draws))
    yield from false_alarm_rows("photographs, groups of ten classes", 10, halves(x, y // 10, 10, draws))
    yield from drift_rows(seeds, length)


@dataclass
class Command:
    """Measure whole batches, false alarms and drift, and write results/batch.json. Needs ImageNet-mini and the intents
    (APL_DATA), scikit-learn and river."""

    draws: Annotated[int, arg(metavar="N")] = 6
    seeds: Annotated[int, arg(metavar="N")] = 3
    """Of river's streams."""
    length: Annotated[int, arg(metavar="N")] = 4000
    """Examples of each of river's streams."""

    def run(self) -> None:
        if min(self.draws, self.seeds, self.length) < 1:
            raise ValueError("draws, seeds and length must be at least 1")
        with threads(1):
            rows = parts(self.draws, self.seeds, self.length)
            measure_all("batch", rows, **machine(), draws=self.draws, seeds=self.seeds, length=self.length)
