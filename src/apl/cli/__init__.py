"""The command line: `apl COMMAND …`. Results go to stdout, progress to stderr.

Each command is a module of this package with a dataclass `Command` (its fields are the options, its
docstring the help) and a method `run()`; verbs of `apl memory` are functions. Modules are imported only when called, so
`apl --help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {
    "learn": "learn folders of pictures, one per class, or a table of texts",
    "predict": "name what is on pictures, or what texts are about",
    "explain": "show the stored examples behind an answer",
    "suggest": "name the pictures or texts that are most worth a label",
    "forget": "forget a class, a row or a source",
    "memory": "list, show, review, export, import, merge, back up, verify, compact or re-embed memories",
    "models": "list models and encoders, and what each needs",
    "serve": "a page to teach it in the browser, and the same over HTTP",
    "demo": "watch it learn 20 invented characters",
    "train": "train an encoder or a learner from a named preset",
    "export": "write a trained model as ONNX graphs, for use without torch",
    "evaluate": "measure a model: fixed context or online",
    "completion": "print the completion script for bash, zsh or fish",
}
FIRST = """\
It learns your classes from a few examples of each, and keeps only what surprised it.

Watch it learn 20 characters that nobody has ever seen:
  apl demo

Teach it in the browser, by drawing:
  apl serve

Learn pictures from folders, one folder per class (photos/rose/1.jpg, photos/tulip/2.jpg, …):
  apl learn photos/ --model photo --memory garden.apl

Name what is on a new picture:
  apl predict new.jpg --memory garden.apl

See which stored examples the answer rests on:
  apl explain new.jpg --memory garden.apl

`apl --help` lists all commands, `apl COMMAND --help` the options of one."""
"""What `apl` alone prints."""
NEEDED_FOR_TRAINING = ("torch", "einops", "matplotlib", "scipy", "sklearn", "onnx", "onnxscript")
INSTALL_TRAINING = "pip install 'apl-memory[train]'"


def main(argv: list[str] | None = None) -> int:
    try:
        status = called(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `apl … | head` has read enough; the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def called(arguments: list[str]) -> int:
    """Run the command that these words name; returns the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # terminals that know few letters get an answer all the same
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage() if arguments else FIRST)
        return 0
    name, *rest = arguments
    if name == "--version":
        from importlib.metadata import version

        print(f"apl {version('apl-memory')}")
        return 0
    if name not in COMMANDS:
        print(f"apl: no command {name!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return run_command(f"apl {name}", f"apl.cli.{name}", rest)


def usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "usage: apl COMMAND [options]\n\nFew-shot learning with a surprise-based memory.\n\n"
        f"{commands}\n\n`apl COMMAND --help` lists its options."
    )


def run_command(program: str, module: str, arguments: list[str]) -> int:
    """Parse `arguments` into the dataclass `Command` of a module and run it. A user's mistake is one sentence."""
    try:
        import tyro

        command = importlib.import_module(module).Command
        config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
        parsed = tyro.cli(command, args=arguments, prog=program, config=config)
        return parsed.run() or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name not in NEEDED_FOR_TRAINING:
            raise
        print(f"{program}: this needs {error.name}, which is not installed: {INSTALL_TRAINING}", file=sys.stderr)
        return 2
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        # APL_DEBUG=1 shows a developer where it came from.
        if os.environ.get("APL_DEBUG"):
            raise
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(f"{program}: {told}", file=sys.stderr)
        return 2
