"""`apl models`: the models and encoders that --model takes, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass

from apl.cli.options import JsonOption
from apl.cli.terminal import print_json, table


@dataclass
class Command:
    """List the models in the package and the encoders by name: what each reads, and what must be installed for it."""

    json: JsonOption = False

    def run(self) -> None:
        entries = known_models()
        if self.json:
            print_json(entries)
            return
        rows = [(*list(entry.values())[:3], entry["needs"] or "ready") for entry in entries]
        print(table(("model", "reads", "what", "needs"), rows))
        print(
            "\nUse one with --model NAME, or OnlineClassifier.from_pretrained(NAME). Any .onnx file: docs/ENCODERS.md."
        )


def known_models() -> list[dict[str, str | None]]:
    """Models with a memory of drawings first, then encoders, then libraries of encoders.

    `needs` is the command that installs what is missing; None if the model is ready.
    """
    from apl.checkpoint import BUNDLED
    from apl.encoders import LIBRARIES, NAMED, plugins

    bundled = sorted(path.parent.name for path in BUNDLED.glob("*/model.json"))
    lines: list[tuple[str, str, str, str | None]] = [(name, "drawings", "in the package", None) for name in bundled]
    for suffix, offers in (("", NAMED), (":MODEL", LIBRARIES)):
        for name, offer in offers.items():
            lines.append((name + suffix, f"{offer.reads}s", offer.what, None if offer.installed else offer.install))
    lines += [(f"{name}:MODEL", "its own", f"plugged in: {point.value}", None) for name, point in plugins().items()]
    return [dict(zip(("name", "reads", "what", "needs"), line, strict=True)) for line in lines]
