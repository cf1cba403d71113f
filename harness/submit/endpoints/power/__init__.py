"""Computes the provisioned power of a system by the formula of the rules."""
