"""`apl models`: the models and encoders that --model takes, and what each needs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from apl.cli.terminal import table


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    name: str
    reads: str
    what: str
    needs: str | None
    """The command that installs what is missing; None if it is ready."""


@dataclass
class Command:
    """List the models in the package and the encoders by name: what each reads, and what must be installed for it."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        entries = known_models()
        if self.json:
            print(json.dumps([asdict(entry) for entry in entries], indent=1))
            return
        rows = [(entry.name, entry.reads, entry.what, entry.needs or "ready") for entry in entries]
        print(table(("model", "reads", "what", "needs"), rows))
        print(
            "\nUse one with --model NAME, or OnlineClassifier.from_pretrained(NAME). Any .onnx file: docs/ENCODERS.md."
        )


def known_models() -> list[Entry]:
    """Models with a memory of drawings first, then encoders, then libraries of encoders."""
    from apl.checkpoint import BUNDLED
    from apl.encoders import LIBRARIES, NAMED, plugins

    bundled = sorted(path.parent.name for path in BUNDLED.glob("*/model.json"))
    entries = [Entry(name, "drawings", "in the package", None) for name in bundled]
    for suffix, offers in (("", NAMED), (":MODEL", LIBRARIES)):
        for offer in offers.values():
            needs = None if offer.installed else offer.install
            entries.append(Entry(offer.name + suffix, f"{offer.reads}s", offer.what, needs))
    entries += [
        Entry(f"{name}:MODEL", "its own", f"plugged in: {point.value}", None) for name, point in plugins().items()
    ]
    return entries
