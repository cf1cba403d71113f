"""The machine of a run: cores, memory, its log, threads, and power."""
