"""Computes a system's provisioned power with the formula in the rules."""
