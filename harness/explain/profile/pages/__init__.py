"""The pages of a profile."""
