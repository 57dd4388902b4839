"""The demo: a small language model, trained and tested on this machine in a few minutes."""

import os

# Read when PyTorch's OpenMP starts, hence here: between two parallel regions its threads sleep
# instead of spinning, and leave the cores to the operator's own threads and to other programs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
