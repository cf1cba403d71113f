"""Places, starts and ends hosts on the nodes of a cluster with Ray. Ray transfers batches only with --transport
actor.
"""
