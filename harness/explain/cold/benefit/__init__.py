"""Estimates and measures whether sharing a model's weights pays off."""
