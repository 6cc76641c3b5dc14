"""Python where torch cannot be imported: what everyday users have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "sklearn", "matplotlib"):
            raise ModuleNotFoundError(name, name=name.partition(".")[0])
sys.meta_path.insert(0, Absent())
"""
APL = "from apl.cli import main; sys.exit(main())"
"""The command line, as code."""


def without_torch(code: str, *arguments: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-c", WITHOUT_TORCH + code, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert said.returncode == 0, said.stderr
    return said.stdout
