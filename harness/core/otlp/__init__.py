"""Encodes OpenTelemetry's messages as JSON, and posts them to a collector."""
