"""Answers as small HTML tables, for notebooks."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape

PNG, JPEG = b"\x89PNG", b"\xff\xd8"
PICTURE_PIXELS = 64
TEXT_SHOWN = 200


def html_table(rows: Iterable[Mapping[str, object]], caption: str = "") -> str:
    """One line per row; values that are markup already are `Markup`."""
    rows = list(rows)
    columns = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{_cell(row[name])}</td>" for name in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


class Markup(str):
    """Text that is HTML already."""


def content(payload: bytes | None) -> Markup:
    """The picture or the text that was kept with a row."""
    if payload is None:
        return Markup("")
    if payload.startswith((PNG, JPEG)):
        kind = "png" if payload.startswith(PNG) else "jpeg"
        encoded = base64.b64encode(payload).decode()
        return Markup(f'<img height="{PICTURE_PIXELS}" src="data:image/{kind};base64,{encoded}">')
    return Markup(escape(payload.decode(errors="replace")[:TEXT_SHOWN]))


def _cell(value: object) -> str:
    if isinstance(value, Markup):
        return value
    return escape(f"{value:.3g}" if isinstance(value, float) else str(value))
