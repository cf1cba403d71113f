"""The verb `bricks`: benchmarks composed of unique layer sequences."""
