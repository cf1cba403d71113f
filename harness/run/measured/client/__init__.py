"""Runs with a server: what the client itself can do, and the dispatcher that asks the server."""
