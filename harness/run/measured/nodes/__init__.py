"""The driver's part of --nodes: control requests, dispatch of queries, and the nodes' journals."""
