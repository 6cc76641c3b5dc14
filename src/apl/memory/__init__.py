"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key."""

from apl.memory.ram import COUNT, Column, Memory, MemoryFull, Neighbours, RamMemory, Rows

__all__ = ["COUNT", "Column", "Memory", "MemoryFull", "Neighbours", "RamMemory", "Rows"]
