"""Timings of the ops against what else does the same: ``python -m kernels.bench``."""
