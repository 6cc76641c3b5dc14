"""Weights on disk, for torch: safetensors, never pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from apl.checkpoint import CheckpointError, find_model, read_description, to_json, write_json
from apl.durable_file import replace_durably

RETIRED = ("labels.score.bias",)
"""Ends of the names of parameters that earlier versions had and that never had an effect."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write all or nothing: the file appears under its name only when complete."""
    part = path.with_name(path.name + ".part")
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, part)
    replace_durably(part, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}); restore it or train again"
        ) from None


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], whose: str) -> None:
    """Load weights, naming the first difference when they belong to another architecture."""
    expected = module.state_dict()
    for name in expected:
        if name not in tensors:
            raise CheckpointError(f"{whose} is of another architecture: it has no tensor {name!r}")
        if tensors[name].shape != expected[name].shape:
            found, wanted = list(tensors[name].shape), list(expected[name].shape)
            raise CheckpointError(f"{whose} is of another architecture: {name!r} is {found}, expected {wanted}")
    extra = {name for name in tensors if not name.endswith(RETIRED)} - set(expected)
    if extra:
        raise CheckpointError(f"{whose} is of another architecture: unexpected tensor {min(extra)!r}")
    module.load_state_dict({name: tensors[name].to(t.dtype) for name, t in expected.items()})


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of a model, those of an encoder it shares with another model included."""
    described, tensors = read_description(directory), read_tensors(directory / "model.safetensors")
    shared = described.get("encoder")
    if shared is None:
        return tensors
    whole = read_weights(find_model(shared))
    encoder = below("encoder.", whole) or whole  # of a learner, or an encoder saved alone
    if tensors_hash(encoder) != described.get("encoder_hash"):
        raise CheckpointError(
            f"{directory} was trained with another encoder than {shared!r} holds now: train it again "
            f"(apl train … --encoder {shared})"
        )
    return tensors | {f"encoder.{name}": t for name, t in encoder.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one part of a module, under the names they have in that part."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Identifies weights, be they saved in full or half precision."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().half().numpy().tobytes())
    return digest.hexdigest()[:16]


def save_model(
    directory: Path,
    module: nn.Module,
    config: Any,
    provenance: Mapping[str, Any],
    half: bool = True,
    encoder: str | None = None,
) -> None:
    """Save weights (as fp16 by default), configuration and where they came from.

    With the name of a bundled model as `encoder`, the encoder's weights stay there and are not saved again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors, shared = module.state_dict(), {}
    if encoder is not None:
        shared = {"encoder": encoder, "encoder_hash": tensors_hash(below("encoder.", tensors))}
        tensors = {n: t for n, t in tensors.items() if not n.startswith("encoder.")}
    if half:
        tensors = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    write_tensors(directory / "model.safetensors", tensors)
    write_json(directory / "model.json", {"config": to_json(config), **shared, "provenance": dict(provenance)})
