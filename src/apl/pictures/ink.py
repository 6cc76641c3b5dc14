"""Ink in a grey picture: how much of it each pixel holds, independent of light, paper and pen."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

FAINTEST_INK = 8 / 255
"""With less contrast than this there is nothing to see."""
UNEVEN = 0.02
"""A border is evenly lit if the middle half of its pixels lies this close to its median."""
STROKE = 0.08
"""Half the width, as a share of the sheet, below which a dark or light thing is a stroke rather than a surface."""
CLEARLY_DRAWN = 0.1
"""With a smaller share between ground and ink a picture is a drawing, without a closer look."""
SHADED = 0.08
"""A border whose middle four fifths differ by more than this, after its slope, shows a shadow, or what lies beside the sheet."""
COARSEST_SHADED = 48
"""In a smaller picture strokes are as wide as shadows."""


def ink_amount(grey: Float[np.ndarray, "height width"], ink: str) -> Float[np.ndarray, "height width"]:
    """How much ink there is in each pixel. The ground is what most of the border shows; ink departs from it."""
    ground = ground_level(grey)
    darker, lighter = np.maximum(ground - grey, 0), np.maximum(grey - ground, 0)
    if max(grey.shape) >= COARSEST_SHADED and _spread(_border(grey - ground)) > SHADED:
        weaker, stronger = sorted((float(darker.max()), float(lighter.max())))
        two_levels = weaker < 0.3 * stronger and is_clearly_drawn(np.maximum(darker, lighter))
        strokes = None if two_levels else _strokes(grey, ink)
        if strokes is not None:
            return strokes
    # Cubes: ink is strong and narrow, a sheet that is brighter in the middle is weak and wide.
    dark = ink == "dark" or (ink == "auto" and (darker * darker * darker).sum() >= (lighter * lighter * lighter).sum())
    amount = darker if dark else lighter
    strongest = float(amount.max())
    if strongest < FAINTEST_INK:
        looked_for = "" if ink == "auto" else f" (looking for {ink} ink)"
        raise ValueError(f"the image is blank: nothing stands out from its ground{looked_for}")
    return amount / strongest


def _strokes(grey: Float[np.ndarray, "height width"], ink: str) -> Float[np.ndarray, "height width"] | None:
    """Ink relative to its surroundings, for sheets with shadows. None if there is no shadow, or if a surface is as dark as the ink:
    then the surface counts as ink too."""
    reach = max(2, round(max(grey.shape) * STROKE))
    found = []
    for one, seen in (("dark", grey), ("light", 1 - grey)):
        if ink in ("auto", one):
            around = _without_strokes(seen, reach)
            narrow = around - seen
            narrow = np.maximum(narrow - np.median(narrow), 0)
            found.append((float(np.quantile(narrow, 0.995)), narrow, around, seen))
    strongest, narrow, around, seen = max(found, key=lambda one: one[0])
    if strongest < FAINTEST_INK or _spread(_border(around), 0.05) < 0.2 * strongest:
        return None
    inky = seen < seen.min() + 0.25 * strongest
    if (narrow[inky] < 0.3 * strongest).mean() > 0.1:
        return None
    amount: np.ndarray = np.minimum(narrow / strongest, 1)
    return amount


def is_clearly_drawn(away: Float[np.ndarray, "height width"]) -> bool:
    """Whether hardly anything lies between the ground and the strongest ink."""
    strongest = float(away.max())
    return float(((away > 0.15 * strongest) & (away < 0.85 * strongest)).mean()) < CLEARLY_DRAWN


def _border(grey: Float[np.ndarray, "height width"]) -> Float[np.ndarray, " pixel"]:
    edge = max(1, min(grey.shape) // 16)
    return np.concatenate((grey[:edge], grey[-edge:], grey[:, :edge], grey[:, -edge:]), None)


def _spread(values: Float[np.ndarray, " pixel"], left_out: float = 0.1) -> float:
    """How far apart they are, without the largest and the smallest."""
    values, outside = np.sort(values), round(len(values) * left_out)
    return float(values[-1 - outside] - values[outside])


def ground_level(grey: Float[np.ndarray, "height width"]) -> float | Float[np.ndarray, "height width"]:
    """What the sheet shows where nothing is drawn: one value, the median of its border.

    A photographed sheet is brighter towards the light: where a plane describes the border far better, it is the plane.
    """
    edge = max(1, min(grey.shape) // 16)
    border = np.sort(_border(grey))
    count = len(border)
    level = float((border[(count - 1) // 2] + border[count // 2]) / 2)
    spread = float(border[3 * count // 4] - border[count // 4]) / 2
    if spread < UNEVEN:
        return level
    height, width = (np.linspace(-1, 1, side, dtype=np.float32) for side in grey.shape)
    places = np.stack([np.ones(grey.shape, np.float32), *np.meshgrid(height, width, indexing="ij")], -1)
    inside = np.zeros(grey.shape, bool)
    inside[edge:-edge, edge:-edge] = True
    there, shown = places[~inside], grey[~inside]
    near = np.ones(len(shown), bool)
    for _ in range(3):  # what lies far from the plane is ink that reaches the border
        plane = np.linalg.lstsq(there[near], shown[near], rcond=None)[0]
        off = np.abs(shown - there @ plane)
        near = off <= 3 * np.median(off) + UNEVEN
    # Ink along the border makes two levels, light makes a slope.
    bright = shown > shown.mean()
    levels = np.where(bright, shown[bright].mean(), shown[~bright].mean())
    tolerable = min(spread / 3, float(np.median(np.abs(shown - levels))))
    return places @ plane if np.median(off) < tolerable else level


def halftones(grey: Float[np.ndarray, "height width"]) -> float:
    """The share of pixels with dark ink of half strength, wherever the ground lies; 1 if there is no dark ink."""
    reach = max(2, round(max(grey.shape) * STROKE))
    ink = _without_strokes(grey, reach) - grey
    strongest = max(float(np.quantile(ink, 0.995)), float(ink.max()) / 2)
    if strongest < FAINTEST_INK:
        return 1.0
    return float(((ink > 0.15 * strongest) & (ink < 0.75 * strongest)).mean())


def _without_strokes(grey: Float[np.ndarray, "height width"], reach: int) -> Float[np.ndarray, "height width"]:
    """What the picture would show without dark things narrower than twice the reach."""
    return -_brightest(-_brightest(grey, reach), reach)


def _brightest(grey: Float[np.ndarray, "height width"], reach: int) -> Float[np.ndarray, "height width"]:
    """The brightest pixel within reach of each."""
    for _ in range(2):
        # Along columns, of windows twice as long each time; then the same along rows.
        windows, length = np.pad(grey, ((reach, reach), (0, 0)), "edge"), 1
        while length < 2 * reach + 1:
            step = min(length, 2 * reach + 1 - length)
            windows, length = np.maximum(windows[:-step], windows[step:]), length + step
        grey = windows.T
    return grey
