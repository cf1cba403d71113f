"""Compares sequences that arrive in real time with the model's speed, and counts the streams that it can follow."""
