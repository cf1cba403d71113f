"""Applies the rules of MLPerf Endpoints to a result tree."""
