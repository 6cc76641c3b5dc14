"""Benches: ratios between contenders that took turns in one run, so that a busy machine
slows all of them alike.

- `training_step`: a whole training step against the bare network on the same tensors
- `search`: recalling and writing against FAISS and a numpy scan
- `growth`: what ten times the rows cost in time, and a row in memory
"""
