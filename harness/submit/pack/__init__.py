"""Finished runs packed into a submission tree."""
