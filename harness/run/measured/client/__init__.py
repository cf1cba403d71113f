"""The client of runs with a server: its connections, its dispatcher and its limits."""
