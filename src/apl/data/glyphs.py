"""Characters of invented alphabets, drawn by an invented hand: data that needs no file.

A class is a program of one to four strokes that join as in writing; a drawing is that program carried
out with a hand's inaccuracy. They stand in for Omniglot (paper, section 4.1) in the demonstration, in
tests, and wherever more characters are wanted than were ever collected.
"""

from __future__ import annotations

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from apl.data.labelled import LabelledImages
from apl.data.strokes import KINDS, POINTS, STROKES, Programs, along, choice, render, stroke_shapes

ALPHABET = 24
"""Characters that share a style."""
TOO_ALIKE = 0.85
"""Cosine between two blurred characters from which on they count as the same."""
CLEAR_OF_ITSELF = 0.8
"""Least part of a character's strokes that must not lie on top of others."""
LOOKS = 14 * 14
"""Numbers in a blurred character."""
EXTENT = 1.12
"""Height or width of a character, whichever is more, in images from -1 to 1."""
PEN = 0.75
"""Half the width of a stroke, in pixels of an image of 28."""
DRAWINGS_AT_ONCE = 1024

_LIKELIHOOD = torch.tensor([5.0, 3.0, 1.0, 3.0, 3.0, 1.5, 1.5, 0.4, 0.4])
_CORNER, _DOT = KINDS.index("corner"), KINDS.index("dot")


def draw_glyphs(classes: int, drawings: int, generator: torch.Generator, size: int = 28) -> LabelledImages:
    """Invent that many characters and draw each that many times; the generator decides everything."""
    if classes < 1 or drawings < 1:
        raise ValueError(f"classes and drawings must be at least 1, not {classes} and {drawings}")
    if size < 8:
        raise ValueError(f"size must be at least 8 pixels for strokes to be told apart, not {size}")
    programs = invent(classes, generator)
    labels = torch.arange(classes).repeat_interleave(drawings)
    images = [render(*_by_hand(programs[chunk], generator, size), size) for chunk in labels.split(DRAWINGS_AT_ONCE)]
    # Another generator invents other characters, so their names must differ too.
    tag = int(torch.randint(16**6, (), generator=generator))
    names = tuple(f"invented-{tag:06x}/character{number + 1:02d}" for number in range(classes))
    return LabelledImages((torch.cat(images) * 255).round().to(torch.uint8), labels, names)


