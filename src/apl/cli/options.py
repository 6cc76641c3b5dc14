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
NumberOption = Annotated[int, arg(metavar="N", aliases=["-n"], help="How many to name.")]
AskedExamples = Annotated[
    list[str],
    tyro.conf.Positional,
    arg(
        metavar="IMAGE|DIR|TEXT|TABLE|- …",
        help="Pictures or directories of pictures; texts or tables of texts (.csv, .tsv, .jsonl).",
    ),
]


def check_number(number: int) -> None:
    if number < 1:
        raise ValueError(f"-n must be at least 1, got {number}")


@dataclass(kw_only=True)
class WithClassifier:
    """What commands that learn or ask have in common: a memory and the model that reads its examples."""

    memory: MemoryOption
    name: NameOption = "default"
    model: ModelOption = None
    ink: InkOption = "auto"
    json: JsonOption = False

    def open(self, new_model: str = FOR_DRAWINGS, **parameters: Any) -> OnlineClassifier:
        """The classifier of the memory, with the model it was made with; a new memory has `new_model`."""
        from apl.classifier.online import OnlineClassifier
        from apl.store import FingerprintMismatch, NoSuchMemory, delete_memory, find_memory

        parameters["ink"] = self.ink
        read_only = parameters.get("read_only", False)
        there = find_memory(self.memory, self.name)
        if there is None and read_only:
            named = "" if self.name == "default" else f" named {self.name!r}"
            raise NoSuchMemory(f"there is no memory{named} in {self.memory}: make one with `apl learn`")
        if there is not None:
            width = {} if self.model is None else {"width": None}  # the recorded width may be another model's
            try:
                classifier = OnlineClassifier.load(self.memory, self.model, self.name, **width, **parameters)
                if classifier.input_kind == "vector":
                    classifier.close()
                    told = "holds vectors, which only Python can learn and ask about: OnlineClassifier.load"
                    raise ValueError(f"{self.memory} {told}")
                return classifier
            except FingerprintMismatch:
                if there.rows or read_only:
                    raise ValueError(self._another_model()) from None
                delete_memory(self.memory, self.name)  # An attempt that failed left it empty.
        return OnlineClassifier.from_pretrained(
            self.model or new_model, memory=self.memory, name=self.name, **parameters
        )

    def _another_model(self) -> str:
        from apl.store import open_store

        with open_store(self.memory, self.name, read_only=True) as store:
            recorded = store.setting("classifier") or {}
            made_by = recorded.get("model") or recorded.get("encoder") or store.fingerprint
        return (
            f"{self.memory} was made with the model {made_by}, not with {self.model or 'the one that is installed'}: "
            "leave --model out, or make its keys again with `apl memory reembed`"
        )
