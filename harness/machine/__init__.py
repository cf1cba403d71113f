"""The machine that runs a benchmark: its cores, memory, logs, threads and power."""
