"""Whether labels have changed their meaning, told by surprise.

An example *contradicts* the memory if its class, which was shown often, was given less than an even share: it is not merely
confused with a similar class, as hard classes are, but found where it never was. On steady streams, also where new classes
keep coming, this is rare and its rate changes slowly. If the rate over recent examples rises far above the usual one, the
meaning of labels has drifted, until it falls again. So it has if surprise at examples of known classes has risen, which the
classifier tests on its history (`apl.classifier.drift`): it notices changes among classes that were shown a few times. (The thresholds separate steady from drifting streams in docs/log/batch.md.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RECENT, USUAL = 1 / 20, 1 / 300
"""How much one example counts in each rate."""
NOTICED, OVER = 0.25, 0.03
"""Drift is noticed if the recent rate is this much above the usual one, and over if it is no longer."""
OFTEN = 16
"""Examples of a class before its examples can contradict."""
FIRST, LONGEST = 25, 300
"""Examples before drift can be noticed, and after which the present is usual."""
MARK_EVERY = 12


@dataclass(frozen=True)
class Drift:
    """Of one memory."""

    recent: float = 0.0
    usual: float = 0.0
    examples: int = 0
    """Of classes that were shown often."""
    began: int = 0
    """The number of examples when drift was noticed; 0: there is none."""
    seen: int = 0
    """Examples since the last mark."""
    earlier: int = -1
    """Row ids that were the newest when marked: the last mark, and the one before it."""
    later: int = -1

    def learnt(self, contradicts: bool, before: int, newest: int, risen: bool = False) -> Drift:
        """After an example. `before`: examples of its class; `newest`: the newest row, by its id; `risen`: surprise has."""
        recent, usual, examples, began = self.recent, self.usual, self.examples, self.began
        seen, earlier, later = self.seen, self.earlier, self.later
        if not began:
            seen += 1
            if seen == MARK_EVERY:
                seen, earlier, later = 0, later, newest
        if began or risen or before >= OFTEN:
            examples += 1
            recent += max(RECENT, 1 / (examples + 1)) * (contradicts - recent)
            if began:
                lasts = examples - began > LONGEST
                began = 0 if lasts or recent - usual < OVER else began
                usual = recent if lasts else usual
            elif risen:
                # The first few examples say little about what is usual.
                began, usual = examples, usual if examples > FIRST else 0.0
            else:
                usual += max(USUAL, 1 / (examples + 1)) * (contradicts - usual)
                began = examples if examples > FIRST and recent - usual > NOTICED else 0
        return Drift(recent, usual, examples, began, seen, earlier, later)

    @staticmethod
    def from_dict(kept: Any) -> Drift:
        empty = Drift()
        if kept is None:
            return empty
        if not isinstance(kept, dict) or set(kept) != set(vars(empty)):
            raise ValueError("what is known about drift in the memory is damaged: numbers are missing")
        for name, value in kept.items():
            whole = isinstance(getattr(empty, name), int)
            kinds = int if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not -1 <= value < 2**63:
                raise ValueError(f"what is known about drift in the memory is damaged: bad number in {name!r}")
        return Drift(**kept)
