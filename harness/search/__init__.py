"""Implements verbs that make many runs for one answer: peak, sweep, grid, tune, repeats."""
