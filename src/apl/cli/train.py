"""`apl train`: an encoder or a learner from a named preset."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from apl.cli.options import JsonOption, arg
from apl.config import ConvConfig, DecoderKind, DeviceName

if TYPE_CHECKING:
    from apl.training.run import RunOptions

PRESETS = "One of glyphs-encoder, glyphs, omniglot-encoder, omniglot; in a checkout also those of the experiments."
"""The names without importing torch: this is read when a shell starts, for completion."""
MADE_FIRST = {"glyphs": "glyphs-encoder"}
"""Presets whose encoder takes a minute to train: it is made when none is named."""


@dataclass
class Command:
    """Train from a preset. Ctrl-C saves; --resume goes on where it stopped, with the same random state."""

    preset: Annotated[str, tyro.conf.Positional, arg(metavar="PRESET", help=PRESETS)]
    directory: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where checkpoints, log and the trained model go; runs/PRESET by default."""
    data: Annotated[Path | None, arg(metavar="DIR")] = None
    """Train on your own pictures, one folder per class: at least six classes of six, some of which are held out."""
    colour: bool = False
    """With --data: take the pictures as photographs, in colour, and not as drawings, in grey."""
    resume: bool = False
    """Go on with the run in the directory."""
    minutes: Annotated[float | None, arg(metavar="MINUTES")] = None
    """Stop and save after this much time."""
    steps: Annotated[int | None, arg(metavar="STEPS")] = None
    """Another number of steps than the preset's."""
    seed: Annotated[int | None, arg(metavar="NUMBER")] = None
    """Another seed than the preset's."""
    encoder: Annotated[str | None, arg(metavar="ENCODER")] = None
    """Start from this encoder: a bundled model's name, or the directory of a saved encoder or model."""
    decoder: DecoderKind | None = None
    """Another decoder than the preset's."""
    device: DeviceName = "auto"
    """Where to compute; auto takes the best there is."""
    precision: Literal["full", "bf16"] = "full"
    """bf16: the networks' products in half precision, about twice as fast on GPUs and CPUs that have it."""
    json: JsonOption = False

    def run(self) -> None:
        from apl.checkpoint import read_json
        from apl.networks import find_device
        from apl.training.presets import preset
        from apl.training.run import RunOptions

        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.minutes is not None and self.minutes < 0:
            raise ValueError(f"minutes must not be negative, got {self.minutes}")
        device = find_device(self.device)
        config = self._on_own_pictures(self._changed(preset(self.preset), "steps", "seed"))
        directory = self.directory or Path("runs") / self.preset
        options = RunOptions(directory, self.resume, self.minutes, device, self.precision)
        self._with_networks(config, options).train(options)
        saved = directory / ("model" if (directory / "model").is_dir() else "encoder")
        provenance = read_json(saved / "model.json")["provenance"]
        result = {"saved": str(saved), **{n: provenance[n] for n in ("steps", "seconds", "split", "validation")}}
        print(json_format.dumps(result) if self.json else "\n".join(f"{n}: {v}" for n, v in result.items()))

    def _changed(self, config: Any, *options: str) -> Any:
        """The configuration with these options, where they were given."""
        given = {name: value for name in options if (value := getattr(self, name)) is not None}
        for name in given:
            self._check(hasattr(config, name), name)
        return replace(config, **given)

    def _check(self, valid: bool, option: str) -> None:
        if not valid:
            raise ValueError(f"--{option} is not valid with preset {self.preset}")

    def _with_networks(self, config: Any, options: RunOptions) -> Any:
        """The configuration with the decoder and the encoder that were asked for, or that are made first."""
        from apl.training.episodic import TrainConfig, with_encoder_of
        from apl.training.pretrain import PretrainConfig

        if self.decoder:
            self._check(isinstance(config, TrainConfig), "decoder")
            decoder = replace(config.learner.decoder, kind=self.decoder)
            config = replace(config, learner=replace(config.learner, decoder=decoder))
        if self.encoder:
            self._check(isinstance(config, PretrainConfig | TrainConfig), "encoder")
            if isinstance(config, PretrainConfig):
                return replace(config, encoder_from=self.encoder)
            return with_encoder_of(config, self.encoder)
        if self.preset in MADE_FIRST:
            return with_encoder_of(config, self._made_first(options))
        if isinstance(config, TrainConfig) and config.freeze_encoder and config.encoder_from is None:
            raise ValueError(f"{self.preset} trains the decoder alone: name a trained encoder with --encoder")
        return config

    def _on_own_pictures(self, config: Any) -> Any:
        """The same training on the pictures named with --data."""
        from apl.data.folder import has_colours, split_folder
        from apl.data.source import DataSource
        from apl.training.episodic import TrainConfig
        from apl.training.pretrain import PretrainConfig

        if self.data is None:
            if self.colour:
                raise ValueError("--colour is for your own pictures: name their directory with --data")
            return config
        self._check(isinstance(config, PretrainConfig | TrainConfig), "data")
        folder = str(self.data.resolve())
        classes = len(split_folder(folder).train)
        if not self.colour and has_colours(folder):
            print("most of these pictures have colours, which are ignored: --colour uses them", file=sys.stderr)
        config = replace(config, data=DataSource(name="folder", folder=folder, rotations=False, colour=self.colour))
        if isinstance(config, PretrainConfig):
            return replace(config, encoder=self._seeing(config.encoder))
        learner = replace(config.learner, encoder=self._seeing(config.learner.encoder))
        return replace(config, learner=learner, ways=tuple(sorted({min(way, classes) for way in config.ways})))

    def _seeing(self, encoder: Any) -> Any:
        """The encoder with as many channels as the pictures have."""
        if not self.colour:
            return encoder
        self._check(isinstance(encoder, ConvConfig), "colour")
        return replace(encoder, channels=3)

    def _made_first(self, options: RunOptions) -> str:
        """The encoder this preset builds on: that of an earlier run, or one trained now, beside the run itself."""
        from apl.checkpoint import CheckpointError, read_json, to_json
        from apl.training.presets import preset
        from apl.training.run import check_resumable

        if options.resume:
            check_resumable(options.directory)
        name = MADE_FIRST[self.preset]
        place = options.directory.with_name(name) if self.directory is None else options.directory / name
        config = self._changed(self._on_own_pictures(preset(name)), "seed")
        if not (place / "encoder").is_dir():
            print(f"first {name}, into {place}", file=sys.stderr)
            config.train(replace(options, directory=place, resume=(place / "state.json").exists()))
        elif (place / "config.json").exists():
            before, now = read_json(place / "config.json"), to_json(config)
            for what in ("data", "encoder", "seed"):
                if before.get(what) != now[what]:
                    raise CheckpointError(
                        f"{place} holds an encoder of another training (its {what} differs): move it away, "
                        "or name a new --directory for this one"
                    )
        return str(place / "encoder")
