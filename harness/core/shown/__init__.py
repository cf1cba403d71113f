"""Removes private names, secrets, control characters and spreadsheet formulas from texts that leave the process."""
