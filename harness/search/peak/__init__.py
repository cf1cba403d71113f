"""Implements `peak`, which finds the highest VALID rate."""
