"""Training configurations that only experiments need: `apl train NAME` in a checkout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apl.config import ConvConfig, DecoderConfig, DecoderKind, LearnerConfig
from apl.data.source import DataSource
from apl.training.episodic import TrainConfig
from apl.training.presets import OMNIGLOT_ENCODER
from apl.training.pretrain import PretrainConfig
from experiments.data.compose import ComposedCharacters
from experiments.presets_analogy import ANALOGY_PRESETS, PAPER_DECODERS, dashed
from experiments.presets_drawings import (
    ALL_CHARACTERS,
    DRAWINGS_PRESETS,
    FINER_ENCODER,
    FROM_SCRATCH,
    MILD,
    ONE_NETWORK,
    TEACHER,
    on_all_characters,
)
from experiments.training.copying import CopyingConfig
from experiments.training.distil import DistilConfig
from experiments.training.join import JoinConfig

LAKE = replace(FROM_SCRATCH, data=DataSource(split="lake"))
"""Trained on the 964 background characters alone, 126 of which are held out for validation."""


def on_all_background(start: str, config: PretrainConfig) -> PretrainConfig:
    """Continue from a chosen encoder, with the validation characters as training classes too."""
    data = replace(config.data, with_validation=True)
    on = replace(config, data=data, encoder_from=f"runs/{start}/encoder", steps=3000)
    return replace(on, learning_rate=1e-3, warmup_steps=50, decay_share=1.0)


PAPER_NETWORK = ConvConfig(stride_on="last", skip=True)

PAPER_ENCODER = DistilConfig(
    student=PAPER_NETWORK,
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

FIXED_LABELS = CopyingConfig(
    learner=LearnerConfig(
        encoder=PAPER_NETWORK,
        decoder=DecoderConfig(labels="fixed", way=1000),
        sigma_ratio=0.2,
        distance_gradient=True,
    ),
    data=ComposedCharacters(with_validation=True),
    encoder_from="runs/paper-200way/model",
    freeze_encoder=True,
    mirrored="for_decoder",
    ways=(1000,),
    longest_episode=6,
    steps=350,
    learning_rate=5e-4,
    decay=0.3,
)
"""The paper's decoder of 1000 labels, taught on classes its encoder was not taught."""
FEWER_LABELS_STEPS = {5: 800, 20: 1000, 200: 150, 423: 80}


def fixed_labels(way: int, kind: DecoderKind = "relational") -> CopyingConfig:
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


def together(way: int) -> CopyingConfig:
    """Encoder and decoder, on from those trained one after the other."""
    return replace(
        fixed_labels(way),
        decoder_from=f"runs/{fixed_name(way)}/model",
        freeze_encoder=False,
        mirrored="for_encoder",
        data=ALL_CHARACTERS,
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

RECIPE_200WAY_FURTHER = replace(
    RECIPE_200WAY,
    encoder_from="paper-200way",
    steps=14_000,
    learning_rate=6e-4,
    averaging=0.9995,
    seed=1,
)
"""A second sitting at 200-way: its encoder goes on, the decoder's blocks are again those of the 20-way recipe."""

RECIPE_1000WAY = replace(
    RECIPE_200WAY,
    learner=replace(RECIPE_LEARNER, decoder=DecoderConfig(labels="fixed", way=1000)),
    encoder_from="runs/paper-recipe-200way-further/model",
    decoder_from="runs/paper-recipe-200way-further/model",
    freeze_encoder=True,
    ways=(1000,),
    steps=1500,
    noise=0.0,
    averaging=0.99,
)
"""The decoder of 1000 labels on the frozen encoder of 200: its blocks go on from there, its label weights are made anew.

Release: the encoder of 200 classes is reused."""

RECIPE_20WAY = replace(
    RECIPE_1000WAY,
    learner=replace(RECIPE_LEARNER, decoder=DecoderConfig(labels="fixed", way=20)),
    ways=(20,),
    longest_episode=20,
    steps=1200,
    learning_rate=3e-4,
)
"""The same for 20 labels: the first of the 200."""


def from_random(kind: DecoderKind, way: int) -> TrainConfig:
    """One of the paper's decoders from a random start, on the frozen encoder of 200 classes."""
    decoder = DecoderConfig(kind, labels="fixed", way=way)
    return replace(
        RECIPE_1000WAY,
        learner=replace(RECIPE_LEARNER, decoder=decoder),
        encoder_from="paper-200way",
        decoder_from=None,
        ways=(way,),
        longest_episode=20 if way <= 20 else 6,
        steps=1500,
    )


PRESETS: dict[str, Any] = {
    **DRAWINGS_PRESETS,
    "omniglot-encoder-one-all": replace(
        ONE_NETWORK, teacher=TEACHER, student_from="runs/omniglot-encoder-one/encoder", data=ALL_CHARACTERS
    ),
    "omniglot-one": on_all_characters((OMNIGLOT_ENCODER,), "runs/omniglot-encoder-one-all/encoder"),
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
    "paper-recipe-200way-further": RECIPE_200WAY_FURTHER,
    "paper-recipe-1000way": RECIPE_1000WAY,
    "paper-recipe-20way": RECIPE_20WAY,
    **{f"paper-{dashed(kind)}-{way}way": from_random(kind, way) for kind in PAPER_DECODERS for way in (20, 423, 1000)},
    # Release: an encoder trained at 200-way first and reused.
    "fixed-200way": replace(
        fixed_labels(200), encoder_from="runs/paper-encoder-further/encoder", decoder_from=None, copying=True
    ),
    "paper-200way": replace(together(200), encoder_from="runs/paper-encoder-further/encoder"),
    **{fixed_name(way): fixed_labels(way) for way in (5, 20, 423, 1000)},
    **{fixed_name(way, kind): fixed_labels(way, kind) for kind in PAPER_DECODERS[1:] for way in (20, 423, 1000)},
    "paper-architecture": together(20),
    **ANALOGY_PRESETS,
}
