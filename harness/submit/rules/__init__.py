"""Checks a submission tree by the rules of its round."""
