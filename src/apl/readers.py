"""Readers: small functions from a query and a memory to a score of every known class, and the pool that weighs them.

One reader suits compact classes, another classes of several shapes, a third the encoder it was trained with. So several
read the same memory, and share the answer by how well each foresaw the lessons so far:

    log p(class) = Σ_r w_r · score_r(class) + constant

a logarithmic opinion pool whose few weights take one Newton step per lesson, with forgetting, from a prior that was
chosen on validation data. Everything is in numpy and batched over parallel episodes; there is no gradient here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

READERS = ("nearest row", "class mean", "local regression")
"""What every memory has. A trained decoder is one more."""
DECODER = "decoder"


@dataclass(frozen=True)
class Prior:
    """The weights before any lesson, of standardised scores, and how many lessons they count for."""

    weight: Mapping[str, float]
    precision: float


FOR_VECTORS = Prior({"nearest row": 0.2, "class mean": 0.8, "local regression": 0.8}, 10.0)
"""Chosen on BANKING77's and ImageNet's training parts."""
FOR_DRAWINGS = Prior({"nearest row": 0.6, "class mean": 1.4, "local regression": 0.3, DECODER: 0.3}, 2.0)
"""Beside a trained decoder. Chosen on Omniglot's validation characters."""

FORGETTING = 0.99
"""What a lesson still counts after the next one: a drifting stream changes its readers within a few hundred."""
NEGLIGIBLE, TRIAL_LESSONS = 0.15, 60
"""A trained decoder, which costs more than all other readers, is not asked when its weight is below this, once it has
been weighed by so many lessons."""
KERNEL_WIDTH = 0.5
"""Of local regression: similarity 1 - s counts as exp(-s / width)."""
NOISE = 0.1
"""Of one example, in local regression; a row that is the mean of n examples has 1/n of it."""
FLOOR = 0.1
"""Added to a regressed share before its logarithm is taken."""
LEAST_LOG = -12.0
"""A trained decoder that gives a class next to nothing says no more than this."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over the examples behind the rows of a memory, class by class."""

    total: Float[np.ndarray, "episode class embed"]
    examples: Float[np.ndarray, "episode class"]

    def centre(self) -> Float[np.ndarray, "episode embed"]:
        """The mean of everything, drawn a little towards zero, so that a single example is not its own centre."""
        return self.total.sum(1) / (self.examples.sum(1)[:, None] + 1)


@dataclass(frozen=True)
class Readings:
    """What each reader makes of each query."""

    scores: Float[np.ndarray, "episode query class reader"]
    """As they come; meaningless for classes that are not known. A decoder that was not asked has no part in them."""
    known: Bool[np.ndarray, "episode class"]

    @cached_property
    def best(self) -> Float[np.ndarray, "episode query 2 3"]:
        """The best three scores of known classes by nearest row and by class mean, the best first; -inf where there are
        fewer."""
        scores = np.where(self.known[:, None, None], self.scores[..., :2].swapaxes(-1, -2), -np.inf)
        if scores.shape[-1] < 3:
            scores = np.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 3 - scores.shape[-1])), constant_values=-np.inf)
        best = []
        for _ in range(3):
            at = scores.argmax(-1)[..., None]
            best.append(np.take_along_axis(scores, at, -1))
            np.put_along_axis(scores, at, -np.inf, -1)
        return np.concatenate(best, -1)


def recalled_directions(
    rows: Float[np.ndarray, "episode query neighbours embed"], centre: Float[np.ndarray, "episode embed"]
) -> Float[np.ndarray, "episode query neighbours embed"]:
    return unit(rows - centre[:, None, None])


def unit(vectors: Float[np.ndarray, "*any embed"]) -> Float[np.ndarray, "*any embed"]:
    return vectors / np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None].clip(1e-12)


def read(
    query: Float[np.ndarray, "episode query embed"],
    rows: Float[np.ndarray, "episode query neighbours embed"],
    label: Int[np.ndarray, "episode query neighbours"],
    mask: Bool[np.ndarray, "episode query neighbours"],
    examples: Float[np.ndarray, "episode query neighbours"],
    classes: ClassStatistics,
    decoded: Float[np.ndarray, "episode query class"] | None = None,
) -> Readings:
    """All readers at once: they share the centred directions. `examples` says how many stand behind each row."""
    centre = classes.centre()
    moved = query - centre[:, None]
    asked, recalled = unit(moved), recalled_directions(rows, centre)
    similarity = np.where(mask, np.einsum("eqkd,eqd->eqk", recalled, asked), -1)
    slot = np.where(mask, label, classes.examples.shape[1])
    scores = [
        nearest_row(similarity, slot, mask, classes.examples.shape[1]),
        class_mean(asked, centre, classes),
        local_regression(recalled, similarity, slot, mask, examples, classes.examples.shape[1]),
    ]
    if decoded is not None:
        scores.append(np.maximum(decoded, LEAST_LOG))
    return Readings(np.stack(scores, -1), classes.examples > 0)


