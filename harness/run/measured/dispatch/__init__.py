"""How queries reach the instances: threads, shared lists, deadlines, lengths."""
