"""Training (needs torch): the encoder as a classifier, the decoder on episodes, the analogy; runs that resume."""
