"""Ray as what places, starts and ends hosts on the nodes of a cluster; no batch of a run travels through it."""
