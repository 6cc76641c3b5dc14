"""Training configurations of the bundled models, in the order in which they are run: `apl train NAME`.

In a checkout, `apl train` also takes the presets of `experiments.presets`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apl.config import ConvConfig, DecoderConfig, Group, JointConfig, LearnerConfig
from apl.data.jitter import JitterConfig
from apl.data.pens import PenConfig
from apl.data.source import DataSource
from apl.training.distil import DistilConfig
from apl.training.episodic import TrainConfig
from apl.training.join import JoinConfig
from apl.training.pretrain import PretrainConfig

OMNIGLOT_ENCODER = ConvConfig(
    image_size=56,
    stem_kernel=7,
    stem_stride=4,
    groups=(Group(64, 2, 1), Group(128, 3), Group(256, 3), Group(64, 1)),
    skip=True,
)
"""About the cost of the paper's encoder: it looks at 56×56 pixels and is wider where the image is small."""

FINER_ENCODER = ConvConfig(
    image_size=56,
    stem_channels=32,
    stem_kernel=5,
    stem_stride=2,
    groups=(Group(64, 2), Group(128, 3), Group(256, 3), Group(64, 1)),
    skip=True,
)
"""As costly as the one above; its first layers look closer."""

GLYPH_ENCODER = ConvConfig(
    stem_channels=32, stem_kernel=5, stem_stride=2, groups=(Group(48, 2), Group(64, 2)), skip=True
)

MANY_WAYS = (5, 20, 50, 100, 200)

ALL_CHARACTERS = DataSource(with_validation=True)
"""Those that networks are chosen by too, once that is done."""

MIRRORED = PretrainConfig(
    encoder=OMNIGLOT_ENCODER,
    mirrored="for_encoder",
    jitter=JitterConfig(rotation_degrees=15.0, scale=0.2, shear=0.25, elastic=0.06, thickness=0.4),
    steps=3600,
    batch=64,
    learning_rate=1.2e-3,
    warmup_steps=50,
    decay_share=1.0,
    weight_decay=5e-2,
)

FROM_SCRATCH = replace(MIRRORED, steps=10_000, learning_rate=2e-3, warmup_steps=200, decay_share=0.6)


MILD = JitterConfig(rotation_degrees=6.0, scale=0.08, shear=0.1, shift=0.04, elastic=0.02, thickness=0.1)
"""For the end of a training: strong deformations teach what does not matter, mild ones what is asked about."""


FINER = replace(FROM_SCRATCH, encoder=FINER_ENCODER, seed=1)
FINER_MILD = replace(
    FINER,
    encoder_from="runs/omniglot-encoder-finer/encoder",
    jitter=MILD,
    steps=2000,
    batch=128,
    learning_rate=1e-3,
    warmup_steps=50,
    decay_share=1.0,
)

ONE_NETWORK = DistilConfig(
    jitter=MILD, pen_share=0.0, steps=2000, batch=128, learning_rate=1e-3, warmup_steps=50, decay_share=1.0
)
"""Instead of the ensemble: one of its networks, taught by both with drawings hardly deformed."""

PENS = DistilConfig(
    student_from="runs/omniglot-encoder-distilled/encoder",
    elsewhere=(DataSource(name="fonts", rotations=False),),
    elsewhere_share=0.5,
    pens=PenConfig(thinnest=2),
    pen_share=0.5,
    other_hand=JitterConfig(rotation_degrees=8.0, scale=0.2, shear=0.25, shift=0.05, elastic=0.05, thickness=0.0),
    steps=4600,
    batch=128,
    learning_rate=1.2e-3,
    decay_share=0.9,
)
"""The student goes on with printed characters of other scripts beside Omniglot's."""

PENS_MILD = replace(
    PENS, student_from="runs/pens-encoder/encoder", jitter=MILD, steps=1500, learning_rate=8e-4, decay_share=1.0
)
"""On from there; what no other pen has left is hardly deformed."""

TEACHER = "runs/omniglot-encoder-teacher/encoder"
PENS_ALL = replace(
    PENS_MILD,
    teacher=TEACHER,
    student_from="runs/pens-encoder-mild/encoder",
    data=ALL_CHARACTERS,
    steps=2500,
    learning_rate=1e-3,
)
"""On with a better teacher and the characters it was chosen by."""

OMNIGLOT = TrainConfig(
    learner=LearnerConfig(
        encoder=OMNIGLOT_ENCODER,
        decoder=DecoderConfig(hidden=64, blocks=2, heads=4, compare=True, class_means=True),
        k=16,
        sigma_ratio=0.2,
        distance_gradient=True,
    ),
    freeze_encoder=True,
    mirrored="for_decoder",
    ways=MANY_WAYS,
    longest_episode=6,
    steps=2000,
    learning_rate=1e-3,
    decay=0.3,
)
"""The decoder of the bundled model."""


def on_all_characters(networks: tuple[ConvConfig, ...], encoder: str) -> TrainConfig:
    """The same decoder, on an encoder that has seen the characters it was chosen by."""
    learner = replace(OMNIGLOT.learner, encoder=JointConfig(networks, 256))
    return replace(OMNIGLOT, learner=learner, data=ALL_CHARACTERS, encoder_from=encoder)


Preset = PretrainConfig | JoinConfig | DistilConfig | TrainConfig

PRESETS: dict[str, Preset] = {
    "omniglot-encoder": PretrainConfig(encoder=OMNIGLOT_ENCODER, steps=8500, batch=64),
    "omniglot-encoder-mirrored": MIRRORED,
    "omniglot-encoder-composed": replace(MIRRORED, composed=8000, steps=11_000, warmup_steps=100, decay_share=0.8),
    "omniglot-encoder-finer": FINER,
    "omniglot-encoder-joint": JoinConfig(
        ("runs/omniglot-encoder-composed/encoder", "runs/omniglot-encoder-finer/encoder")
    ),
    "omniglot": OMNIGLOT,
    "omniglot-encoder-one": ONE_NETWORK,
    "omniglot-encoder-distilled": DistilConfig(),
    "pens-encoder": PENS,
    "pens-encoder-mild": PENS_MILD,
    "omniglot-encoder-finer-mild": FINER_MILD,
    "omniglot-encoder-finer-all": replace(
        FINER_MILD,
        data=ALL_CHARACTERS,
        encoder_from="runs/omniglot-encoder-finer-mild/encoder",
        steps=1200,
        learning_rate=8e-4,
    ),
    "omniglot-encoder-teacher": JoinConfig(
        ("runs/omniglot-encoder-one/encoder", "runs/omniglot-encoder-finer-all/encoder"), data=ALL_CHARACTERS
    ),
    "pens-encoder-all": PENS_ALL,
    "drawings-encoder": JoinConfig(
        ("runs/omniglot-encoder-finer-all/encoder", "runs/pens-encoder-all/encoder"), data=ALL_CHARACTERS
    ),
    "drawings": on_all_characters((FINER_ENCODER, OMNIGLOT_ENCODER), "runs/drawings-encoder/encoder"),
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
}


def preset(name: str) -> Any:
    """A preset of the library, or, in a checkout, of the experiments."""
    others = experiment_presets()
    if name not in PRESETS and name not in others:
        raise ValueError(f"no preset {name!r}; there are: {', '.join([*PRESETS, *others])}")
    return PRESETS[name] if name in PRESETS else others[name]


def experiment_presets() -> Mapping[str, Any]:
    """Presets beside the library; empty outside a checkout."""
    if importlib.util.find_spec("experiments") is None:
        return {}
    found: Mapping[str, Any] = importlib.import_module("experiments.presets").PRESETS
    return found
