"""Ray places, starts and ends hosts on the nodes of a cluster; only with --transport actor does it carry batches, too."""
