"""Named training configurations: `apl train NAME`."""

from __future__ import annotations

from dataclasses import replace

from apl.config import ConvConfig, DecoderConfig, DecoderKind, Group, JointConfig, LearnerConfig
from apl.data.jitter import JitterConfig
from apl.data.pens import PenConfig
from apl.data.source import DataSource
from apl.training.analogy import AnalogyConfig
from apl.training.distil import DistilConfig
from apl.training.episodic import TrainConfig
from apl.training.join import JoinConfig
from apl.training.presets_analogy import ANALOGY_PRESETS, PAPER_DECODERS, dashed
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


LAKE = replace(FROM_SCRATCH, data=DataSource(split="lake"))
"""Sees nothing but the 964 background characters, 126 of which are held out to choose by."""


def on_all_background(start: str, config: PretrainConfig) -> PretrainConfig:
    """On from an encoder that has helped to choose, with the characters it was chosen by."""
    data = replace(config.data, with_validation=True)
    on = replace(config, data=data, encoder_from=f"runs/{start}/encoder", steps=3000)
    return replace(on, learning_rate=1e-3, warmup_steps=50, decay_share=1.0)


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

PAPER_ENCODER = DistilConfig(
    student=ConvConfig(stride_on="last", skip=True),
    pen_share=0.0,
    steps=5000,
    batch=128,
    learning_rate=2e-3,
    warmup_steps=200,
    decay_share=0.1,
)
"""From scratch, taught by the bundled ensemble. "Stride 2 every third block" is read as: on the last of three, which costs
2.4 times the other reading and needs half as many images."""

