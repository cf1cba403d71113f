"""Bricks published and read back."""
