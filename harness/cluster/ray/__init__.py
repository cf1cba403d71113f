"""Uses Ray to place, start and end hosts on a cluster's nodes. Only with --transport actor, Ray also transfers batches."""
