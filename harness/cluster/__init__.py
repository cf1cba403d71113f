"""Runs on more than this process: hosts that answer, started here or found on other machines."""
