"""Sequences that come in real time: how fast the model is beside them, and how many streams were kept up with."""
