"""Embed pictures on a Ray cluster, learn them in one process: `python examples/learn_on_ray.py DIRECTORY MEMORY [ADDRESS]`.

DIRECTORY holds one folder per class, at the same path on every node. ADDRESS is that of the cluster; `local` starts one here. The
memory is the same, row for row, as without Ray. Needs `pip install 'apl-memory[ray]'` on every node.
"""

from __future__ import annotations

import sys

from apl.cli import main as apl


def main(arguments: list[str]) -> int:
    directory, memory, *address = arguments
    return apl(["learn", directory, "--model", "drawings", "--memory", memory, "--ray", *(address or ["auto"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
