"""Adaptive Posterior Learning: few-shot learning with a surprise-based memory.

    import apl
    clf = apl.OnlineClassifier.from_pretrained("drawings")

The public names are below; each is imported from its module when first asked for, so `import apl` is quick.

Axes of tensors, as they are named in signatures:

    episode      memories that run in parallel; a classifier has one
    query        examples asked about together
    time         place in the stream of an episode
    example      place in a data set or a batch
    row          place in a memory
    neighbours   rows recalled for a query, nearest first
    states       the neighbours, with "none of these" in front
    embed        the numbers of an embedding, which is the key of a row
    way          classes of an episode; `known`: classes in a classifier's memory
    image, height, width, side, channels    of pictures
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apl.classifier.answers import Explanation as Explanation
    from apl.classifier.answers import LabelSet as LabelSet
    from apl.classifier.answers import Probabilities as Probabilities
    from apl.classifier.answers import Receipt as Receipt
    from apl.classifier.drift import DriftReport as DriftReport
    from apl.classifier.online import OnlineClassifier as OnlineClassifier
    from apl.classifier.review import Suspect as Suspect
    from apl.classifier.suggest import Suggestion as Suggestion
    from apl.client import AsyncClient as AsyncClient
    from apl.client import Client as Client
    from apl.client import ServiceError as ServiceError
    from apl.config import LearnerConfig as LearnerConfig
    from apl.learner import Learner as Learner
    from apl.memory import Memory as Memory
    from apl.memory import Neighbours as Neighbours
    from apl.store import open_store as open_store

_HOME = {
    "OnlineClassifier": "apl.classifier.online",
    "Client": "apl.client",
    "AsyncClient": "apl.client",
    "ServiceError": "apl.client",
    "Receipt": "apl.classifier.answers",
    "Probabilities": "apl.classifier.answers",
    "Explanation": "apl.classifier.answers",
    "DriftReport": "apl.classifier.drift",
    "LabelSet": "apl.classifier.answers",
    "Learner": "apl.learner",
    "LearnerConfig": "apl.learner",
    "Suggestion": "apl.classifier.suggest",
    "Suspect": "apl.classifier.review",
    "Memory": "apl.memory",
    "Neighbours": "apl.memory",
    "open_store": "apl.store",
}

__all__ = sorted(_HOME)


if not TYPE_CHECKING:  # a type checker would take it for a promise that every name exists

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module 'apl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
