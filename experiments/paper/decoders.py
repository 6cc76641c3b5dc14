"""Appendix, "Decoder architecture comparison": accuracy against items written, at 20-, 423- and 1000-way.

Each decoder under both rules: what does not surprise is thrown away, as in the paper (drawn), or merged.
"""

from __future__ import annotations

import itertools

from apl.checkpoint import is_named
from apl.evaluate import online
from experiments.paper.online import SEED, summary
from experiments.paper.plot import PALETTE, figure, smooth
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import DECODERS, TRAINED_DECODERS, characters, subject


def reproduce(quick: bool = False) -> None:
    decoders = [d for d in DECODERS if is_named(TRAINED_DECODERS.get(d, "omniglot"))]
    rows = []
    with figure(figure_path("decoders", quick), columns=3, width=3.6) as panels:
        for axes, way in zip(panels, (20, 423, 1000), strict=True):
            data = characters(way > 423, quick=quick)
            episodes = {20: 50, 423: 4, 1000: 2}[way] if not quick else 1
            length = None if not quick else min(20 * way, 2000)
            for (decoder, colour), consolidate in itertools.product(
                zip(decoders, PALETTE, strict=False), (False, True)
            ):
                one = subject(decoder, consolidate=consolidate)
                result = online(
                    one.learner,
                    data.embeddings,
                    data.labels,
                    way=way,
                    episodes=episodes,
                    seed=SEED,
                    length=length,
                    batch=1 if way == 20 else 16,
                )
                rows.append(one.row(data, **summary(result, episodes, last=100 if way == 20 else 1000)))
                save_rows("decoders", rows, quick)
                if not consolidate:
                    running = smooth(result.correct.mean(0), max(10, way // 2))
                    axes.plot(result.stored.float().mean(0), running, color=colour, label=decoder)
            axes.set(xlabel="items written", ylim=(0, 1.02), title=f"{way}-way")
        panels[0].set_ylabel("accuracy (running mean)")
        panels[0].legend(frameon=False)
