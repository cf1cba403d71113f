"""Converts a model to fp16 or int8, by file format."""
