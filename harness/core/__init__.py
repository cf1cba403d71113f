"""Words every room shares: units, statistics, clocks, files, child processes, the registry."""
