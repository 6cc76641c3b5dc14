"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key.

`protocol.py` is what a learner needs of a memory. Rows live in RAM (`ram.py`), in RAM and in a store (`stored.py`), or on a
server alone (`remote.py`).
"""

from apl.memory.protocol import (
    COUNT,
    LABEL,
    ClassTotals,
    Column,
    Memory,
    Neighbours,
    ReadingState,
    Rows,
)
from apl.memory.ram import RamMemory

__all__ = [
    "COUNT",
    "LABEL",
    "ClassTotals",
    "Column",
    "Memory",
    "Neighbours",
    "RamMemory",
    "ReadingState",
    "Rows",
]
