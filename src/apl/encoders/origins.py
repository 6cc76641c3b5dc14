"""Where a frozen encoder's files come from, and a short name for their content."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from apl.encoders.contract import EncoderError, missing_extra

GRAPHS = Path(__file__).parent / "graphs"


def installed_folder(package: str, extra: str) -> Path:
    """The folder of an installed package, which is not imported. `extra` is the one that brings it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise missing_extra(package, extra)
    return Path(found.submodule_search_locations[0])


def checked_file(path: Path, sha256: str) -> bytes:
    """The content of a file whose hash is known; any other content is refused before it is used."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EncoderError(f"{path} cannot be read ({error.strerror}): install its package again") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EncoderError(f"{path} is not the expected file (its hash differs): install its package again")
    return content


def digest(*parts: Path | bytes | str) -> str:
    """A short name for the content of these files and values together."""
    summary = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        summary.update(len(data).to_bytes(8, "little"))
        summary.update(data)
    return summary.hexdigest()[:16]