def nearest_row(
    similarity: Float[np.ndarray, "episode query neighbours"],
    slot: Int[np.ndarray, "episode query neighbours"],
    mask: Bool[np.ndarray, "episode query neighbours"],
    classes: int,
) -> Float[np.ndarray, "episode query class"]:
    """A class is as near as its nearest row; one that was not recalled, as the farthest row that was."""
    farthest = np.where(mask, similarity, np.inf).min(-1)
    nearest = np.repeat(np.where(np.isfinite(farthest), farthest, 0)[..., None], classes + 1, -1)
    order = similarity.argsort(-1)
    # The last of several values put into one place stays: the most similar.
    np.put_along_axis(nearest, np.take_along_axis(slot, order, -1), np.take_along_axis(similarity, order, -1), -1)
    return nearest[..., :classes]


def class_mean(
    asked: Float[np.ndarray, "episode query embed"],
    centre: Float[np.ndarray, "episode embed"],
    classes: ClassStatistics,
) -> Float[np.ndarray, "episode query class"]:
    """The cosine between the query and the mean of everything ever merged into the class, both seen from the centre."""
    examples = classes.examples.clip(1)
    beside = np.concatenate([asked, centre[:, None]], 1).astype(np.float32)
    product = classes.total @ beside.transpose(0, 2, 1) / examples[..., None]
    inner, off_centre = product[..., :-1], product[..., -1]
    length = np.einsum("ecd,ecd->ec", classes.total, classes.total) / np.square(examples)
    square = length - 2 * off_centre + np.square(centre).sum(-1)[:, None]
    along = np.einsum("eqd,ed->eq", asked, centre)
    return (inner.transpose(0, 2, 1) - along[..., None]) / np.sqrt(square.clip(1e-12))[:, None]


def local_regression(
    recalled: Float[np.ndarray, "episode query neighbours embed"],
    similarity: Float[np.ndarray, "episode query neighbours"],
    slot: Int[np.ndarray, "episode query neighbours"],
    mask: Bool[np.ndarray, "episode query neighbours"],
    examples: Float[np.ndarray, "episode query neighbours"],
    classes: int,
) -> Float[np.ndarray, "episode query class"]:
    """Kernel ridge regression of the labels on the recalled rows alone: discriminative, as logistic regression is."""
    among = recalled @ recalled.swapaxes(-1, -2)
    both = mask[..., None] & mask[..., None, :]
    kernel = np.where(both, np.exp((among - 1) / KERNEL_WIDTH), 0)
    place = np.arange(kernel.shape[-1])
    kernel[..., place, place] += np.where(mask, NOISE / examples.clip(1), 1)
    weight = np.linalg.solve(kernel, np.where(mask, np.exp((similarity - 1) / KERNEL_WIDTH), 0)[..., None])[..., 0]
    many = slot.reshape(-1, slot.shape[-1])
    index = many + (classes + 1) * np.arange(len(many))[:, None]
    share = np.bincount(index.ravel(), weight.ravel(), minlength=len(many) * (classes + 1))
    share = share.reshape(*slot.shape[:2], classes + 1)[..., :classes]
    return np.log(share.clip(0) + FLOOR)


