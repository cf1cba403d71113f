"""Runs the official client, and prepares its environment and configuration."""
