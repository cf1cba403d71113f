"""The driver's side of --nodes: what it asks the nodes, how it hands queries to them, what it keeps of each."""
