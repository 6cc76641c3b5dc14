"""Every experiment, in the order of docs/RESULTS.md."""

from __future__ import annotations

from typing import NamedTuple


class Experiment(NamedTuple):
    title: str
    place: str
    """A module below `experiments` with a `Command` of its own options, or its function that is given `--quick` or not."""
    file: str = ""
    """What it writes, where the name is not its own: results/FILE.json."""


EXPERIMENTS = {
    "paper-form": Experiment("The paper's system alone", "paper.paper_form:reproduce"),
    "extended": Experiment("Our extension on the same figures", "paper.paper_form:reproduce_extended"),
    "ablations": Experiment("What each choice of the training is worth", "paper.ablations:reproduce"),
    "lake": Experiment("Lake's one-shot challenge, trained on the background set alone", "paper.lake:reproduce"),
    "imagenet": Experiment("ImageNet, shuffled labels, frozen encoder", "paper.imagenet:reproduce"),
    "imagenet-plain": Experiment(
        "ImageNet in the paper's form: 8 blocks × 1024, fixed labels (--train)", "paper.imagenet"
    ),
    "analogy": Experiment("Number analogy", "paper.analogy"),
    "baselines": Experiment("OnlineClassifier beside simple methods, on Omniglot", "bench.baselines:reproduce"),
    "vinyals": Experiment(
        "OnlineClassifier on the split of the few-shot literature", "bench.baselines:reproduce_vinyals"
    ),
    "peers": Experiment("OnlineClassifier beside simple methods, on streams", "bench.baselines:reproduce_peers"),
    "classifier-speed": Experiment(
        "OnlineClassifier against the bare encoder and a numpy scan", "bench.classifier_speed", "bench_classifier"
    ),
    "training-step": Experiment("A training step against the bare network", "bench.training_step"),
    "batch": Experiment(
        "Whole batches beside logistic regression, false alarms at an asked rate, drift", "bench.batch"
    ),
    "loop": Experiment("What to label next, sets of labels, labels that look wrong, changes", "bench.loop"),
    "service": Experiment("The service under load, and killed under load", "bench.service", "bench_service"),
    "soak": Experiment("A service used and misused for ten minutes: what it holds stays what it was", "bench.soak"),
    "storage": Experiment(
        "A file after many examples, and forgetting one source of a million", "bench.storage", "bench_storage"
    ),
    "engine": Experiment("Memories on PostgreSQL, searched in RAM and on the server", "bench.engine", "bench_engine"),
    "report": Experiment(
        "results/claims.json, docs/RESULTS.md and the tables of README.md, from the result files",
        "paper.report",
        "claims",
    ),
}
