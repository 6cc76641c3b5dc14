"""Benches: contenders take turns in one run, so that a busy machine slows all of them alike."""
