"""Compares sequences that arrive in real time with the model's speed, and counts how many streams the model can keep up
with.
"""
