"""Every experiment in one line, in the order of docs/RESULTS.md."""

TITLES = {
    "paper-form": "The paper's system alone",
    "extended": "Our extension on the same figures",
    "ablations": "What each choice of the training is worth",
    "lake": "Lake's one-shot challenge, trained on the background set alone",
    "imagenet": "ImageNet, shuffled labels, frozen encoder",
    "imagenet-plain": "ImageNet in the paper's form: 8 blocks × 1024, fixed labels (--train)",
    "analogy": "Number analogy",
    "baselines": "OnlineClassifier beside simple methods, on Omniglot",
    "peers": "OnlineClassifier beside simple methods, on streams",
    "classifier-speed": "OnlineClassifier against the bare encoder and a numpy scan",
    "training-step": "A training step against the bare network",
    "features": "Known or new, on vectors of frozen encoders",
    "batch": "Whole batches beside logistic regression, false alarms at an asked rate, drift",
    "loop": "What to label next, sets of labels, labels that look wrong, changes",
    "service": "The service under load, and killed under load",
    "storage": "A file after many examples, and forgetting one source of a million",
    "engine": "Memories on PostgreSQL, searched in RAM and on the server",
    "report": "results/claims.json, docs/RESULTS.md and the tables of README.md, from the result files",
}
