"""Ray as what places, starts and ends hosts on the nodes of a cluster; it carries batches with --transport actor alone."""
