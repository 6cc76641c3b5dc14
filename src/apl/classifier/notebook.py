"""For notebooks: answers as small HTML tables, and bars for what takes long."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeVar

Item = TypeVar("Item")
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
    return f"<div>{escape(caption)}</div><table><tr>{head}</tr>{body}</table>"


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


def is_shown(progress: bool | None) -> bool:
    """True if a bar was asked for; if nothing was said, in a notebook."""
    if progress is not None:
        return progress
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def counted(items: Sequence[Item], what: str, shown: bool, total: int) -> Iterator[Item]:
    """The items, with a bar if it is `shown`; `total`: examples in all of them."""
    if not shown:
        yield from items
        return
    from apl.progress import progress

    with progress(what, total) as done:
        for number, item in enumerate(items, 1):
            yield item
            done(total * number // len(items))
