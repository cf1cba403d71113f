"""Generates models on request: `light/*`, `zoo/*`, single operators."""
