"""Training on the number-analogy task (paper, section 4.5), on embeddings computed once.

The same learner, the same `run_episode`, one optimiser step per batch; only where episodes come from differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.checkpoint import find_model, read_json
from apl.config import ConvConfig, IdentityConfig, LearnerConfig
from apl.controller import SurpriseController
from apl.encoder import Encoder, PairEncoder, embed_all, unflatten
from apl.episode import run_episode
from apl.evaluate import watch
from apl.learner import Learner
from apl.networks import TorchNetworks
from apl.training.episodic import in_precision, load_decoder
from apl.training.run import Run, RunOptions
from apl.training.schedule import plateau
from apl.weights_file import below, load_weights, read_weights
from experiments.data.analogy import DIGITS, AnalogySampler, AnalogyTask, Examples, digit_examples, symbol_examples
from experiments.training.analogy_hints import RowQuestions, note_times
from experiments.training.decoder_start import start_by_comparing

VALIDATION_EPISODES = 64
FEWEST_DIGITS = 3


@dataclass(frozen=True)
class AnalogyConfig:
    """How to train a learner on the analogy task."""

    learner: LearnerConfig
    task: AnalogyTask = field(default_factory=AnalogyTask)
    digits_from: str | None = None
    """An encoder of digits, or a learner of this task to take it from; it is not trained further."""
    symbols_from: str | None = None
    """The same for the encoder of symbols, where symbols are drawings."""
    share_encoder: bool = False
    """Save the decoder alone; the encoder stays with the bundled learner it was taken from."""
    decoder_from: str | None = None
    """A saved learner whose decoder to start from."""
    sigma_ratios: tuple[float, ...] = ()
    """Thresholds of surprise, one drawn for each round of episodes: memories from sparse to dense. The
    learner's own by default."""
    parallel: int = 16
    batch: int = 4
    """Examples of each episode per step."""
    longest_episode: int = 60
    curriculum: float = 0.0
    """Deviation: over this first share of the steps episodes grow from three digits and symbols to all ten."""
    steps: int = 4000
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    decay_share: float = 0.6
    """The learning rate falls linearly to zero over this last share of the steps."""
    comparing: bool = False
    """Deviation: start with attention that follows the keys (`decoder_start`)."""
    row_questions: float = 0.0
    """Deviation: weight of the questions that recalled rows are asked in training (`analogy_hints`)."""
    clip: float = 1.0
    seed: int = 0

    def train(self, options: RunOptions) -> Learner:
        return train_analogy(self, options)


def train_analogy(config: AnalogyConfig, options: RunOptions) -> Learner:
    """Train the decoder, save the learner under `options.directory/model`, and return it."""
    torch.manual_seed(config.seed)
    learner = Learner(config.learner)
    encoders = load_encoders(learner, config)
    if config.comparing:
        start_by_comparing(learner.decoder, tuple(learner.key_widths.values()), config.learner.decoder.heads)
    if config.decoder_from is not None:
        load_decoder(learner, config.decoder_from)
    twin = learner.to(options.device).on_embeddings()
    networks, questions = cast(TorchNetworks, twin.networks), None
    trained: nn.Module = networks
    if config.row_questions:
        questions = RowQuestions(learner.decoder, config.learner.decoder.hidden, config.task).to(options.device)
        trained = nn.ModuleDict({"networks": networks, "questions": questions})
    optimiser = torch.optim.Adam(trained.parameters(), lr=0.0, fused=True)
    run = Run(config, options, trained, optimiser, config.seed)
    sampler = embedded_sampler(learner, config.task, "train", run.generator)
    ratios = config.sigma_ratios or (config.learner.sigma_ratio,)

    twin.train()
    for _ in run.rounds(config.steps):
        ratio = ratios[int(torch.randint(len(ratios), (1,), generator=run.generator))]
        twin.controller = SurpriseController(ratio)
        among = digits_shown(config, run.state["step"], run.generator)
        drawn = sampler.draw(config.parallel, config.longest_episode, among=among)
        memory, times = twin.new_memory(config.parallel), torch.zeros_like(drawn.digit)
        for step in in_precision(run, run_episode(twin, memory, drawn.inputs, drawn.episodes, config.batch)):
            loss = step.observation.surprise_nats.mean()
            hints = loss.new_zeros(())
            if questions is not None:
                hints = questions.loss(drawn, step, times)
                note_times(times, step)
            run.descend(loss + config.row_questions * hints, plateau(config, run.state["step"]), config.clip)
            right = step.right
            run.record(
                right.numel(),
                {"sigma_ratio": ratio},
                accuracy=float(right.float().mean()),
                surprise_nats=loss,
                rows_surprise_nats=hints,
                stored=float(memory.counts.sum()) / config.parallel,
            )
            if run.state["step"] >= config.steps:
                break
    learner.eval()
    if run.rank == 0:
        split = "mnist: 45,000 images for the encoder, 10,000 for the decoder, 5,000 to validate"
        validated = validate(learner, config.task)
        provenance = run.provenance("learner on the analogy task", None, validated, split=split, encoders=encoders)
        shared = config.digits_from if config.share_encoder else None
        learner.save(options.directory / "model", provenance, encoder=shared)
    return learner


