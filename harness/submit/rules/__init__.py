"""Checks a submission tree against the rules of its round."""
