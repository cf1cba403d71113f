"""Judges a run's steady state by two rules: the harness's referee and the MLPerf Endpoints rule."""
