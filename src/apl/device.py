"""Where networks compute: `auto` is the best device available; a named device that is not available is an error."""

from __future__ import annotations

import os

import torch

from apl.config import DeviceName

CPU = torch.device("cpu")


def find_device(name: DeviceName = "auto") -> torch.device:
    """The device of this process; under torchrun each process of a machine has a GPU of its own."""
    there: dict[DeviceName, bool] = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind in there if there[kind])
    if not there[name]:
        others = ", ".join(kind for kind, found in there.items() if found)
        raise ValueError(f"there is no {name} device here that torch can use: choose --device auto or {others}")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)
