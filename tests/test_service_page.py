"""The page's files, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import apl.service

PAGE = Path(apl.service.__file__).parent / "page"
TEXT_ON_GROUND = [
    ("ink", "paper"),
    ("ink", "card"),
    ("soft", "paper"),
    ("soft", "card"),
    ("soft", "accent-soft"),
    ("soft", "line"),
    ("accent", "card"),
    ("rows", "card"),
    ("bad", "card"),
    ("on-accent", "accent"),
]


def colours() -> dict[str, dict[str, str]]:
    """The custom colours of both schemes, the first for light."""
    blocks = re.findall(r":root \{(.*?)\}", (PAGE / "style.css").read_text(), re.S)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in blocks[:2])
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT_ON_GROUND)
def test_text_stands_out_from_its_ground(scheme: str, text: str, ground: str) -> None:
    named = colours()[scheme]
    one, other = sorted((luminance(named[text]), luminance(named[ground])))
    assert (other + 0.05) / (one + 0.05) >= 4.5


def test_every_file_of_the_page_is_used_and_every_id_that_is_looked_for_is_there() -> None:
    html = (PAGE / "index.html").read_text() + (PAGE / "docs.html").read_text()
    scripts = {file.name: file.read_text() for file in PAGE.glob("*.js")}
    ids = set(re.findall(r'id="([\w-]+)"', html))
    for name, text in scripts.items():
        assert set(re.findall(r'find\("([\w-]+)"\)', text)) <= ids, name
        imported = set(re.findall(r'from "\./([\w.]+)"', text))
        assert imported <= set(scripts), name
    everything = html + "".join(scripts.values())
    assert all(name in everything for name in scripts)
