"""Writes the result tree of MLPerf Endpoints."""
