"""Implements the verbs that make many runs to answer one question: peak, sweep, grid, tune, repeats."""
