"""Checks a result tree against the rules of MLPerf Endpoints."""