def digits_shown(config: AnalogyConfig, step: int, generator: torch.Generator) -> int | None:
    """How many digits and symbols the next episodes are about: of few the answers follow from few rows, so that how one
    follows from others is learnt sooner. None: all."""
    if not config.curriculum:
        return None
    most = min(DIGITS, FEWEST_DIGITS + int((DIGITS + 1 - FEWEST_DIGITS) * step / (config.curriculum * config.steps)))
    return int(torch.randint(FEWEST_DIGITS, most + 1, (1,), generator=generator))


def embedded_sampler(
    learner: Learner, task: AnalogyTask, part: Literal["train", "validation", "test"], generator: torch.Generator
) -> AnalogySampler:
    """Episodes for `learner.on_embeddings()`: digits and symbols as the learner's encoder sees them."""
    encoder = learner.encoder
    if not isinstance(encoder, PairEncoder):
        raise ValueError("the analogy task needs an encoder of pairs (PairConfig)")

    def embedded(examples: Examples, by: Encoder, config: ConvConfig | IdentityConfig) -> Examples:
        return Examples(embed_all(by, unflatten(examples.inputs, config)), examples.labels)

    digits = embedded(digit_examples(part), encoder.digit, encoder.config.digit)
    symbols = embedded(symbol_examples(task, part), encoder.symbol, encoder.config.symbol)
    return AnalogySampler(task, digits, symbols, generator)


def validate(learner: Learner, task: AnalogyTask, seed: int = 0) -> dict[str, float]:
    """Online accuracy on combinations never seen, with digits held out of all training."""
    sampler = embedded_sampler(learner, task, "validation", torch.Generator().manual_seed(seed))
    drawn = sampler.draw(VALIDATION_EPISODES)
    result = watch(learner.eval().on_embeddings(), drawn.inputs, drawn.episodes)
    seen = [t for t in (10, 20, 30, 50, 75) if t + 5 <= drawn.digit.shape[1]]
    figures = {f"val_accuracy_after_{t}": float(around(result.correct, t).mean()) for t in seen}
    return {**figures, "val_accuracy": result.accuracy().mean, "val_stored": result.stored_at_end().mean}


def around(values: Float[Tensor, "episode time"], seen: int, span: int = 5) -> Float[Tensor, " episode"]:
    """Each episode's mean over the examples shown after `seen` others, give or take half the span."""
    start = max(0, seen - span // 2)
    return values[:, start : start + span].mean(1)


def load_encoders(learner: Learner, config: AnalogyConfig) -> dict[str, object]:
    """Fill in the pre-trained parts of the encoder; tells where they came from."""
    provenance: dict[str, object] = {}
    for name, part, source in (
        ("digits", learner.encoder.digit, config.digits_from),
        ("symbols", learner.encoder.symbol, config.symbols_from),
    ):
        if source is None:
            continue
        directory = find_model(source)
        tensors, trained = read_weights(directory), read_json(directory / "model.json")["provenance"]
        if of_learner := below(f"encoder.{name.removesuffix('s')}.", tensors):
            tensors, trained = of_learner, trained["encoders"][name]
        load_weights(part, tensors, str(directory))
        provenance[name] = trained
    return provenance
