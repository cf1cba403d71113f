"""The tables of a profile, and its folder."""
