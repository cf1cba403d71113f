"""Modules that all packages import: configuration, units, statistics, clocks, files, child processes, plug-ins."""
