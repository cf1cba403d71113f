"""Live metrics of a run for Prometheus."""
