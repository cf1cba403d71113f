"""The supervisor of a run: preflight, spawn, watch, verdict, result folder."""
