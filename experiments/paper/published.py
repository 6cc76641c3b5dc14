"""Table 1 of the paper: Omniglot, 1 or 5 stored examples of each of 5, 20, 423 or 1000 classes."""

from __future__ import annotations

CELLS = tuple((way, shot) for way in (5, 20, 423, 1000) for shot in (1, 5))

PAPER = {
    "Matching nets": {(5, 1): 98.1, (5, 5): 98.9, (20, 1): 93.8, (20, 5): 98.5},
    "CNP": {(5, 1): 95.3, (5, 5): 98.5, (20, 1): 89.9, (20, 5): 96.8},
    "MANN": {(5, 1): 82.2, (5, 5): 94.9},
    "MAML": {(5, 1): 98.7, (5, 5): 99.9, (20, 1): 95.8, (20, 5): 98.9},
    "SNAIL": {(5, 1): 99.07, (5, 5): 99.78, (20, 1): 97.64, (20, 5): 99.35},
    "APL (paper)": {
        (5, 1): 97.9,
        (5, 5): 99.9,
        (20, 1): 97.2,
        (20, 5): 97.6,
        (423, 1): 73.5,
        (423, 5): 88.0,
        (1000, 1): 68.9,
        (1000, 5): 78.9,
    },
}
"""The published numbers, in percent."""

VINYALS = {
    "TapNet (Yoon et al. 2019)": {(20, 1): 98.07, (20, 5): 99.49},
    "MAML++ (Antoniou et al. 2019)": {(20, 1): 97.65, (20, 5): 99.33},
}
"""On the split of Vinyals et al., with rotated characters as further classes of training."""
