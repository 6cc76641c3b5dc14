"""Data sets that only experiments use."""
