"""Vectors of frozen encoders: our classifier with its default settings against what a user would take instead.

Photographs (EfficientNet-Lite0, ImageNet-mini `val`) and requests (MiniLM, BANKING77 and CLINC150), all vectors at unit
length. `few-shot`: some examples of each class are learnt in random order, then others asked about. `published`: the
training sets of 5 and 10 per intent that the literature uses, and the whole test set. `new or known`: half of the
classes are learnt and all are asked about; for CLINC150 also its out-of-scope requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apl.bench.feature_sets import LabelledVectors, intents, photographs, unit
from apl.bench.streams import report, save_result
from apl.bench.text_peers import installed_peers
from apl.classifier.online import OnlineClassifier

ASKED_PER_CLASS, MOST_ASKED = 15, 1000
BINS = 15
Answers = tuple[np.ndarray, dict[str, Any]]


def ours(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
    with OnlineClassifier.for_features(x.shape[1], keep_images=False) as classifier:
        classifier.learn_many(x, y.tolist())
        probabilities, new = classifier.predict_proba(asked), classifier.predict_new(asked)
        found = np.array(classifier.classes_)[probabilities.argmax(1)]
        return found, {"rows": len(classifier), "confidence": probabilities.max(1), "new": new}


def nearest(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
    similarity = asked @ x.T
    return y[similarity.argmax(1)], {"rows": len(x), "new": -similarity.max(1)}


def class_mean(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
    classes = np.unique(y)
    similarity = asked @ unit(np.stack([x[y == c].mean(0) for c in classes])).T
    return classes[similarity.argmax(1)], {"rows": len(classes), "new": -similarity.max(1)}


def logistic_regression(strength: float):
    def answer(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=strength, max_iter=300, tol=1e-3).fit(x, y)
        return model.predict(asked), {"rows": len(x)}

    return answer


METHODS = {
    "ours": ours,
    "1-NN": nearest,
    "class mean": class_mean,
    "logistic regression, C = 1": logistic_regression(1.0),
    "logistic regression, C = 100": logistic_regression(100.0),
}


def few_shot(name: str, learnt: LabelledVectors, asked: LabelledVectors, way: int, shot: int, draws: int) -> list[dict]:
    """`learnt` and `asked` may be the same: no example is both learnt and asked about."""
    scores: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for draw in range(draws):
        chance = np.random.default_rng([draw, way, shot])
        classes = chance.permutation(np.unique(learnt.labels))[:way]
        known, questions = [], []
        for mine, theirs in zip(learnt.of(classes), asked.of(classes), strict=True):
            mine = chance.permutation(mine)
            rest = mine[shot:] if learnt is asked else chance.permutation(theirs)
            known.append(mine[:shot])
            questions.append(rest[:ASKED_PER_CLASS])
        shown = chance.permutation(np.concatenate(known))
        question = chance.permutation(np.concatenate(questions))[:MOST_ASKED]
        data = (learnt.vectors[shown], learnt.labels[shown], asked.vectors[question])
        for method, answer in METHODS.items():
            scores[method].append(scored(answer, *data, asked.labels[question]))
    about = {"table": "few-shot", "set": name, "way": way, "shot": shot, "draws": draws}
    return [{**about, "method": method, **averaged(found)} for method, found in scores.items()]


def published(
    name: str, parts: dict[str, LabelledVectors], shot: int, methods: Mapping[str, Any] = METHODS
) -> list[dict]:
    learnt, asked = parts[f"train_{shot}"], parts["test"]
    order = np.random.default_rng(0).permutation(len(learnt.labels))
    data = (learnt.vectors[order], learnt.labels[order], asked.vectors)
    about = {"table": "published", "set": name, "way": int(asked.labels.max()) + 1, "shot": shot, "draws": 1}
    return [
        {**about, "method": method, **averaged([scored(answer, *data, asked.labels)])}
        for method, answer in methods.items()
    ]


def scored(answer: Any, x: np.ndarray, y: np.ndarray, asked: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    started = time.process_time()
    found, more = answer(x, y, asked)
    seconds = time.process_time() - started
    right = found == truth
    score = {"accuracy": float(right.mean()), "rows": float(more["rows"]), "seconds": seconds}
    if "confidence" in more:
        score["ece"] = calibration_error(more["confidence"], right)
    return score


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def averaged(scores: list[dict[str, float]]) -> dict[str, float]:
    mean = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    spread = np.std([score["accuracy"] for score in scores], ddof=1) if len(scores) > 1 else None
    return {**mean, "ci95": None if spread is None else float(1.96 * spread / np.sqrt(len(scores)))}


def new_or_known(name: str, x: LabelledVectors, asked: LabelledVectors, shot: int, draws: int) -> list[dict]:
    """Half of the classes are learnt; asked is about all of them, as many new as known. Where `asked` has out-of-scope
    requests (label -1), all classes are learnt and those are the new ones."""
    scores: dict[str, list[dict[str, float]]] = {"ours": [], "1-NN": [], "class mean": []}
    for draw in range(draws):
        chance = np.random.default_rng([draw, shot])
        classes = chance.permutation(np.unique(x.labels))
        outside = (asked.labels < 0).any()
        known = classes if outside else classes[: len(classes) // 2]
        shown = [chance.permutation(examples)[: shot + ASKED_PER_CLASS] for examples in x.of(known)]
        learnt = chance.permutation(np.concatenate([examples[:shot] for examples in shown]))
        if x is asked:
            familiar = np.concatenate([examples[shot:] for examples in shown])
        else:
            familiar = np.isin(asked.labels, known).nonzero()[0]
        strange = (asked.labels < 0 if outside else ~np.isin(asked.labels, known)).nonzero()[0]
        number = min(len(familiar), len(strange), MOST_ASKED)
        question = np.concatenate([chance.permutation(familiar)[:number], chance.permutation(strange)[:number]])
        is_new = np.repeat([False, True], number)
        for method in scores:
            _, more = METHODS[method](x.vectors[learnt], x.labels[learnt], asked.vectors[question])
            score = {"auroc": auroc(more["new"], is_new), "accuracy": 0.0}
            if method == "ours":
                called = more["new"] > 0.5
                score |= {
                    "known_called_new": float(called[~is_new].mean()),
                    "new_called_new": float(called[is_new].mean()),
                }
            scores[method].append(score)
    about = {"table": "new or known", "set": name, "shot": shot, "draws": draws}
    rows = [{**about, "method": method, **averaged(found)} for method, found in scores.items()]
    return [{name: value for name, value in row.items() if name not in ("accuracy", "ci95")} for row in rows]


def auroc(score: np.ndarray, positive: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score))


def run_text_peers() -> Path:
    """The published sets with packages that do the same for text, as far as they are installed: results/text-peers.json."""
    methods, rows = {**METHODS, **dict(installed_peers())}, []
    for name in ("banking77", "clinc150"):
        parts = intents(name)
        for shot in (5, 10):
            rows.extend(published(name, parts, shot, methods))
            save_result("text-peers", rows, seed=0)
    for row in rows:
        report(row)
    return save_result("text-peers", rows, seed=0)


def run(draws: int = 10, draws_of_all: int = 3, only: str = "") -> Path:
    """`only`: the sets whose name contains this."""
    rows: list[dict] = []

    def add(found: list[dict]) -> None:
        rows.extend(found)
        for row in found:
            report(row)
        save_result("features", rows, seed=0, draws=draws, draws_of_all=draws_of_all)

    for name in ("banking77", "clinc150"):
        if only not in name:
            continue
        parts = intents(name)
        for shot in (5, 10):
            add(published(name, parts, shot))
        every = LabelledVectors(
            *(
                np.concatenate([getattr(parts[p], f) for p in ("test", "oos_test") if p in parts])
                for f in ("vectors", "labels")
            )
        )
        for shot in (5, 10):
            add(new_or_known(name, parts["train"], every, shot, draws_of_all))
        add([row for shot in (1, 5, 10) for row in few_shot(name, parts["train"], parts["test"], 20, shot, draws)])
        everything = int(parts["test"].labels.max()) + 1
        for shot in (1, 5, 10):
            add(few_shot(name, parts["train"], parts["test"], everything, shot, draws_of_all))
    if only in "photographs":
        photos = photographs()
        for shot in (1, 5):
            add(few_shot("photographs", photos, photos, 20, shot, draws))
        add(new_or_known("photographs", photos, photos, 5, 1))
        for shot in (1, 5):
            add(few_shot("photographs", photos, photos, 100, shot, draws_of_all))
    return save_result("features", rows, seed=0, draws=draws, draws_of_all=draws_of_all)
