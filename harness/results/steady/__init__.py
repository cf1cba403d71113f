"""The steady state of a run: the referee of the harness, and the rule of MLPerf Endpoints."""
