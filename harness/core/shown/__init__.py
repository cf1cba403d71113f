"""Texts as they leave the process: without private names, control characters and spreadsheet formulas."""
