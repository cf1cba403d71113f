"""Models that are generated on request: `light/*`, `zoo/*`, single operators."""
