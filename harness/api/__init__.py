"""The harness in Python: `from harness import RunConfig, measure, read_run` (docs/python.md)."""
