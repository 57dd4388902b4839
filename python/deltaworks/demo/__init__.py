"""The demo: a small language model, trained and tested on this machine in a few minutes."""
