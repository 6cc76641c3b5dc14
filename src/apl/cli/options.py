"""Options that several commands share, with their help; and the classifier that `--memory` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from apl.checkpoint import FOR_DRAWINGS

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier

arg = tyro.conf.arg

MemoryOption = Annotated[
    str, arg(metavar="MEMORY", help="Where the memory lives: a path such as letters.apl, or a URL.")
]
MemoryPlace = Annotated[MemoryOption, tyro.conf.Positional]
NameOption = Annotated[str, arg(metavar="NAME", help="The memory's name there; a file or a server may hold several.")]
ModelOption = Annotated[
    str | None,
    arg(
        metavar="MODEL",
        help="A bundled model's name, or a saved model's directory. By default the one the memory was made with; "
        f"for a new memory {FOR_DRAWINGS}.",
    ),
]
TrainedModel = Annotated[str, arg(metavar="MODEL", help="A bundled model's name, or the directory of a saved one.")]
InkOption = Annotated[
    Literal["auto", "dark", "light"], arg(help="Whether drawings are dark or light; auto decides for each picture.")
]
JsonOption = Annotated[bool, arg(help="Print JSON, for programs.")]


@dataclass(kw_only=True)
class WithClassifier:
    """What commands that learn or ask have in common: a memory and the model that reads its examples."""

    memory: MemoryOption
    name: NameOption = "default"
    model: ModelOption = None
    ink: InkOption = "auto"
    json: JsonOption = False

    def open(self, new_model: str = FOR_DRAWINGS, **parameters: Any) -> OnlineClassifier:
        return open_classifier(self.memory, self.name, self.model, new_model, ink=self.ink, **parameters)


def open_classifier(
    memory: str, name: str, model: str | None, new_model: str = FOR_DRAWINGS, **parameters: Any
) -> OnlineClassifier:
    """The classifier of a memory of pictures or texts, with the model the memory was made with; a new one has `new_model`."""
    from apl.classifier.online import OnlineClassifier
    from apl.store import FingerprintMismatch, NoSuchMemory, delete_memory, find_memory

    read_only = parameters.get("read_only", False)
    there = find_memory(memory, name)
    if there is None and read_only:
        raise NoSuchMemory(f"there is no memory named {name!r} in {memory}: make one with `apl learn`")
    if there is not None:
        width = {} if model is None else {"width": None}  # the recorded width is that of another model, perhaps
        try:
            classifier = OnlineClassifier.load(memory, model, name, **width, **parameters)
            if classifier.input_kind == "vector":
                classifier.close()
                raise ValueError(
                    f"{memory} holds vectors, which only Python can learn and ask about: OnlineClassifier.load"
                )
            return classifier
        except FingerprintMismatch:
            if there.rows or read_only:
                raise ValueError(_another_model(memory, name, model)) from None
            delete_memory(memory, name)  # An attempt that failed left it empty.
    return OnlineClassifier.from_pretrained(model or new_model, memory=memory, name=name, **parameters)


def _another_model(memory: str, name: str, model: str | None) -> str:
    from apl.store import open_store

    with open_store(memory, name, read_only=True) as store:
        recorded = store.setting("classifier") or {}
        made_by = recorded.get("model") or recorded.get("encoder") or store.fingerprint
    return (
        f"{memory} was made with the model {made_by}, not with {model or 'the one that is installed'}: "
        "leave --model out, or make its keys again with `apl memory reembed`"
    )
