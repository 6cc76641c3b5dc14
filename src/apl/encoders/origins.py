"""Where a frozen encoder's files come from, and a short name for what they say."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from apl.encoders.contract import MissingExtraError

GRAPHS = Path(__file__).parent / "graphs"


def installed_folder(package: str, needs: str) -> Path:
    """Where a registry package's files lie; it is not imported. `needs` is the command that would install it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(f"the package {package} is not installed: {needs}")
    return Path(found.submodule_search_locations[0])


def digest(*parts: Path | bytes | str) -> str:
    """A short name for what these files and values say together."""
    summary = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        summary.update(len(data).to_bytes(8, "little"))
        summary.update(data)
    return summary.hexdigest()[:16]
