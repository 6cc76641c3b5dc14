"""`apl completion`: what a shell completes after `apl`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from apl.cli import COMMANDS


@dataclass
class Command:
    """Print a completion script. In ~/.bashrc: source <(apl completion bash); in ~/.zshrc likewise with zsh."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional] = "bash"
    """Which shell it is for."""

    def run(self) -> None:
        commands = {name: importlib.import_module(f"apl.cli.{name}").Command for name in COMMANDS}
        config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
        arguments = ["--tyro-print-completion", self.shell]
        tyro.extras.subcommand_cli_from_dict(commands, prog="apl", args=arguments, config=config)
