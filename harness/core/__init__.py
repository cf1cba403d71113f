"""Modules that every package imports: configuration, units, statistics, clocks, files, child processes, plug-ins."""
