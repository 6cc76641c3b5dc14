"""Opening the classifier that belongs to a memory, shared by the commands that take `--memory`."""

from __future__ import annotations

from typing import Any

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.online import OnlineClassifier
from apl.store import FingerprintMismatch, NoSuchMemory, StoreError, delete_memory, list_memories


def open_classifier(
    memory: str, name: str, model: str | None, new_model: str = FOR_DRAWINGS, **parameters: Any
) -> OnlineClassifier:
    """With the model the memory was made with; a new memory gets the one named for that."""
    try:
        return OnlineClassifier.load(memory, model, name, **parameters)
    except NoSuchMemory:
        pass
    except FingerprintMismatch:
        # An attempt that failed leaves an empty memory: it may still become another model's.
        if parameters.get("read_only") or any(info.rows for info in list_memories(memory) if info.name == name):
            raise
        delete_memory(memory, name)
    except StoreError as error:
        if "does not exist" not in str(error) and "holds no memories" not in str(error):
            raise
    if parameters.get("read_only"):
        raise NoSuchMemory(f"there is no memory named {name!r} in {memory}: make one with `apl learn`")
    return OnlineClassifier.from_pretrained(model or new_model, memory=memory, name=name, **parameters)
