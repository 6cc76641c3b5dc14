"""The paper's experiments, the baselines and the benches. They are part of a checkout, not of the package."""
