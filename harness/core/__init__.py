"""Shared by every room: configuration, units, statistics, clocks, files, child processes, plug-ins."""
