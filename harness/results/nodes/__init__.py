"""Runs on nodes: their journals beside the driver's, their numbers, and what is said of each."""
