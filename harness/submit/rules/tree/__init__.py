"""A submission tree read: rounds, systems, results."""
