"""The machine a run is on: cores, host facts, the host log, threads and their cores."""
