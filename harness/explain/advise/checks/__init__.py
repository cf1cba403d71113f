"""Checks of weights, files and operators that advice rests on."""
