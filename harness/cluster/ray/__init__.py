"""Ray places, starts and ends hosts on the nodes of a cluster; it carries batches only with --transport actor."""
