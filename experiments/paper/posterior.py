"""Figure 3b: the posterior of three fixed inputs while a 20-way episode goes by."""

from __future__ import annotations

import torch

from apl.episode import EpisodeSampler, run_episode
from experiments.paper.plot import OURS, QUIET, figure
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import characters, subject

WAY, INPUTS, SEED = 20, 3, 4


@torch.no_grad()
def reproduce(quick: bool = False) -> None:
    tested, data = subject(), characters(False)
    stream = EpisodeSampler(data.labels, torch.Generator().manual_seed(SEED)).online(WAY, None, 1)
    # The last examples of three different classes are kept out of the stream and asked about after every step.
    classes = stream.label[0].flip(0).unique_consecutive()[:INPUTS].tolist()
    asked = [int((stream.label[0] == c).nonzero()[-1]) for c in classes]
    shown = [t for t in range(stream.label.shape[1]) if t not in asked][: 60 if quick else 150]
    fixed = data.embeddings[stream.example[:, asked]]
    truth = stream.label[0, asked]
    first_seen = [next(i for i, t in enumerate(shown) if stream.label[0, t] == c) for c in truth]
    shorter = type(stream)(stream.example[:, shown], stream.label[:, shown], WAY)

    memory = tested.learner.new_memory()
    history = [tested.learner.predict(memory, fixed, WAY).log_probs[0].exp()]
    for _ in run_episode(tested.learner, memory, data.embeddings, shorter, batch=1):
        history.append(tested.learner.predict(memory, fixed, WAY).log_probs[0].exp())
    posterior = torch.stack(history)
    rows = [
        tested.row(
            data,
            way=WAY,
            shot=0,
            episodes=1,
            seed=SEED,
            input=i,
            class_first_seen_at=first_seen[i] + 1,
            accuracy=float(posterior[-1, i].argmax() == truth[i]),
            ci95=None,
            probability_of_truth=[round(float(p), 4) for p in posterior[:, i, truth[i]]],
            highest_at_start=float(posterior[0, i].max()),
        )
        for i in range(INPUTS)
    ]
    save_rows("posterior", rows, quick)
    with figure(figure_path("posterior", quick), columns=INPUTS, width=3.4, height=3.0) as panels:
        for i, axes in enumerate(panels):
            for c in range(WAY):
                true = c == truth[i]
                axes.plot(
                    posterior[:, i, c], color=OURS if true else QUIET, lw=2 if true else 0.7, zorder=3 if true else 1
                )
            axes.axvline(first_seen[i] + 1, color="black", lw=0.8, ls=":")
            axes.set(xlabel="examples seen", ylim=(0, 1.02), title=f"input {i + 1} (dotted: its class first seen)")
        panels[0].set_ylabel("probability of each class")
