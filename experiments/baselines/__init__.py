"""Simple methods to compare with, on the same embeddings, and the ways in which every method is measured."""
