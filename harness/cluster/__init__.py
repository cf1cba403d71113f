"""Runs on several machines: nodes that process queries, hosts that divide the load, and a verb that runs on each
machine.
"""
