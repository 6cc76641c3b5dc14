"""Training configurations: `apl train NAME`. `glyphs` needs no data set and takes a few minutes; `omniglot` is the recipe of
the bundled models in its simplest form.

In a checkout, `apl train` also takes the presets of `experiments.presets`, which made the bundled models.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apl.config import ConvConfig, DecoderConfig, Group, LearnerConfig
from apl.data.jitter import JitterConfig
from apl.data.source import DataSource
from apl.training.episodic import TrainConfig
from apl.training.pretrain import PretrainConfig

CHECKOUT = Path(__file__).parents[3]
"""Where `src` lies, if this is a checkout."""

OMNIGLOT_ENCODER = ConvConfig(
    image_size=56,
    stem_kernel=7,
    stem_stride=4,
    groups=(Group(64, 2, 1), Group(128, 3), Group(256, 3), Group(64, 1)),
    skip=True,
)
"""About the cost of the paper's encoder: it looks at 56×56 pixels and is wider where the image is small."""

GLYPH_ENCODER = ConvConfig(
    stem_channels=32, stem_kernel=5, stem_stride=2, groups=(Group(48, 2), Group(64, 2)), skip=True
)

PRESETS: dict[str, PretrainConfig | TrainConfig] = {
    "glyphs-encoder": PretrainConfig(
        encoder=GLYPH_ENCODER, data=DataSource(name="glyphs"), steps=400, batch=64, warmup_steps=50
    ),
    "glyphs": TrainConfig(
        learner=LearnerConfig(encoder=GLYPH_ENCODER, decoder=DecoderConfig(hidden=64, blocks=2, heads=4)),
        data=DataSource(name="glyphs"),
        freeze_encoder=True,
        ways=(5, 20),
        longest_episode=4,
        steps=300,
        learning_rate=1e-3,
    ),
    "omniglot-encoder": PretrainConfig(
        encoder=OMNIGLOT_ENCODER,
        mirrored="for_encoder",
        jitter=JitterConfig(rotation_degrees=15.0, scale=0.2, shear=0.25, elastic=0.06, thickness=0.4),
        steps=10_000,
        batch=64,
        learning_rate=2e-3,
        decay_share=0.6,
        weight_decay=5e-2,
    ),
    "omniglot": TrainConfig(
        learner=LearnerConfig(
            encoder=OMNIGLOT_ENCODER,
            decoder=DecoderConfig(hidden=64, blocks=2, heads=4, compare=True, class_means=True),
            k=16,
            sigma_ratio=0.2,
            distance_gradient=True,
        ),
        freeze_encoder=True,
        mirrored="for_decoder",
        ways=(5, 20, 50, 100, 200),
        longest_episode=6,
        steps=2000,
        learning_rate=1e-3,
        decay=0.3,
    ),
}


def preset(name: str) -> Any:
    """A preset of the library, or, in a checkout, of the experiments."""
    if name in PRESETS:
        return PRESETS[name]
    others = experiment_presets()
    if name not in others:
        raise ValueError(f"no preset {name!r}; there are: {', '.join([*PRESETS, *others])}")
    return others[name]


def experiment_presets() -> Mapping[str, Any]:
    """Presets beside the library; empty outside a checkout."""
    if (CHECKOUT / "experiments" / "presets.py").is_file() and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))  # `python -m` puts the current folder there, the script `apl` does not
    try:
        found: Mapping[str, Any] = importlib.import_module("experiments.presets").PRESETS
    except ModuleNotFoundError as error:
        if error.name not in ("experiments", "experiments.presets"):  # a package may be called so elsewhere
            raise
        return {}
    return found
