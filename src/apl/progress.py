"""Progress bars: on stderr, since results go to stdout, and only in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(*columns: ProgressColumn, transient: bool = False, shown: bool = True) -> Progress:
    """What is done, a bar, these columns, and how long it will take; a transient one leaves nothing behind."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        redirect_stdout=False,  # results go to stdout, the bar to stderr
        transient=transient,
        disable=not (shown and (console.is_terminal or console.is_jupyter)),
    )


@contextmanager
def progress(what: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar that counts; call what it yields with the count done so far."""
    with progress_bar(MofNCompleteColumn(), shown=shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
