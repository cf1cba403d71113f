"""The steps before and after the model that a manifest declares."""
