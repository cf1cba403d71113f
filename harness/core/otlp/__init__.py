"""Encodes OpenTelemetry messages as JSON and posts them to a collector."""
