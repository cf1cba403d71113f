"""Sequences that come in real time: how fast the model is compared with real time, and how many streams it kept up with."""
