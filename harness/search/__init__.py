"""Implements the verbs that use many runs to answer one question: peak, sweep, grid, tune, repeats."""