@dataclass
class Pool:
    """The readers' weights in each of several parallel memories, and what they are learnt from."""

    readers: tuple[str, ...]
    weight: Float[np.ndarray, "episode reader"] = field(init=False)
    precision: Float[np.ndarray, "episode reader reader"] = field(init=False)
    variance: Float[np.ndarray, "episode reader"] = field(init=False)
    """Sum over past lessons of how much a reader's scores vary over the classes; makes scores comparable."""
    lessons: Float[np.ndarray, " episode"] = field(init=False)
    episodes: int = 1

    def __post_init__(self) -> None:
        count = len(self.readers)
        self.weight = np.tile(self._prior, (self.episodes, 1))
        self.precision = np.tile(self.prior.precision * np.eye(count), (self.episodes, 1, 1))
        self.variance, self.lessons = np.zeros((self.episodes, count)), np.zeros(self.episodes)
        self._latest: tuple[Any, ...] | None = None
        """The readings asked about last and what came of them: a lesson usually follows its question."""

    @cached_property
    def prior(self) -> Prior:
        return FOR_DRAWINGS if DECODER in self.readers else FOR_VECTORS

    @cached_property
    def _prior(self) -> Float[np.ndarray, " reader"]:
        return np.array([self.prior.weight[name] for name in self.readers])

    def standardised(self, readings: Readings) -> tuple[np.ndarray, np.ndarray]:
        """Scores around their mean over the known classes, in units of how much they usually vary; and their variance."""
        known = readings.known[:, None, :, None]
        number = readings.known.sum(1).clip(1)[:, None, None]
        scores = np.where(known, readings.scores, 0)
        scores = np.where(known, scores - scores.sum(2, keepdims=True) / number[..., None], 0)
        variance = np.square(scores).sum(2) / number
        asked = scores.shape[-1]
        usual = self.variance[:, :asked] / self.lessons.clip(1e-9)[:, None]
        usual = np.where(self.lessons[:, None, None] > 0, usual[:, None], variance)
        return scores / np.sqrt(usual.clip(1e-12))[:, :, None], variance

    def log_probs(self, readings: Readings) -> Float[np.ndarray, "episode query class"]:
        """Among the known classes; -inf elsewhere."""
        scores, variance = self.standardised(readings)
        log_probs = self._shared(scores, readings.known)
        self._latest = (readings, scores, variance, log_probs)
        return log_probs

    def needs(self, reader: str) -> bool:
        """Whether a reader that is dear to ask is worth it. One that was found to say nothing is left alone until
        forgetting brings its weight back towards the prior; then it gets another chance."""
        if reader not in self.readers:
            return False
        weight = np.abs(self.weight[:, self.readers.index(reader)])
        return bool(((weight >= NEGLIGIBLE) | (self.lessons < TRIAL_LESSONS)).any())

    def _shared(self, scores: np.ndarray, known: np.ndarray) -> np.ndarray:
        logits = np.where(
            known[:, None], np.einsum("eqcr,er->eqc", scores, self.weight[:, : scores.shape[-1]]), -np.inf
        )
        top = logits.max(-1, keepdims=True, initial=LEAST_LOG)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True).clip(1e-30))

    def learn(
        self, readings: Readings, truth: Int[np.ndarray, "episode query"], taught: Bool[np.ndarray, "episode query"]
    ) -> None:
        """One Newton step towards the weights under which the truth was most likely. `taught`: which queries count."""
        taught = taught & np.take_along_axis(readings.known, truth, 1) & (readings.known.sum(1) > 1)[:, None]
        if not taught.any():
            return
        if self._latest is None or self._latest[0] is not readings:
            self.log_probs(readings)
        _, scores, variance, log_probs = self._latest
        self._latest = None
        share = np.exp(log_probs) * taught[..., None]
        mean = np.einsum("eqc,eqcr->eqr", share, scores)
        true = np.take_along_axis(scores, truth[..., None, None], 2)[:, :, 0] * taught[..., None]
        weighted = scores * share[..., None]
        curvature = np.einsum("eqcr,eqcs->ers", weighted, scores) - np.einsum("eqr,eqs->ers", mean, mean)
        lessons = taught.sum(1)
        kept = np.power(FORGETTING, lessons)
        prior = self.prior.precision * np.eye(len(self.readers))
        precision = kept[:, None, None] * self.precision + (1 - kept)[:, None, None] * prior
        pulled = kept[:, None] * np.einsum("ers,es->er", self.precision, self.weight)
        pulled += (1 - kept)[:, None] * (self.prior.precision * self._prior)
        # A reader that was not asked is last: it neither gains nor loses by this lesson.
        absent = len(self.readers) - scores.shape[-1]
        missed = (true - mean).sum(1)
        if absent:
            curvature = np.pad(curvature, ((0, 0), (0, absent), (0, absent)))
            missed = np.pad(missed, ((0, 0), (0, absent)))
        self.precision = precision + curvature
        weight = np.linalg.solve(precision, pulled[..., None])[..., 0]
        self.weight = weight + np.linalg.solve(self.precision, missed[..., None])[..., 0]
        usual = self.variance[:, scores.shape[-1] :] / self.lessons.clip(1e-9)[:, None]
        varied = np.concatenate([(variance * taught[..., None]).sum(1), usual * lessons[:, None]], 1)
        self.variance = kept[:, None] * self.variance + varied
        self.lessons = kept * self.lessons + lessons

    # --- durable numbers of a single memory ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "readers": list(self.readers),
            "weight": self.weight[0].tolist(),
            "precision": self.precision[0].tolist(),
            "variance": self.variance[0].tolist(),
            "lessons": float(self.lessons[0]),
        }

    @staticmethod
    def from_dict(readers: tuple[str, ...], kept: Mapping[str, Any] | None) -> Pool:
        """As it was kept; from the prior if nothing was, or if other readers were in use then."""
        pool = Pool(readers)
        if kept and tuple(kept["readers"]) == readers:
            pool.weight = np.array([kept["weight"]])
            pool.precision = np.array([kept["precision"]])
            pool.variance, pool.lessons = np.array([kept["variance"]]), np.array([kept["lessons"]])
        return pool
