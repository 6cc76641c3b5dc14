"""Training of the bundled models `omniglot` and `drawings`, in order; `presets.py` lists them with the others.

`omniglot` joins two networks that were trained apart. `drawings` joins one of them with a third, taught by both to read other
pens; it needs a folder of fonts (`APL_FONTS`). Both end with the decoder of the library's preset `omniglot`.
"""

from __future__ import annotations

from dataclasses import replace

from apl.config import ConvConfig, Group, JointConfig
from apl.data.jitter import JitterConfig
from apl.data.source import DataSource
from apl.training.episodic import TrainConfig
from apl.training.presets import OMNIGLOT_ENCODER, PRESETS
from apl.training.pretrain import PretrainConfig
from experiments.data.compose import ComposedCharacters
from experiments.training.distil import DistilConfig
from experiments.training.join import JoinConfig

FINER_ENCODER = ConvConfig(
    image_size=56,
    stem_channels=32,
    stem_kernel=5,
    stem_stride=2,
    groups=(Group(64, 2), Group(128, 3), Group(256, 3), Group(64, 1)),
    skip=True,
)
"""As costly as the library's; its first layers look closer."""
ALL_CHARACTERS = DataSource(with_validation=True)
"""With the characters that networks are chosen by, once that is done."""
MILD = JitterConfig(rotation_degrees=6.0, scale=0.08, shear=0.1, shift=0.04, elastic=0.02, thickness=0.1)
"""For the end of a training: strong deformations teach what does not matter, mild ones what is asked about."""
TEACHER = "runs/omniglot-encoder-teacher/encoder"


def _library_presets() -> tuple[PretrainConfig, TrainConfig]:
    encoder, learner = PRESETS["omniglot-encoder"], PRESETS["omniglot"]
    assert isinstance(encoder, PretrainConfig) and isinstance(learner, TrainConfig)
    return encoder, learner


FROM_SCRATCH, OMNIGLOT = _library_presets()
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
    printed_share=0.5,
    pen_share=0.5,
    thinnest=2,
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


def on_all_characters(networks: tuple[ConvConfig, ...], encoder: str) -> TrainConfig:
    """The same decoder, on an encoder that has seen the characters it was chosen by."""
    learner = replace(OMNIGLOT.learner, encoder=JointConfig(networks, 256))
    return replace(OMNIGLOT, learner=learner, data=ALL_CHARACTERS, encoder_from=encoder)


DRAWINGS_PRESETS: dict[str, PretrainConfig | JoinConfig | DistilConfig | TrainConfig] = {
    "omniglot-encoder-composed": replace(
        FROM_SCRATCH,
        data=ComposedCharacters(composed=8000),
        steps=11_000,
        learning_rate=1.2e-3,
        warmup_steps=100,
        decay_share=0.8,
    ),
    "omniglot-encoder-finer": FINER,
    "omniglot-encoder-joint": JoinConfig(
        ("runs/omniglot-encoder-composed/encoder", "runs/omniglot-encoder-finer/encoder")
    ),
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
    "pens-encoder-all": replace(
        PENS_MILD,
        teacher=TEACHER,
        student_from="runs/pens-encoder-mild/encoder",
        data=ALL_CHARACTERS,
        steps=2500,
        learning_rate=1e-3,
    ),
    "drawings-encoder": JoinConfig(
        ("runs/omniglot-encoder-finer-all/encoder", "runs/pens-encoder-all/encoder"), data=ALL_CHARACTERS
    ),
    "drawings": on_all_characters((FINER_ENCODER, OMNIGLOT_ENCODER), "runs/drawings-encoder/encoder"),
}
