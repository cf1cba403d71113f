"""The harness's Python interface: `from harness import RunConfig, measure, read_run` (docs/python.md)."""
