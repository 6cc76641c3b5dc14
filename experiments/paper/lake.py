"""Lake's one-shot challenge: a model of the 964 background characters alone, a memory of one drawing per character.

Each question is answered on its own: the nearest of the 20 stored drawings. How many slightly deformed views of a
drawing its embedding is the mean of was chosen on runs of the same form from characters held out of the background. The
model that was chosen by them (`apl train lake-held-out`) is not kept in the repository: where it is not in runs/, what was
measured with it before is kept. The model that answers has since been trained on all background characters.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.data.jitter import JitterConfig, jitter
from apl.data.omniglot import load_omniglot, omniglot
from apl.data.source import DataSource
from apl.encoder import Encoder, embed_all, scale_bytes
from apl.evaluate import Estimate
from apl.learner import Learner
from apl.training.saved_encoder import read_encoder
from experiments.data.embedded import image_size
from experiments.data.lake import OneShotRun, lake_runs, runs_like_lakes
from experiments.paper.results import Row, load_rows, save_rows

SLIGHTLY = JitterConfig(rotation_degrees=5.0, scale=0.06, shear=0.06, shift=0.03, elastic=0.015, thickness=0.0)
MODEL = "lake"
HELD_OUT = Path("runs/lake-held-out/encoder")
CHOSEN_BY = "held-out background characters"
SEED = 1
VIEWS = (1, 5, 15)
PEOPLE, BPL, COMPARATORS, POLIS = 4.5, 3.3, 1.5, 0.0
"""Published errors on the 20 runs, in percent: people, Bayesian program learning, attentive recurrent comparators, and Polis and
Ilin (2021), who claim none."""


def reproduce(quick: bool = False) -> None:
    rows = chosen_by(quick)
    views = min(rows, key=lambda row: (row["error_percent"], row["views"]))["views"]
    encoder = read_encoder(MODEL).build()
    everything = load_omniglot(image_size(encoder.config))
    runs = lake_runs(everything)
    used = torch.cat([torch.cat([run.stored, run.asked]) for run in runs]).unique()
    embeddings = torch.zeros(len(everything), encoder.width)
    embeddings[used] = embed_views(encoder, everything.images[used], views)
    rows.append(_row("the 20 runs", MODEL, views, answered(embeddings, runs)))
    save_rows(
        "lake",
        rows,
        quick,
        published_error_percent={"people": PEOPLE, "BPL": BPL, "ARC": COMPARATORS, "Polis and Ilin": POLIS},
    )


def chosen_by(quick: bool) -> list[Row]:
    """Errors on characters held out of the background, by number of views."""
    if not (HELD_OUT / "model.json").is_file():
        return [row for row in load_rows("lake") if row["runs"] == CHOSEN_BY]
    saved = read_encoder(HELD_OUT)
    encoder = saved.build()
    trained = {part: saved.provenance.get(part) for part in ("trained_as", "steps", "seconds", "commit", "validation")}
    held_out = omniglot("lake", "validation", size=image_size(encoder.config))
    runs = runs_like_lakes(held_out, 20 if quick else 400, torch.Generator().manual_seed(SEED))
    rows = []
    for views in VIEWS:
        correct = answered(embed_views(encoder, held_out.images, views), runs)
        rows.append({**_row(CHOSEN_BY, HELD_OUT.parent.name, views, correct), "trained": trained})
    return rows


@torch.no_grad()
def answered(embeddings: Float[Tensor, "drawing embed"], runs: list[OneShotRun]) -> Float[Tensor, "run character"]:
    """1 where a question was answered right: an empty memory, 20 drawings written, 20 questions."""
    way = len(runs[0].stored)
    nearest = LearnerConfig(IdentityConfig(embeddings.shape[1]), DecoderConfig("nearest"), k=1)
    learner = Learner(nearest).eval()
    memory = learner.new_memory(len(runs))
    truth = torch.arange(way).expand(len(runs), way)
    stored, asked = (embeddings[torch.stack(part)] for part in zip(*((r.stored, r.asked) for r in runs), strict=True))
    learner.write(memory, stored, truth, torch.ones_like(truth, dtype=torch.bool))
    right: Tensor = learner.predict(memory, asked, way).label == truth
    return right.float()


def _row(what: str, checkpoint: str, views: int, correct: Float[Tensor, "run character"]) -> Row:
    estimate, data = Estimate.of(correct.mean(1)), DataSource(split="lake", rotations=False)
    return {
        "method": "ours, nearest of one per character",
        "runs": what,
        "decoder": "nearest",
        "labels": "neighbourhood",
        "checkpoint": checkpoint,
        "split": data.split_name(),
        "split_hash": data.split_hash(),
        "way": correct.shape[1],
        "shot": 1,
        "views": views,
        "episodes": len(correct),
        "seed": SEED,
        "accuracy": estimate.mean,
        "ci95": estimate.ci95,
        "error_percent": round(100 * (1 - estimate.mean), 2),
    }


def embed_views(encoder: Encoder, images: Tensor, views: int) -> Float[Tensor, "image embed"]:
    """With several `views` an embedding is the mean of the drawing's own and of its slightly deformed copies'."""
    embeddings = embed_all(encoder, images)
    generator = torch.Generator().manual_seed(0)
    for _ in range(views - 1):
        # A part at a time: deformed copies are four times as large as bytes.
        for embedding, drawn in zip(embeddings.split(2048), images.split(2048), strict=True):
            embedding += embed_all(encoder, jitter(scale_bytes(drawn), SLIGHTLY, generator))
    # A mean is shorter than what it is the mean of: back to the length that every embedding has.
    return F.normalize(embeddings, dim=1) * encoder.width**0.5 if views > 1 else embeddings


def lake_finding() -> str:
    row = next(row for row in load_rows("lake") if row["runs"] == "the 20 runs")
    error = 100 * (1 - row["accuracy"])
    return (
        f"{error:.2f} ± {100 * (row['ci95'] or 0):.2f} % error, one stored drawing per character. Published: people {PEOPLE}, BPL {BPL}, "
        f"attentive recurrent comparators {COMPARATORS}; Polis and Ilin (2021) claim {POLIS:.0f}."
    )