PAPER_MILD = replace(
    PAPER_ENCODER,
    student_from="runs/paper-encoder/encoder",
    jitter=MILD,
    steps=900,
    learning_rate=8e-4,
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

FIXED_LABELS = TrainConfig(
    learner=LearnerConfig(
        encoder=PAPER_ENCODER.student,
        decoder=DecoderConfig(labels="fixed", way=1000),
        sigma_ratio=0.2,
        distance_gradient=True,
    ),
    data=ALL_CHARACTERS,
    encoder_from="runs/paper-200way/model",
    freeze_encoder=True,
    mirrored="for_decoder",
    copying=True,
    composed=1000,
    ways=(1000,),
    longest_episode=6,
    steps=350,
    learning_rate=5e-4,
    decay=0.3,
)
"""The paper's decoder of 1000 labels, taught on classes its encoder was not taught."""
FEWER_LABELS_STEPS = {5: 800, 20: 1000, 200: 150, 423: 80}


def fixed_labels(way: int, kind: DecoderKind = "relational") -> TrainConfig:
    """With one of the paper's decoders; fewer labels go on from the decoder of 1000, with the first of them alone."""
    decoder = replace(FIXED_LABELS.learner.decoder, way=way, kind=kind)
    whole = replace(FIXED_LABELS, learner=replace(FIXED_LABELS.learner, decoder=decoder))
    if way == 1000:
        return whole
    return replace(
        whole,
        copying=False,
        decoder_from=f"runs/{fixed_name(1000, kind)}/model",
        ways=(way,),
        longest_episode=10,
        steps=FEWER_LABELS_STEPS[way],
        learning_rate=2e-4,
        decay=0.02,
    )


def fixed_name(way: int, kind: DecoderKind = "relational") -> str:
    return f"fixed-{way}way" + ("" if kind == "relational" else f"-{dashed(kind)}")


def together(way: int) -> TrainConfig:
    """Encoder and decoder, on from those trained one after the other."""
    return replace(
        fixed_labels(way),
        decoder_from=f"runs/{fixed_name(way)}/model",
        freeze_encoder=False,
        mirrored="for_encoder",
        composed=0,
        jitter=MILD,
        steps=200 if way > 20 else 400,
    )


RECIPE_LEARNER = LearnerConfig(
    encoder=ConvConfig(skip=True), decoder=DecoderConfig(labels="fixed", way=20), distance_gradient=True
)
"""The paper's networks, with the release's skip connections and a live distance."""

RECIPE = TrainConfig(
    learner=RECIPE_LEARNER,
    steps=7007,
    learning_rate=3e-4,
    decay=0.78,
)
"""The paper's training: everything from scratch, through the decoder, eight episodes side by side.

Deviation: the rate starts at 3e-4 instead of 1e-4, since fewer images can be shown."""

RECIPE_FURTHER = replace(
    RECIPE,
    encoder_from="runs/paper-recipe/model",
    decoder_from="runs/paper-recipe/model",
    steps=9824,
    learning_rate=2e-4,
    decay=0.82,
    seed=1,
)
"""A second sitting, from the weights of the first: the rate is raised and falls again."""

RECIPE_200WAY = TrainConfig(
    learner=replace(RECIPE_LEARNER, decoder=DecoderConfig(labels="fixed", way=200)),
    encoder_from="paper-recipe",
    decoder_from="paper-recipe",
    ways=(200,),
    longest_episode=6,
    steps=6000,
    learning_rate=5e-4,
    decay_share=1.0,
    noise=0.1,
    averaging=0.999,
)
"""On from the recipe's own weights, 200 classes at a time with label weights made anew.

Release: 200 classes first, its encoder then reused; noise of 0.1 on training images."""

RECIPE_1000WAY = replace(
    RECIPE_200WAY,
    learner=replace(RECIPE_LEARNER, decoder=DecoderConfig(labels="fixed", way=1000)),
    encoder_from="runs/paper-recipe-200way/model",
    decoder_from="runs/paper-recipe-200way/model",
    freeze_encoder=True,
    ways=(1000,),
    steps=1500,
    noise=0.0,
    averaging=0.99,
)
"""The decoder of 1000 labels on the frozen encoder of 200: its blocks go on from there, its label weights are made anew.

Release: the encoder of 200 classes is reused."""

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


Preset = PretrainConfig | JoinConfig | DistilConfig | TrainConfig | AnalogyConfig

PRESETS: dict[str, Preset] = {
    "omniglot-encoder": PretrainConfig(encoder=OMNIGLOT_ENCODER, steps=8500, batch=64),
    "omniglot-encoder-mirrored": MIRRORED,
    "omniglot-encoder-composed": replace(MIRRORED, composed=8000, steps=11_000, warmup_steps=100, decay_share=0.8),
    "omniglot-encoder-finer": FINER,
    "omniglot-encoder-finer-mild": FINER_MILD,
    "omniglot-encoder-finer-all": replace(
        FINER_MILD,
        data=ALL_CHARACTERS,
        encoder_from="runs/omniglot-encoder-finer-mild/encoder",
        steps=1200,
        learning_rate=8e-4,
    ),
    "omniglot-encoder-joint": JoinConfig(
        ("runs/omniglot-encoder-composed/encoder", "runs/omniglot-encoder-finer/encoder")
    ),
    "omniglot-encoder-teacher": JoinConfig(
        ("runs/omniglot-encoder-one/encoder", "runs/omniglot-encoder-finer-all/encoder"), data=ALL_CHARACTERS
    ),
    "omniglot-encoder-distilled": DistilConfig(),
    "omniglot-encoder-one": ONE_NETWORK,
    "omniglot-encoder-one-all": replace(
        ONE_NETWORK, teacher=TEACHER, student_from="runs/omniglot-encoder-one/encoder", data=ALL_CHARACTERS
    ),
    "pens-encoder": PENS,
    "pens-encoder-mild": PENS_MILD,
    "pens-encoder-all": PENS_ALL,
    "drawings-encoder": JoinConfig(
        ("runs/omniglot-encoder-finer-all/encoder", "runs/pens-encoder-all/encoder"), data=ALL_CHARACTERS
    ),
    "omniglot": OMNIGLOT,
    "omniglot-one": on_all_characters((OMNIGLOT_ENCODER,), "runs/omniglot-encoder-one-all/encoder"),
    "drawings": on_all_characters((FINER_ENCODER, OMNIGLOT_ENCODER), "runs/drawings-encoder/encoder"),
    "omniglot-consolidated": replace(
        OMNIGLOT,
        learner=replace(OMNIGLOT.learner, decoder=replace(OMNIGLOT.learner.decoder, counts=True), sigma_ratio=0.75),
        decoder_from="omniglot",
        consolidate=True,
        longest_episode=12,
        steps=1500,
        learning_rate=5e-4,
    ),
    "lake-encoder": LAKE,
    "lake-encoder-finer": replace(LAKE, encoder=FINER_ENCODER, seed=1),
    "lake-held-out": JoinConfig(("runs/lake-encoder/encoder", "runs/lake-encoder-finer/encoder"), data=LAKE.data),
    "lake-encoder-all": on_all_background("lake-encoder", LAKE),
    "lake-encoder-finer-all": on_all_background("lake-encoder-finer", replace(LAKE, encoder=FINER_ENCODER)),
    "lake": JoinConfig(
        ("runs/lake-encoder-all/encoder", "runs/lake-encoder-finer-all/encoder"),
        data=replace(LAKE.data, with_validation=True),
    ),
    "paper-encoder": PAPER_ENCODER,
    "paper-encoder-mild": PAPER_MILD,
    "paper-encoder-all": replace(
        PAPER_MILD,
        student_from="runs/paper-encoder-mild/encoder",
        data=ALL_CHARACTERS,
        steps=1500,
    ),
    "paper-encoder-further": replace(
        PAPER_MILD,
        teacher=TEACHER,
        student_from="runs/paper-encoder-all/encoder",
        data=ALL_CHARACTERS,
        steps=2500,
        learning_rate=1e-3,
    ),
    "paper-recipe": RECIPE,
    "paper-recipe-further": RECIPE_FURTHER,
    "paper-recipe-200way": RECIPE_200WAY,
    "paper-recipe-1000way": RECIPE_1000WAY,
    # The paper trains its encoder at 200-way first and reuses it: so do all of these.
    "fixed-200way": replace(fixed_labels(200), encoder_from="paper-encoder", decoder_from=None, copying=True),
    "paper-200way": replace(together(200), encoder_from="paper-encoder"),
    **{fixed_name(way): fixed_labels(way) for way in (5, 20, 423, 1000)},
    **{fixed_name(way, kind): fixed_labels(way, kind) for kind in PAPER_DECODERS[1:] for way in (20, 423, 1000)},
    "paper-architecture": together(20),
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
    **ANALOGY_PRESETS,
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]
