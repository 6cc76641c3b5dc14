"""The learner for everyday use: any labels at any time, and a memory that lasts.

`online.py` is its face, the scikit-learn and everyday verbs; `river.py` the same for river.
"""
