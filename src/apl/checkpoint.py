"""Weights, configuration and provenance on disk: safetensors and JSON, never pickle.

A model is a directory with `model.safetensors` and `model.json`. The bundled ones live in `apl/weights/NAME`, those
that only the paper's experiments need in `models/NAME` of a checkout; both are loaded by name. A model whose
model.json names another one under "encoder" holds its decoder alone: the encoder is the other one's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from apl.durable_file import replace_durably

BUNDLED = Path(__file__).parent / "weights"
IN_CHECKOUT = Path(__file__).parents[2] / "models"
"""Models that only `apl reproduce` needs: not part of the wheel."""

RETIRED = ("labels.score.bias",)
"""Ends of the names of parameters that earlier versions had and that never had an effect."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, or of another architecture."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write all or nothing: the file appears under its name only when complete."""
    part = path.with_name(path.name + ".part")
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, part)
    replace_durably(part, path)


def write_json(path: Path, value: Any) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
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


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); restore it or train again") from None


def to_json(config: Any) -> Any:
    """A frozen dataclass as JSON; nested dataclasses carry their type's name, so unions can be read back."""
    if dataclasses.is_dataclass(config):
        fields = {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"type": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    return config


def from_json(kind: Any, value: Any) -> Any:
    """The inverse of `to_json`, for the dataclass (or union of dataclasses) expected there."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        options = typing.get_args(kind)
        if value is None:
            return None
        named = [o for o in options if isinstance(value, dict) and o.__name__ == value.get("type")]
        plain = [o for o in options if o is not type(None) and not dataclasses.is_dataclass(o)]
        if not named and not plain:
            raise CheckpointError(f"expected one of {', '.join(o.__name__ for o in options)}, found {value!r}")
        return from_json((named or plain)[0], value)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict) or value.get("type") != kind.__name__:
            raise CheckpointError(f"expected a {kind.__name__}, found {value!r}")
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints) - {"type"}
        if unknown:
            raise CheckpointError(
                f"{kind.__name__} has no field {min(unknown)!r}: the checkpoint is of another version"
            )
        needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
        if needed - set(value):
            raise CheckpointError(f"a {kind.__name__} needs the field {min(needed - set(value))!r}, which is missing")
        return kind(**{name: from_json(hints[name], v) for name, v in value.items() if name != "type"})
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise CheckpointError(f"expected a list, found {value!r}")
        item = typing.get_args(kind)[0]
        return tuple(from_json(item, v) for v in value)
    if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
        raise CheckpointError(f"expected one of {', '.join(map(str, typing.get_args(kind)))}, found {value!r}")
    plain = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(kind)
    if plain is not None and type(value) not in plain:
        raise CheckpointError(f"expected a value of type {kind.__name__}, found {value!r}")
    return value


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


def find_model(name_or_dir: str | Path) -> Path:
    """The directory of a bundled model by name, or of any model by path."""
    for candidate in (BUNDLED / str(name_or_dir), IN_CHECKOUT / str(name_or_dir), Path(name_or_dir)):
        if (candidate / "model.json").is_file():
            return candidate
    names = sorted(p.parent.name for place in (BUNDLED, IN_CHECKOUT) for p in place.glob("*/model.json"))
    raise CheckpointError(
        f"no model {str(name_or_dir)!r}: give the name of a bundled one ({', '.join(names) or 'none yet'}) "
        "or a directory with model.json and model.safetensors"
    )


def is_named(name_or_dir: str | Path | None) -> bool:
    """Whether this is the name of a model that comes with the project, and not a place on this machine."""
    name = str(name_or_dir)
    return Path(name).name == name and any((place / name / "model.json").is_file() for place in (BUNDLED, IN_CHECKOUT))


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of a model, those of an encoder it shares with another model included."""
    described, tensors = read_description(directory), read_tensors(directory / "model.safetensors")
    shared = described.get("encoder")
    if shared is None:
        return tensors
    encoder = below("encoder.", read_weights(find_model(shared)))
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


def read_description(directory: Path) -> dict[str, Any]:
    """What model.json says: the model's configuration under "config", where it came from under "provenance"."""
    described = read_json(directory / "model.json")
    if not isinstance(described, dict) or not isinstance(described.get("config"), dict):
        raise CheckpointError(f'{directory / "model.json"} does not describe a model: it has no "config"')
    return {"provenance": {}, **described}


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


def current_commit() -> str:
    """The commit of the source tree, with a mark if it was changed since; "unknown" outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
