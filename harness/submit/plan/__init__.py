"""The runs that a submission needs, and their making."""
