"""Options that several commands share, with their help."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from apl.checkpoint import FOR_DRAWINGS

arg = tyro.conf.arg

MemoryOption = Annotated[
    str, arg(metavar="MEMORY", help="Where the memory lives: a path such as letters.apl, or a URL.")
]
MemoryPlace = Annotated[
    str,
    tyro.conf.Positional,
    arg(metavar="MEMORY", help="Where the memory lives: a path such as letters.apl, or a URL."),
]
NameOption = Annotated[str, arg(metavar="NAME", help="The memory's name there; a file or a server may hold several.")]
ModelOption = Annotated[
    str | None,
    arg(
        metavar="MODEL",
        help="A bundled model's name, or a saved model's directory. By default the one the memory was made with; "
        f"for a new memory {FOR_DRAWINGS}.",
    ),
]
TrainedModel = Annotated[str, arg(metavar="MODEL", help="A bundled model's name, or the directory of a saved one.")]
InkOption = Annotated[
    Literal["auto", "dark", "light"], arg(help="Whether drawings are dark or light; auto finds out for each picture.")
]
JsonOption = Annotated[bool, arg(help="Print JSON, for programs.")]
