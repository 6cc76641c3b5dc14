"""Published methods to compare with, one per file, behind one interface (`experiments.baselines.interface`).

All of them read embeddings: what an encoder made of an input. Each file was written from its paper
and says where it departs from it (`Deviation:`).
"""
