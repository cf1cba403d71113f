"""Judges the steady state of a run by two rules: the harness's referee and MLPerf Endpoints."""
