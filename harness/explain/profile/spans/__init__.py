"""Spans of a profile for trace viewers and OTLP collectors."""
