"""Examples read and embedded in batches, for `apl learn` and `apl predict`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.cli.examples import FoundExample
from apl.pictures.drawings import looks_like_a_photograph

AT_ONCE = 64
"""Examples in a batch."""


@dataclass
class Batch:
    """Examples that could be read, embedded; and what is to be said of the others."""

    examples: list[FoundExample] = field(default_factory=list)
    embedded: Examples | None = None
    failures: list[str] = field(default_factory=list)
    """One line for each example that could not be read."""
    photographs: int = 0
    """How many look like photographs, where the model takes drawings."""


def batches(classifier: OnlineClassifier, examples: Sequence[FoundExample]) -> Iterator[Batch]:
    """All examples in their order."""
    for part in split(examples):
        yield embed_batch(classifier, part)


def split(examples: Sequence[FoundExample]) -> Iterator[Sequence[FoundExample]]:
    return (examples[start : start + AT_ONCE] for start in range(0, len(examples), AT_ONCE))


def embed_batch(classifier: OnlineClassifier, examples: Sequence[FoundExample]) -> Batch:
    batch, read = Batch(), []
    for example in examples:
        try:
            content = example.open()
            read.append(classifier.read(content))
        except ValueError as error:
            batch.failures.append(f"{example.where}: {error}")
            continue
        batch.examples.append(example)
        if classifier.input_kind == "drawing":
            batch.photographs += looks_like_a_photograph(content)
    batch.embedded = classifier.embed(read) if read else None
    return batch


def photograph_remark(photographs: int, pictures: int) -> str | None:
    """A warning if more than one picture in ten looks like a photograph to a model of drawings."""
    if photographs * 10 <= pictures:
        return None
    return (
        f"{photographs} of {pictures} pictures look like photographs, and this model knows drawings: "
        "make the memory with --model photo"
    )