def invent(classes: int, generator: torch.Generator) -> Programs:
    """Programs of characters no two of which look alike."""
    kept: list[Programs] = []
    seen = torch.empty(0, LOOKS)
    # Short programs are few, so the larger the set the more candidates repeat one another.
    for _ in range(50):
        missing = classes - len(seen)
        if missing <= 0:
            break
        candidates = _candidates(missing + missing // 2 + ALPHABET, generator)
        images = _plain(candidates)
        clear = _clear_of_itself(candidates, images)
        # Blurred pictures as unit vectors, to be compared by their cosine.
        looks = functional.normalize(functional.avg_pool2d(images[clear], 3, 2, 1).flatten(1))
        fresh = _unlike(looks, seen)
        kept.append(candidates[clear][fresh])
        seen = torch.cat([seen, looks[fresh]])
    else:
        raise ValueError(f"could not invent {classes} characters that differ from one another: ask for fewer")
    return Programs(
        torch.cat([programs.control for programs in kept])[:classes],
        torch.cat([programs.sharp for programs in kept])[:classes],
        torch.cat([programs.present for programs in kept])[:classes],
    )


def _candidates(count: int, generator: torch.Generator) -> Programs:
    alphabets = -(-count // ALPHABET)
    style = _LIKELIHOOD * torch.exp(0.9 * torch.randn(alphabets, len(KINDS), generator=generator))
    style = style.repeat_interleave(ALPHABET, 0)[:count]
    # Anchors stand on a three by three lattice that each alphabet bends a little.
    lattice = torch.cartesian_prod(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 3))
    anchors = lattice + 0.12 * torch.randn(alphabets, 9, 2, generator=generator)
    anchors = anchors.repeat_interleave(ALPHABET, 0)[:count]

    number = 1 + torch.multinomial(torch.tensor([2.0, 4.0, 3.0, 1.5]), count, True, generator=generator)
    present = torch.arange(STROKES) < number[:, None]
    control = torch.zeros(count, STROKES, POINTS, 2)
    sharp = torch.zeros(count, STROKES, dtype=torch.bool)
    for stroke in range(STROKES):
        weights = style.clone()
        if stroke == 0:
            weights[:, _DOT] = 0
        kind = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        earlier = rearrange(control[:, :stroke, ::3], "glyph stroke point xy -> glyph (stroke point) xy")
        start = _place(anchors, earlier, 0.75 * (kind != _DOT), None, generator)
        end = _place(anchors, earlier, torch.full((count,), 0.25), start, generator)
        new = stroke_shapes(start, end, anchors, generator)[kind, torch.arange(count)]
        is_sharp = kind == _CORNER
        if stroke:
            # Writing repeats itself: some strokes are the one before, moved aside.
            again = torch.rand(count, generator=generator) < 0.15
            aside = choice(anchors, generator)
            aside = 0.5 * aside / aside.norm(dim=-1, keepdim=True).clamp(min=0.3)
            new = torch.where(again[:, None, None], control[:, stroke - 1] + aside[:, None], new)
            is_sharp = torch.where(again, sharp[:, stroke - 1], is_sharp)
        control[:, stroke] = new
        sharp[:, stroke] = is_sharp
    return Programs(_fitted(control, present), sharp, present)


def _place(
    anchors: Float[Tensor, "glyph anchor 2"],
    earlier: Float[Tensor, "glyph point 2"],
    joined: Float[Tensor, " glyph"],
    away_from: Float[Tensor, "glyph 2"] | None,
    generator: torch.Generator,
) -> Float[Tensor, "glyph 2"]:
    """An anchor or, with probability `joined`, a point of an earlier stroke; at some distance if asked."""
    count = len(anchors)
    best = choice(anchors, generator)
    if earlier.shape[1]:
        on_stroke = torch.rand(count, generator=generator) < joined
        best = torch.where(on_stroke[:, None], choice(earlier, generator), best)
    if away_from is not None:
        far = (anchors - away_from[:, None]).norm(dim=-1) > 0.7
        other = torch.multinomial(far.float(), 1, generator=generator).squeeze(1)
        near = (best - away_from).norm(dim=-1) < 0.6
        best = torch.where(near[:, None], anchors[torch.arange(count), other], best)
    return best


def _fitted(
    control: Float[Tensor, "glyph stroke point 2"], present: Bool[Tensor, "glyph stroke"]
) -> Float[Tensor, "glyph stroke point 2"]:
    """Centred and all of one size: a hand's scale varies, so classes must differ by more than that."""
    hidden = ~present[..., None, None]
    low = control.masked_fill(hidden, math.inf).amin((1, 2), keepdim=True)
    high = control.masked_fill(hidden, -math.inf).amax((1, 2), keepdim=True)
    return (control - (low + high) / 2) / (high - low).amax(-1, keepdim=True) * EXTENT


def _plain(programs: Programs) -> Float[Tensor, "glyph 1 28 28"]:
    chunks = torch.arange(len(programs.control)).split(DRAWINGS_AT_ONCE)
    return torch.cat([render(programs[chunk], torch.full(chunk.shape, PEN), 28) for chunk in chunks])


def _clear_of_itself(programs: Programs, images: Float[Tensor, "glyph 1 28 28"]) -> Bool[Tensor, " glyph"]:
    """Characters whose strokes do not run over one another: the ink is nearly the sum of the strokes'."""
    steps = programs.control.diff(dim=2).norm(dim=-1).sum(-1)
    length_pixels = (steps * programs.present).sum(-1) * 28 / 2
    return images.sum((1, 2, 3)) > CLEAR_OF_ITSELF * 2 * PEN * length_pixels


def _unlike(looks: Float[Tensor, "glyph look"], seen: Float[Tensor, "other look"]) -> Bool[Tensor, " glyph"]:
    """Which look like nothing seen before, and like no other ahead of them."""
    numbers = torch.arange(len(looks))
    fresh = []
    for chunk in numbers.split(DRAWINGS_AT_ONCE):
        alike = (looks[chunk] @ looks.T > TOO_ALIKE) & (numbers < chunk[:, None])
        fresh.append(~(alike.any(1) | (looks[chunk] @ seen.T > TOO_ALIKE).any(1)))
    return torch.cat(fresh)


def _by_hand(programs: Programs, generator: torch.Generator, size: int) -> tuple[Programs, Float[Tensor, " glyph"]]:
    """The programs as a hand carries them out, and the half width of the pen in pixels."""
    control = programs.control
    count = len(control)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    # Each stroke strays as a whole, along its way, and past or short of its ends.
    drift = _along_strokes(normal(STROKES, 4, 2))
    control = control + 0.025 * normal(STROKES, 1, 2) + 0.03 * drift
    overshoot = 0.5 * normal(STROKES, 2, 1)
    first = control[:, :, 0] + overshoot[:, :, 0] * (control[:, :, 0] - control[:, :, 1])
    last = control[:, :, -1] + overshoot[:, :, 1] * (control[:, :, -1] - control[:, :, -2])
    control = torch.cat([first[:, :, None], control[:, :, 1:-1], last[:, :, None]], 2)

    # A slow wave through the whole sheet moves joined strokes together.
    frequency, phase = 2.2 * normal(1, 2, 2), math.pi * normal(1, 1, 2)
    control = control + 0.05 * torch.sin(control @ frequency + phase)

    turn, slant = 0.09 * normal(), 0.12 * normal()
    stretch = torch.exp(0.18 * normal(1) + 0.09 * normal(2))
    rows = [torch.stack([turn.cos(), slant - turn.sin()], -1), torch.stack([turn.sin(), turn.cos()], -1)]
    affine = stretch[:, :, None] * torch.stack(rows, 1)
    control = torch.einsum("gij,gspj->gspi", affine, control) + 0.09 * normal(1, 1, 2)
    pen = size / 28 * (PEN + 0.09 * normal()).clamp(0.55, 1.1)
    return Programs(control, programs.sharp, programs.present), pen


def _along_strokes(values: Float[Tensor, "glyph stroke knot 2"]) -> Float[Tensor, "glyph stroke point 2"]:
    flat = along(rearrange(values, "glyph stroke knot xy -> (glyph stroke) knot xy"))
    return rearrange(flat, "(glyph stroke) point xy -> glyph stroke point xy", stroke=values.shape[1])
