"""The machine of a run: cores, memory, log, threads, and power."""
