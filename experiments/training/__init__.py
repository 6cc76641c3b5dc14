"""Training that only experiments use: hints, hand-set first weights, the analogy task."""
