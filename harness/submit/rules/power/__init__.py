"""The rules of power submissions."""
