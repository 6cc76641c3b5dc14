"""Vectors of frozen encoders: our classifier with its default settings against what a user would take instead.

Photographs (EfficientNet-Lite0, ImageNet-mini `val`) and requests (MiniLM, BANKING77 and CLINC150), all vectors at unit
length; for `new or known` also drawings and digits behind the bundled model (Omniglot's and MNIST's test parts). `few-shot`: some examples of each class are learnt in random order, then others asked about. `published`: the
training sets of 5 and 10 per intent that the literature uses, and the whole test set. `new or known`: half of the
classes are learnt and all are asked about; for CLINC150 its out-of-scope requests. The calibration error is that of the answers of
all draws together: of the few answers of one draw it would be mostly chance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.online import OnlineClassifier
from apl.data.mnist import load_mnist
from apl.encoder import embed_all
from apl.learner import Learner
from experiments.bench.feature_sets import LabelledVectors, intents, photographs, unit
from experiments.bench.streams import embedded, report, save_result
from experiments.bench.text_peers import installed_peers

ASKED_PER_CLASS, MOST_ASKED = 15, 1000
DIGITS = 2000
"""Of MNIST's test set, the first so many are drawn from."""
BINS = 15
ANSWERS = ("confidence", "right")
Answers = tuple[np.ndarray, dict[str, Any]]


def ours(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
    with OnlineClassifier.for_features(x.shape[1], keep_images=False) as classifier:
        classifier.learn_many(x, y.tolist())
        probabilities, new = classifier.predict_proba(asked), classifier.predict_new(asked)
        found = np.array(classifier.classes_)[probabilities.argmax(1)]
        return found, {"rows": len(classifier), "confidence": probabilities.max(1), "new": new}


def ours_of_drawings(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> Answers:
    """The bundled model, behind vectors of its own encoder at unit length."""
    length = np.float32(x.shape[1] ** 0.5)
    with OnlineClassifier(FOR_DRAWINGS, keep_images=False) as classifier:
        world = classifier._session().world
        for vector, label in zip(x * length, y.tolist(), strict=True):
            world.learn(vector, label)
        world.commit()
        beliefs = [world.believe(asked[at : at + 256] * length) for at in range(0, len(asked), 256)]
        names = world.memory.classes
        found = np.array(names)[np.concatenate([belief.best(names) for belief in beliefs])]
        return found, {"rows": len(classifier), "new": np.concatenate([belief.new for belief in beliefs])}


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
    scores: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
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


def scored(answer: Any, x: np.ndarray, y: np.ndarray, asked: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    started = time.process_time()
    found, more = answer(x, y, asked)
    seconds = time.process_time() - started
    right = found == truth
    score = {"accuracy": float(right.mean()), "rows": float(more["rows"]), "seconds": seconds}
    return score | ({"confidence": more["confidence"], "right": right} if "confidence" in more else {})


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error over bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def averaged(scores: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {name: float(np.mean([score[name] for score in scores])) for name in scores[0] if name not in ANSWERS}
    if "right" in scores[0]:
        mean["ece"] = calibration_error(*(np.concatenate([score[name] for score in scores]) for name in ANSWERS))
    spread = np.std([score["accuracy"] for score in scores], ddof=1) if len(scores) > 1 else None
    return {**mean, "ci95": None if spread is None else float(1.96 * spread / np.sqrt(len(scores)))}


def new_or_known(
    name: str,
    x: LabelledVectors,
    asked: LabelledVectors,
    shot: int,
    draws: int,
    way: int | None = None,
    answer: Any = ours,
) -> list[dict]:
    """Half of the classes (of `way` of them) are learnt; asked is about all of these, as many new as known. Where `asked` has
    out-of-scope requests (label -1), all classes are learnt and those are the new ones."""
    methods = {"ours": answer, "1-NN": nearest, "class mean": class_mean}
    scores: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for draw in range(draws):
        chance = np.random.default_rng([draw, shot])
        classes = chance.permutation(np.unique(x.labels))[:way]
        outside = (asked.labels < 0).any()
        known = classes if outside else classes[: len(classes) // 2]
        shown = [chance.permutation(examples)[: shot + ASKED_PER_CLASS] for examples in x.of(known)]
        learnt = chance.permutation(np.concatenate([examples[:shot] for examples in shown]))
        if x is asked:
            familiar = np.concatenate([examples[shot:] for examples in shown])
        else:
            familiar = np.isin(asked.labels, known).nonzero()[0]
        unknown = np.isin(asked.labels, np.setdiff1d(classes, known))
        strange = (asked.labels < 0 if outside else unknown).nonzero()[0]
        number = min(len(familiar), len(strange), MOST_ASKED)
        question = np.concatenate([chance.permutation(familiar)[:number], chance.permutation(strange)[:number]])
        is_new = np.repeat([False, True], number)
        for method in scores:
            _, more = methods[method](x.vectors[learnt], x.labels[learnt], asked.vectors[question])
            score = {"auroc": auroc(more["new"], is_new), "accuracy": 0.0}
            if method == "ours":
                called = more["new"] > 0.5
                score |= {
                    "known_called_new": float(called[~is_new].mean()),
                    "new_called_new": float(called[is_new].mean()),
                }
            scores[method].append(score)
    about = {"table": "new or known", "set": name, "known": len(known), "shot": shot, "draws": draws}
    rows = [{**about, "method": method, **averaged(found)} for method, found in scores.items()]
    return [{name: value for name, value in row.items() if name not in ("accuracy", "ci95")} for row in rows]


def auroc(score: np.ndarray, positive: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score))


def drawings() -> Iterator[tuple[str, LabelledVectors, int, tuple[int, ...]]]:
    """Of each set its name, its vectors, how many classes to draw (half of which are learnt), and how many examples to show."""
    learner = Learner.load(FOR_DRAWINGS)
    characters = embedded(learner, "test")
    yield "omniglot", LabelledVectors(unit(characters.embeddings.numpy()), characters.labels.numpy()), 200, (3, 5)
    digits = load_mnist("test", learner.config.encoder.image_size)
    seen = embed_all(learner.encoder, digits.images[:DIGITS]).numpy()
    yield "mnist", LabelledVectors(unit(seen), digits.labels[:DIGITS].numpy()), 10, (10, 50)


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
        add(new_or_known("photographs", photos, photos, 5, draws, way=100))
        add(new_or_known("photographs", photos, photos, 5, 1))
        for shot in (1, 5):
            add(few_shot("photographs", photos, photos, 100, shot, draws_of_all))
    for name, vectors, way, shots in drawings() if only in "drawings and digits" else ():
        for shot in shots:
            add(new_or_known(name, vectors, vectors, shot, draws, way, ours_of_drawings))
    return save_result("features", rows, seed=0, draws=draws, draws_of_all=draws_of_all)
