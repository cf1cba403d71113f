"""Calls over gRPC: what makes them, and how their certificates are trusted."""
