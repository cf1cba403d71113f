"""The driver's side of --nodes: control requests, dispatch of queries, and each node's journal."""
