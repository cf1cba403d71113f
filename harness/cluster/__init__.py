"""Runs on several machines: nodes that answer, hosts that share the load, and a verb on each machine."""
