"""The methods of `experiments.paper.baselines`, each with the settings that are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.baselines.cnp import ConditionalNeuralProcess
from experiments.baselines.gemcl import GenerativeMetaContinual
from experiments.baselines.infinite_mixture import InfiniteMixturePrototypes
from experiments.baselines.interface import FewShotMethod
from experiments.baselines.maml import Maml
from experiments.baselines.matching import MatchingNetwork
from experiments.baselines.prototypical import PrototypicalNetwork
from experiments.baselines.relation import RelationNetwork
from experiments.baselines.scikit import LogisticBaseline, NeighbourBaseline
from experiments.baselines.shipped import Shipped
from experiments.baselines.streaming_lda import StreamingLDA
from experiments.paper.baselines_table import OURS_NAME, PLAIN_NAME
from experiments.paper.subjects import MODEL, Embedded

Settings = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A method in the table: how it is built from a setting, and the settings that are tried."""

    name: str
    paper: str
    build: Callable[[Settings, Embedded], FewShotMethod]
    grid: tuple[Settings, ...]


def _width(data: Embedded) -> int:
    return data.embeddings.shape[1]


RATES = tuple({"learning_rate": rate} for rate in (0.0, 1e-4, 1e-3))
"""For methods that begin at the frozen embedding; 0 leaves it as it is."""
HIGHER_RATES = tuple({"learning_rate": rate} for rate in (1e-3, 2e-3, 4e-3))
"""For methods that begin with a network that knows nothing."""


def _inner(*sizes: float) -> tuple[Settings, ...]:
    return tuple({"learning_rate": 3e-4, "step_size": size} for size in sizes)


ENTRIES = (
    Entry("Prototypical networks", "Snell et al. 2017", lambda s, data: PrototypicalNetwork(_width(data)), RATES),
    Entry("Matching networks (FCE)", "Vinyals et al. 2016", lambda s, data: MatchingNetwork(_width(data)), RATES),
    Entry("Relation network", "Sung et al. 2018", lambda s, data: RelationNetwork(_width(data)), HIGHER_RATES),
    Entry("CNP", "Garnelo et al. 2018", lambda s, data: ConditionalNeuralProcess(_width(data)), HIGHER_RATES),
    Entry(
        "MAML", "Finn et al. 2017", lambda s, data: Maml(_width(data), step_size=s["step_size"]), _inner(0.5, 1.0, 2.0)
    ),
    Entry(
        "ANIL",
        "Raghu et al. 2020",
        lambda s, data: Maml(_width(data), step_size=s["step_size"], output_only=True),
        _inner(2.0, 4.0, 8.0),
    ),
    Entry(
        "Infinite mixture prototypes",
        "Allen et al. 2019",
        lambda s, data: InfiniteMixturePrototypes(_width(data), within=s["within"]),
        tuple({"learning_rate": 3e-4, "within": within} for within in (0.2, 0.8, 2.0)),
    ),
    Entry("GeMCL", "Banayeeanzade et al. 2021", lambda s, data: GenerativeMetaContinual(_width(data)), RATES),
    Entry(
        "Streaming LDA",
        "Hayes and Kanan 2020",
        lambda s, data: StreamingLDA.after(data.embeddings, data.labels, s["shrinkage"]),
        tuple({"shrinkage": shrinkage} for shrinkage in (0.1, 0.5, 0.8)),
    ),
    Entry("Logistic regression, C = 10", "scikit-learn", lambda s, data: LogisticBaseline(10.0), ({},)),
    Entry(
        "Nearest neighbour",
        "scikit-learn",
        lambda s, data: NeighbourBaseline(s["neighbours"]),
        tuple({"neighbours": k} for k in (1, 3, 5)),
    ),
    Entry(PLAIN_NAME, "Ramalho and Garnelo 2019", lambda s, data: Shipped(MODEL, consolidate=False), ({},)),
    Entry(OURS_NAME, "OnlineClassifier as it ships", lambda s, data: Shipped(MODEL), ({},)),
)
